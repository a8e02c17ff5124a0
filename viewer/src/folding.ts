// Texts without regard to case, in any script: what envsdk/viewer/_contents.py does with str.casefold.

/** Return a character without its case: ß and ẞ are ss, and all sigmas are one. */
const foldedCharacter = (character: string) => (character === "ı" ? character : character.toLowerCase().toUpperCase().toLowerCase());

const isAscii = (text: string) => /^[\u0000-\u007f]*$/.test(text);

export function folded(text: string): string {
  if (isAscii(text)) return text.toLowerCase();
  let whole = "";
  for (const character of text) whole += foldedCharacter(character);
  return whole;
}

export type Place = [start: number, stop: number];

/** Return the places of a text, given as `folded` returns it, in another one. They do not overlap. */
export function placesOf(text: string, wanted: string, most = Infinity): Place[] {
  const whole = folded(text);
  const found: Place[] = [];
  if (!wanted) return found;
  let starts: number[] | null = null; // of each unit of the folded text, where its character begins, and at last the end
  for (let at = whole.indexOf(wanted); at >= 0 && found.length < most; at = whole.indexOf(wanted, at + wanted.length)) {
    if (isAscii(text)) {
      found.push([at, at + wanted.length]);
      continue;
    }
    starts ??= startsOf(text);
    const last = starts[at + wanted.length - 1]!;
    const start = starts[at]!;
    const stop = last + (text.codePointAt(last)! > 0xffff ? 2 : 1);
    if (start >= (found.at(-1)?.[1] ?? 0)) found.push([start, stop]);
  }
  return found;
}

function startsOf(text: string): number[] {
  const starts: number[] = [];
  let at = 0;
  for (const character of text) {
    for (let unit = foldedCharacter(character).length; unit > 0; unit--) starts.push(at);
    at += character.length;
  }
  return starts;
}
