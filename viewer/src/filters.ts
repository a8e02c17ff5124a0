// The filter language of envsdk/viewer/_filters.py, which has its grammar. tests/viewer/filter_cases.json holds for both.

import { folded } from "./folding";
import type { EpisodeRow } from "./types";

const sum = (values: Record<string, number>) => Object.values(values).reduce((total, value) => total + value, 0);

type OfNumber = (row: EpisodeRow) => number | null | undefined;
type OfTexts = (row: EpisodeRow) => string[];

export const NUMBERS: Record<string, OfNumber> = {
  line: (row) => row.line,
  reward: (row) => (row.is_scored ? row.reward : null),
  seed: (row) => row.seed,
  steps: (row) => row.steps,
  breaks: (row) => sum(row.breaks),
  contexts: (row) => row.contexts,
  tokens: (row) => row.observed_tokens + row.sampled_tokens,
  observed: (row) => row.observed_tokens,
  sampled: (row) => row.sampled_tokens,
  images: (row) => row.images,
  errors: (row) => row.reply_errors,
  duration: (row) => row.duration_s,
  version: (row) => row.policy_versions.at(-1),
};
export const NAMES: Record<string, OfTexts> = {
  status: (row) => [row.status],
  stop: (row) => [row.stop_reason],
  break: (row) => Object.keys(row.breaks),
  role: (row) => row.roles,
  by: (row) => [row.error_kind ?? ""],
};
export const TEXTS: Record<string, OfTexts> = {
  id: (row) => [row.id],
  task: (row) => [row.task],
  group: (row) => [row.group_id ?? ""],
  env: (row) => [row.env],
  error: (row) => [row.error ?? "", row.damage],
};
const GROUPS: Record<string, (row: EpisodeRow) => Record<string, number>> = {
  reward: (row) => row.rewards,
  metric: (row) => row.metrics,
  break: (row) => row.breaks,
};
const isClose = (a: number, b: number) => Math.abs(a - b) <= Math.max(1e-9 * Math.max(Math.abs(a), Math.abs(b)), 1e-12);
const OPERATORS: Record<string, (a: number, b: number) => boolean> = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "=": isClose,
  "!=": (a, b) => !isClose(a, b),
};
const TERM = /(?:[^\s"]|"[^"]*"?)+/g;
const COMPARISON = /^([A-Za-z_]+(?:\.[^\s<>=!:]+)?)(<=|>=|!=|<|>|=)([^]*)$/;
const MATCH = /^([A-Za-z_]+):([^]*)$/;
const VALUE = /"([^"]*)"|([^,"]+)/g;
const NUMBER = /^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$/;

export class InvalidFilter extends Error {
  constructor(
    why: string,
    readonly position: number,
    readonly length: number,
  ) {
    super(`at ${position}: ${why}`);
  }
}

type Test = (row: EpisodeRow) => boolean;
type Contains = (value: string) => boolean;

/** A term about the contents of an episode: one of the texts, which are folded, has to occur. */
interface TextTerm {
  values: string[];
  isNegated: boolean;
}

export class Filter {
  constructor(
    private readonly terms: Test[],
    readonly texts: TextTerm[],
  ) {}

  /** The texts that are to occur in the contents. */
  get searched(): string[] {
    return [...new Set(this.texts.flatMap((term) => (term.isNegated ? [] : term.values)))];
  }

  /** Whether the terms that are not about contents hold. */
  matchesRow = (row: EpisodeRow): boolean => this.terms.every((holds) => holds(row));

  /** Whether the terms about contents hold. */
  matchesTexts = (contains: Contains): boolean => this.texts.every((term) => term.values.some(contains) !== term.isNegated);
}

const CONTENTS = "text";
const has = (table: object, name: string) => Object.prototype.hasOwnProperty.call(table, name);

/** Read a filter; throw InvalidFilter with the position of the first wrong term. */
export function parseFilter(text: string): Filter {
  const terms = [...text.matchAll(TERM)].map((found) => termOf(found[0], found.index));
  const texts = terms.filter((term) => typeof term !== "function");
  return new Filter(
    terms.filter((term) => typeof term === "function"),
    texts,
  );
}

function termOf(text: string, position: number): Test | TextTerm {
  const fail = (why: string): never => {
    throw new InvalidFilter(why, position, text.length);
  };
  if ((text.split('"').length - 1) % 2) fail(`${text} has a quote that is not closed`);
  const isNegated = text.startsWith("-") && text.length > 1;
  const body = isNegated ? text.slice(1) : text;
  const match = MATCH.exec(body);
  if (match?.[1]!.toLowerCase() === CONTENTS) return { values: valuesOf(CONTENTS, match[2]!, fail), isNegated };
  const holds = positive(body, fail);
  return isNegated ? (row) => !holds(row) : holds;
}

