// Text of a record, shown as data: what controls a terminal, reorders text or is invisible is shown by its code.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { folded, placesOf } from "./folding";

// The same characters as in envsdk/_visible.py.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

export function codeOf(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  const digits = code.toString(16);
  return code < 0x100 ? `\\x${digits.padStart(2, "0")}` : code < 0x10000 ? `\\u${digits.padStart(4, "0")}` : `\\u{${digits}}`;
}

/** Return a text with each hidden character as its code, for places that take only plain text. */
export const visible = (text: string) => text.replace(HIDDEN, codeOf);

/** A text with hidden characters marked, and with what was searched for highlighted. */
export function Visible({ text, search = "" }: { text: string; search?: string }) {
  const parts: ComponentChildren[] = [];
  let at = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > at) parts.push(marked(text.slice(at, found.index), search));
    parts.push(<span class="hidden-character">{codeOf(found[0])}</span>);
    at = found.index + found[0].length;
  }
  parts.push(marked(at ? text.slice(at) : text, search));
  return <>{parts}</>;
}

function marked(text: string, search: string): ComponentChildren {
  if (!search) return text;
  const parts: ComponentChildren[] = [];
  let at = 0;
  for (const [start, stop] of placesOf(text, folded(search))) {
    if (start > at) parts.push(text.slice(at, start));
    parts.push(<mark>{text.slice(start, stop)}</mark>);
    at = stop;
  }
  parts.push(text.slice(at));
  return parts;
}

const MOST_CHARACTERS = 6000;

/** A block of text with its line breaks; of a long one, the beginning, and a button for the rest. */
export function Block({ text, search = "", mono = false }: { text: string; search?: string; mono?: boolean }) {
  const [isWhole, setWhole] = useState(false);
  const isLong = text.length > MOST_CHARACTERS && !isWhole && !search;
  return (
    <>
      <div class={mono ? "text mono" : "text"}>
        <Visible text={isLong ? text.slice(0, MOST_CHARACTERS) : text} search={search} />
      </div>
      {isLong && (
        <button type="button" class="more" onClick={() => setWhole(true)}>
          Show all {number(text.length)} characters
        </button>
      )}
    </>
  );
}

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const number = (value: number) => GROUPED.format(value);

export function decimal(value: number, digits = 3): string {
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 10 ** -digits)) return value.toExponential(1);
  return value.toFixed(digits);
}

/** A number in few characters: 0.5, not 0.500. */
export function short(value: number): string {
  return Number.isInteger(value) ? number(value) : String(Number(value.toPrecision(4)));
}

export const plural = (count: number, noun: string) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export function asText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
