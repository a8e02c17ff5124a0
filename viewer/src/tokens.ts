// The tokens of a context's log as arrays, and sequences of ranges of logs, such as a prompt.

import { visible } from "./text";
import type { Range, Tokens } from "./types";

/** Values from a position on, until the next one. */
type Runs<T> = [position: number, value: T][];

export interface Piece {
  text: string;
  kind: "text" | "control" | "bytes" | "id";
  width: number; // in characters of a monospaced font
  isLineEnd: boolean;
}

const NONE = -1;

/** One log, with a value for each token in place of the runs that were sent. */
export class Log {
  readonly length: number;
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  readonly reference: Float32Array | null;
  readonly advantages: Float32Array | null;
  readonly steps: Int32Array;
  readonly sampled: Uint8Array;
  readonly trained: Int32Array;
  readonly nodes: Int32Array;
  readonly dropped: Int32Array;
  readonly hasRoles: boolean;
  private readonly roleCodes: Int16Array;
  private readonly roleNames: string[] = [];
  private readonly pieces = new Map<number, Piece>();
  private readonly controls: Set<number>;

  constructor(readonly given: Tokens) {
    const length = (this.length = given.ids.length);
    this.ids = Int32Array.from(given.ids);
    this.logprobs = numbers(given.logprobs);
    this.reference = given.reference_logprobs && numbers(given.reference_logprobs);
    this.advantages = given.advantages && numbers(given.advantages);
    this.steps = filled(new Int32Array(length), given.steps, (step) => step);
    this.sampled = filled(new Uint8Array(length), given.sampled, Number);
    this.trained = filled(new Int32Array(length), given.trained, (sample) => sample ?? NONE);
    this.nodes = filled(new Int32Array(length), given.nodes, (node) => node);
    this.dropped = filled(new Int32Array(length), given.dropped, (step) => step ?? NONE);
    this.hasRoles = given.roles.length > 0;
    this.roleCodes = filled(new Int16Array(length).fill(NONE), given.roles, (role) => this.roleCode(role));
    this.controls = new Set(given.controls);
  }

  private roleCode(role: string | null): number {
    if (role === null) return NONE;
    if (!this.roleNames.includes(role)) this.roleNames.push(role);
    return this.roleNames.indexOf(role);
  }

  /** What a token belongs to, if it was recorded; else whether it was observed or sampled. */
  role(at: number): string {
    const role = this.roleNames[this.roleCodes[at]!];
    if (role !== undefined) return role;
    return this.hasRoles ? "unknown" : this.sampled[at] ? "sampled" : "observed";
  }

  isControl = (at: number) => this.controls.has(this.ids[at]!);

  samples(at: number): number[] {
    return valueAt(this.given.samples, at) ?? [];
  }

  /** The image whose placeholder a token is: where its placeholders begin and end, and its hash. */
  imageAt(at: number): [start: number, stop: number, sha256: string] | undefined {
    let [low, high] = [0, this.given.images.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.given.images[middle]![0] <= at) low = middle + 1;
      else high = middle;
    }
    const found = this.given.images[low - 1];
    return found && at < found[1] ? found : undefined;
  }

  /** The text of a token, with line ends, tabs and hidden characters as signs. */
  piece(at: number): Piece {
    const id = this.ids[at]!;
    let piece = this.pieces.get(id);
    if (!piece) this.pieces.set(id, (piece = this.made(id)));
    return piece;
  }

  private made(id: number): Piece {
    const text = this.given.texts[id];
    const bytes = this.given.bytes[id];
    if (bytes !== undefined) return pieceOf(bytes.replace(/../g, (pair) => `\\x${pair}`), "bytes");
    if (text === undefined) return pieceOf(`${id} `, "id");
    const shown = visible(text).replaceAll("\n", "⏎").replaceAll("\t", "⇥");
    return { ...pieceOf(shown, this.controls.has(id) ? "control" : "text"), isLineEnd: text.includes("\n") };
  }

  /** The text itself, for a search. Parts of characters are missing in it. */
  raw(at: number): string {
    return this.given.texts[this.ids[at]!] ?? "";
  }

  bytes(at: number): string {
    const id = this.ids[at]!;
    const text = this.given.texts[id];
    const hex = this.given.bytes[id] ?? (text === undefined ? "" : [...new TextEncoder().encode(text)].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
    return hex.replace(/..(?=.)/g, "$& ");
  }
}

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

