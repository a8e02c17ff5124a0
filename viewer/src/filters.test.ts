import assert from "node:assert/strict";
import test from "node:test";
import table from "../../tests/viewer/filter_cases.json";
import { textsOf } from "./contents";
import { InvalidFilter, parseFilter } from "./filters";
import { folded, placesOf } from "./folding";
import type { Call, Message, EpisodeRow } from "./types";

type Given = { role: string; content: string; reasoning?: string; errors?: string[]; tool_calls?: Partial<Call>[] };

const contents = new Map(
  Object.entries(table.contents as Record<string, Given[]>).map(([name, messages]): [string, string[]] => [
    name,
    messages.flatMap(({ tool_calls, ...message }) => {
      const calls = (tool_calls ?? []).map((call) => ({ error: null, ...call }) as Call);
      return textsOf({ reasoning: null, errors: [], ...message, calls } as unknown as Message).map(([, text]) => folded(text));
    }),
  ]),
);
const rows = Object.entries(table.rows as unknown as Record<string, EpisodeRow>);

for (const [text, matched] of table.cases as [string, string[]][]) {
  test(`the filter ${JSON.stringify(text)} selects ${matched.join(", ") || "nothing"}`, () => {
    const filter = parseFilter(text);
    const has = (name: string, value: string) => contents.get(name)?.some((one) => one.includes(value)) ?? false;
    assert.deepEqual(
      rows.filter(([name, row]) => filter.matchesRow(row) && filter.matchesTexts((value) => has(name, value))).map(([name]) => name),
      matched,
    );
  });
}

for (const [text, position, why] of table.errors as [string, number, string][]) {
  test(`the filter ${JSON.stringify(text)} is refused at ${position}`, () => {
    assert.throws(
      () => parseFilter(text),
      (error) => error instanceof InvalidFilter && error.position === position && error.message.includes(why),
    );
  });
}

test("a text is found where it is, also after letters whose folded form is longer", () => {
  const text = "ß😀 Straße STRASSE İx ﬁn";
  const found = (wanted: string) => placesOf(text, folded(wanted)).map(([start, stop]) => text.slice(start, stop));
  assert.deepEqual(found("strasse"), ["Straße", "STRASSE"]);
  assert.deepEqual(found("😀"), ["😀"]);
  assert.deepEqual(found("X"), ["x"]);
  assert.deepEqual(found("FI"), ["ﬁ"]);
  assert.deepEqual(found("nothing"), []);
});