function positive(body: string, fail: (why: string) => never): Test {
  const comparison = COMPARISON.exec(body);
  if (comparison) return compared(comparison[1]!, comparison[2]!, comparison[3]!, fail);
  const match = MATCH.exec(body);
  if (match) return matched(match[1]!.toLowerCase(), match[2]!, fail);
  const word = folded(body.replaceAll('"', ""));
  return (row) => searched(row).some((text) => folded(text).includes(word));
}

const searched = (row: EpisodeRow) => [row.id, row.task, row.group_id ?? "", row.env, row.error ?? "", row.damage];

function compared(field: string, operator: string, given: string, fail: (why: string) => never): Test {
  const number = numberOf(field, fail);
  const holds = OPERATORS[operator]!;
  if (!NUMBER.test(given)) fail(`${field}${operator} needs a number such as 0.5, not '${given}'`);
  const wanted = Number(given);
  return (row) => {
    const value = row.status === "damaged" && field.toLowerCase() !== "line" ? null : number(row);
    return value !== null && value !== undefined && holds(value, wanted);
  };
}

function numberOf(field: string, fail: (why: string) => never): OfNumber {
  const dot = field.indexOf(".");
  const group = dot < 0 ? "" : field.slice(0, dot).toLowerCase();
  const name = field.slice(dot + 1);
  if (has(GROUPS, group)) return (row) => (has(GROUPS[group]!(row), name) ? GROUPS[group]!(row)[name] : group === "break" ? 0 : null);
  if (dot < 0 && has(NUMBERS, field.toLowerCase())) return NUMBERS[field.toLowerCase()]!;
  const isText = has(NAMES, field.toLowerCase()) || has(TEXTS, field.toLowerCase()) || field.toLowerCase() === CONTENTS;
  const expected = `expected ${Object.keys(NUMBERS).join(", ")}, reward.NAME, metric.NAME or break.REASON`;
  return fail(isText ? `'${field}' is matched with a string, such as ${field}:...; ${expected}` : unknown(field, expected));
}

function matched(field: string, given: string, fail: (why: string) => never): Test {
  const texts = has(NAMES, field) ? NAMES[field]! : has(TEXTS, field) ? TEXTS[field]! : null;
  if (!texts) {
    const expected = `expected ${[...Object.keys(NAMES), ...Object.keys(TEXTS)].join(", ")} or ${CONTENTS}`;
    return fail(has(NUMBERS, field) ? `'${field}' is a number, such as ${field}>=1; ${expected}` : unknown(field, expected));
  }
  const values = valuesOf(field, given, fail);
  if (has(NAMES, field)) return (row) => texts(row).some((text) => values.includes(folded(text)));
  return (row) => texts(row).some((text) => values.some((value) => folded(text).includes(value)));
}

/** Return an error's message, which suggests the field that is meant, or else lists those that there are. */
function unknown(field: string, expected: string): string {
  const known = [...Object.keys(NUMBERS), ...Object.keys(NAMES), ...Object.keys(TEXTS), CONTENTS];
  const [near, edits] = known.map((name): [string, number] => [name, editsOf(field.toLowerCase(), name)]).sort((a, b) => a[1] - b[1])[0]!;
  return `'${field}' is unknown; ${edits <= Math.max(1, near.length / 3) ? `did you mean ${near}?` : expected}`;
}

/** Return how many characters have to be added, removed or replaced to make one string of another. */
function editsOf(one: string, other: string): number {
  let row = [...Array(other.length + 1).keys()];
  for (let at = 1; at <= one.length; at++) {
    const next = [at];
    for (let to = 1; to <= other.length; to++) {
      next.push(Math.min(row[to]! + 1, next[to - 1]! + 1, row[to - 1]! + Number(one[at - 1] !== other[to - 1])));
    }
    row = next;
  }
  return row.at(-1)!;
}

function valuesOf(field: string, given: string, fail: (why: string) => never): string[] {
  const values = [...given.matchAll(VALUE)].map((found) => folded(found[1] || found[2] || ""));
  if (!values.length || (field === CONTENTS && values.includes(""))) fail(`${field}: needs a value, such as ${field}:word`);
  return values;
}