function pieceOf(text: string, kind: Piece["kind"]): Piece {
  let width = 0;
  for (const character of text) width += WIDE.test(character) ? 2 : 1;
  return { text, kind, width, isLineEnd: false };
}

function numbers(values: (number | null)[]): Float32Array {
  const found = new Float32Array(values.length);
  for (let at = 0; at < values.length; at++) found[at] = values[at] ?? Number.NaN;
  return found;
}

function filled<A extends Int32Array | Uint8Array | Int16Array, T>(array: A, runs: Runs<T>, code: (value: T) => number): A {
  runs.forEach(([start, value], index) => array.fill(code(value), start, runs[index + 1]?.[0] ?? array.length));
  return array;
}

function valueAt<T>(runs: Runs<T>, at: number): T | undefined {
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle]![0] <= at) low = middle + 1;
    else high = middle;
  }
  return runs[low - 1]?.[1];
}

export interface Part {
  log: Log;
  context: string;
  start: number;
  stop: number;
  position: number; // of its first token in the sequence
}

/** Ranges of logs, one after the other: a whole log, or a prompt. */
export class Sequence {
  readonly parts: Part[] = [];
  readonly length: number;

  constructor(ranges: Range[], logs: Map<string, Log>) {
    let position = 0;
    for (const [context, start, stop] of ranges) {
      this.parts.push({ log: logs.get(context)!, context, start, stop, position });
      position += stop - start;
    }
    this.length = position;
  }

  part(position: number): Part {
    let [low, high] = [0, this.parts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.parts[middle]!.position <= position) low = middle + 1;
      else high = middle;
    }
    return this.parts[low - 1]!;
  }

  /** The position of a token of a log; -1 if the sequence does not have it. */
  positionOf(context: string, index: number): number {
    const part = this.parts.find((own) => own.context === context && own.start <= index && index < own.stop);
    return part ? part.position + index - part.start : -1;
  }
}

export interface Line {
  first: number;
  stop: number;
  step: number; // of a line that announces a step; -1 for a line of tokens
  image?: { sha256: string; row: number }; // of a line of an image: its placeholders are folded into IMAGE_LINES lines
}

export const IMAGE_LINES = 3;

/** Break a sequence into lines of a width in characters, with a line before each step; each token has an edge. */
export function linesOf(sequence: Sequence, columns: number, edge: number): Line[] {
  const lines: Line[] = [];
  let step = NONE;
  let first = 0;
  let used = 0;
  const end = (position: number) => {
    if (position > first) lines.push({ first, stop: position, step: NONE });
    first = position;
    used = 0;
  };
  for (const part of sequence.parts) {
    for (let index = part.start; index < part.stop; index++) {
      const position = part.position + index - part.start;
      const own = part.log.steps[index]!;
      if (own !== step) {
        end(position);
        lines.push({ first: position, stop: position, step: own });
        step = own;
      }
      const image = part.log.imageAt(index);
      if (image) {
        end(position);
        const stop = Math.min(image[1], part.stop) - part.start + part.position;
        for (let row = 0; row < IMAGE_LINES; row++) lines.push({ first: position, stop, step: NONE, image: { sha256: image[2], row } });
        index += stop - position - 1;
        first = stop;
        continue;
      }
      const piece = part.log.piece(index);
      if (used && used + piece.width > columns) end(position);
      used += piece.width + edge;
      if (piece.isLineEnd) end(position + 1);
    }
  }
  end(sequence.length);
  return lines;
}

/** The first position of each row of a table: one for each token, and one for all placeholders of an image. */
export function rowsOf(sequence: Sequence): Int32Array {
  const rows = new Int32Array(sequence.length);
  let count = 0;
  for (const part of sequence.parts) {
    for (let index = part.start; index < part.stop; index++) {
      rows[count++] = part.position + index - part.start;
      const image = part.log.imageAt(index);
      if (image) index = Math.min(image[1], part.stop) - 1;
    }
  }
  return rows.slice(0, count);
}

/** The row of a position, by the first position of each row. */
export function rowAt(rows: Int32Array, position: number): number {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle]! <= position) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

export function lineAt(lines: Line[], position: number): number {
  let [low, high] = [0, lines.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lines[middle]!.first <= position) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

