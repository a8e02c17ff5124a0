// Search in the contents of episodes: by the server, or, in a page of --html, in the episodes that it holds.

import { useEffect, useState } from "preact/hooks";
import { contains, hitsOf } from "./contents";
import { type RunRows, isEmbedded, searchOf, store, unkeptEpisodeOf } from "./data";
import type { Filter } from "./filters";
import type { Match } from "./types";

const MOST_HITS = 3;

/** What a search has found so far. */
export interface Found {
  matches: Map<number, Match>; // by line
  searched: number; // rows
  error: string | null;
}

const NOTHING: Found = { matches: new Map(), searched: 0, error: null };
const MOMENT_MS = 200;

/**
 * Search the rows of a run, and those that come later. Another filter ends the search, and so does leaving the list.
 * Nothing is searched for a filter without a term about contents.
 */
export function useSearch(run: number, state: RunRows, text: string, filter: Filter | null, isStopped: boolean): Found {
  const [found, setFound] = useState<Found>(NOTHING);
  const isNeeded = filter !== null && filter.texts.length > 0;
  useEffect(() => setFound(NOTHING), [run, text, state.generation]);
  useEffect(() => {
    if (!isNeeded || isStopped) return;
    const leaving = new AbortController();
    void search(run, state, text, filter, leaving.signal, setFound);
    return () => leaving.abort();
  }, [run, text, state.generation, isNeeded, isStopped]);
  return isNeeded ? found : NOTHING;
}

async function search(run: number, state: RunRows, text: string, filter: Filter, signal: AbortSignal, show: (found: Found) => void) {
  let matches = new Map<number, Match>();
  let searched = 0;
  try {
    while (!signal.aborted) {
      if (searched < state.rows.length) {
        const answer = isEmbedded ? await searchPage(run, state, filter, searched, signal) : await searchOf(run, text, searched, state.generation, signal);
        if (signal.aborted) return;
        searched = answer.searched;
        if (answer.matches.length) matches = new Map([...matches, ...answer.matches.map((match): [number, Match] => [match.line, match])]);
        show({ matches, searched, error: null });
      } else if (state.isReading || store.follow) await new Promise((resolve) => setTimeout(resolve, MOMENT_MS));
      else return;
    }
  } catch (error) {
    if (!signal.aborted) show({ matches, searched, error: (error as Error).message });
  }
}

/** Search the next episodes of the page, as many as take a moment. */
async function searchPage(run: number, state: RunRows, filter: Filter, after: number, signal: AbortSignal): Promise<{ matches: Match[]; searched: number }> {
  const matches: Match[] = [];
  const until = performance.now() + MOMENT_MS;
  let searched = after;
  while (searched < state.rows.length && performance.now() < until && !signal.aborted) {
    const row = state.rows[searched++]!;
    if (!filter.matchesRow(row)) continue;
    const episode = row.status === "damaged" ? null : await unkeptEpisodeOf(run, row.line).catch(() => null);
    if (!filter.matchesTexts((value) => episode !== null && contains(episode, value))) continue;
    const hits = episode ? hitsOf(episode, filter.searched) : [];
    matches.push({ line: row.line, count: hits.length, hits: hits.slice(0, MOST_HITS) });
  }
  return { matches, searched };
}
