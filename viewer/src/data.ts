// Where the page has its data from: a server on this machine, or the page itself, if it was written with --html.

import type { Episode, Range, EpisodeRow, RowsAnswer, RunInfo, SearchAnswer, Tokens } from "./types";

export class DataError extends Error {
  constructor(
    readonly kind: string,
    message: string,
  ) {
    super(message);
  }
}

const embedded = new Map<string, Element>();
for (const element of document.querySelectorAll("script.data")) {
  embedded.set(decode(element.getAttribute("data-name") ?? ""), element);
}

function decode(base64: string): string {
  return new TextDecoder().decode(bytesOf(base64));
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

export const isEmbedded = embedded.size > 0;

async function get<T>(name: string, query: Record<string, string | number>): Promise<T> {
  return (isEmbedded ? await fromPage(name, query) : await fromServer(name, query)) as T;
}

async function fromServer(name: string, query: Record<string, string | number>, signal?: AbortSignal): Promise<unknown> {
  const parameters = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)]));
  let answer: Response;
  try {
    answer = await fetch(`/api/${name}?${parameters}`, { signal: signal ?? null });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new DataError("Disconnected", "envsdk view has ended, or cannot be reached. Start it again and reload the page.");
  }
  return checked(await answer.json());
}

async function fromPage(name: string, query: Record<string, string | number>): Promise<unknown> {
  const wanted = ["run", "line", "context", "step", "sha256"].filter((key) => key in query).map((key) => query[key]);
  const key = [name, ...wanted].join("/");
  const element = embedded.get(key);
  if (!element) throw new DataError("NotInPage", "This page does not have that episode. Write it with another --filter.");
  const stream = new Blob([bytesOf(element.textContent ?? "")]).stream().pipeThrough(new DecompressionStream("gzip"));
  return checked(await new Response(stream).json());
}

function checked(answer: { error?: { type: string; message: string } }): unknown {
  // An episode has an error, too, which is a text.
  if (answer.error && typeof answer.error === "object") throw new DataError(answer.error.type, answer.error.message);
  return answer;
}

const kept = new Map<string, Promise<unknown>>();
const MOST_KEPT = 60;

function once<T>(name: string, query: Record<string, string | number>): Promise<T> {
  const key = JSON.stringify([name, query]);
  let answer = kept.get(key) as Promise<T> | undefined;
  if (!answer) {
    answer = get<T>(name, query);
    kept.set(key, answer);
    answer.catch(() => kept.delete(key));
    const oldest = kept.keys().next().value;
    if (kept.size > MOST_KEPT && oldest !== undefined) kept.delete(oldest);
  }
  return answer;
}

export const episodeOf = (run: number, line: number) => once<Episode>("episode", { run, line });
/** An episode that is looked at once. */
export const unkeptEpisodeOf = (run: number, line: number) => get<Episode>("episode", { run, line });
export const searchOf = async (run: number, q: string, after: number, generation: number, signal: AbortSignal) =>
  (await fromServer("search", { run, q, after, generation }, signal)) as SearchAnswer;
export const tokensOf = (run: number, line: number, context: string) => once<Tokens>("tokens", { run, line, context });
export const promptOf = (run: number, line: number, step: number) =>
  once<{ ranges: Range[] }>("prompt", { run, line, step }).then((answer) => answer.ranges);

/** Return where an image is, by its hash: the server's address of it, or a data: URL in a page of --html. */
export async function imageUrlOf(run: number, line: number, sha256: string): Promise<string> {
  if (isEmbedded) return (await once<{ url: string }>("image", { sha256 })).url;
  return `/api/image?${new URLSearchParams({ run: String(run), line: String(line), sha256 })}`;
}

/** The rows of one run, as far as they were read. */
export interface RunRows {
  info: RunInfo;
  rows: EpisodeRow[];
  generation: number;
  isReading: boolean;
  isComplete: boolean | null;
  unreadBytes: number;
  error: string | null;
}

export interface Store {
  runs: RunRows[];
  follow: boolean;
  error: string | null;
  isLoaded: boolean;
}

export const store: Store = { runs: [], follow: false, error: null, isLoaded: false };
const listeners = new Set<() => void>();

export function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const notify = () => listeners.forEach((listener) => listener());

const POLL_MS = 1000;

export async function load(): Promise<void> {
  try {
    const answer = await get<{ runs: RunInfo[]; follow: boolean }>("runs", {});
    store.follow = answer.follow;
    store.runs = answer.runs.map((info) => ({
      ...{ info, rows: [], generation: 0, isReading: true, isComplete: info.is_complete, unreadBytes: 0, error: null },
    }));
    store.isLoaded = true;
    notify();
    store.runs.forEach((_, run) => void read(run));
  } catch (error) {
    store.error = String((error as Error).message);
    notify();
  }
}

async function read(run: number): Promise<void> {
  const state = store.runs[run];
  if (!state) return;
  for (;;) {
    let more = false;
    try {
      const { rows, generation } = state;
      const answer = await get<RowsAnswer>("rows", { run, after: rows.length, generation });
      more = answer.more;
      if (answer.generation !== generation) kept.clear();
      state.rows = answer.start === 0 ? answer.rows : answer.rows.length ? [...rows, ...answer.rows] : rows;
      const changed = state.rows !== rows && (answer.rows.length > 0 || rows.length > 0);
      const same = state.isReading === more && state.unreadBytes === answer.unread_bytes && state.error === null;
      Object.assign(state, { generation: answer.generation, isComplete: answer.is_complete, isReading: more });
      Object.assign(state, { unreadBytes: answer.unread_bytes, error: null });
      if (changed || !same) notify();
    } catch (error) {
      if (state.error === null) {
        state.error = (error as Error).message;
        state.isReading = false;
        notify();
      }
    }
    if (!more) {
      if (!store.follow) return;
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }
}
