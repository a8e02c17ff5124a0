// What is searched in an episode, and where a text was found: envsdk/viewer/_contents.py has the same rules.

import { folded, placesOf } from "./folding";
import { asText } from "./text";
import type { Episode, Hit, Message } from "./types";

const [BEFORE, AFTER, MOST_FOUND] = [40, 90, 90]; // characters

/** The texts of a message that are searched, each with the part that it is. */
export function textsOf(message: Pick<Message, "role" | "content" | "reasoning" | "calls" | "errors">): [part: string, text: string][] {
  const found: [string, string | null][] = [
    ["reasoning", message.reasoning],
    [message.role === "tool" ? "result" : "text", message.content],
  ];
  for (const call of message.calls) {
    found.push(["call", call.name]);
    const given = call.arguments;
    if (given !== null && typeof given === "object" && !Array.isArray(given)) {
      for (const [name, value] of Object.entries(given)) found.push(["call", name], ["call", asText(value)]);
    } else if (given !== null && given !== undefined) found.push(["call", asText(given)]);
    found.push(["error", call.error]);
  }
  for (const error of message.errors) found.push(["error", error]);
  return found.filter((one): one is [string, string] => Boolean(one[1]));
}

/** Return the messages in which any of several texts occurs, in the order of the contexts. */
export function hitsOf(episode: Episode, wanted: string[]): Hit[] {
  if (!wanted.length) return [];
  return episode.contexts.flatMap((context) =>
    context.messages.flatMap((message, index): Hit[] => {
      const place = message.is_inherited ? null : firstPlace(textsOf(message), wanted);
      if (!place) return [];
      const { part, text, start, stop } = place;
      return [
        {
          ...{ context: context.name, message: index, step: stepOf(episode, context.name, index), role: message.role, part },
          before: shown(text.slice(Math.max(0, start - BEFORE), start), start > BEFORE, false),
          found: shown(text.slice(start, Math.min(stop, start + MOST_FOUND)), false, stop - start > MOST_FOUND),
          after: shown(text.slice(stop, stop + AFTER), false, text.length - stop > AFTER),
        },
      ];
    }),
  );
}

function firstPlace(texts: [string, string][], wanted: string[]): { part: string; text: string; start: number; stop: number } | null {
  for (const [part, text] of texts) {
    for (const one of wanted) {
      const place = placesOf(text, one, 1)[0];
      if (place) return { part, text, start: place[0], stop: place[1] };
    }
  }
  return null;
}

const shown = (text: string, isCutBefore: boolean, isCutAfter: boolean) =>
  `${isCutBefore ? "…" : ""}${text.replace(/\s+/g, " ")}${isCutAfter ? "…" : ""}`;

/** The index of the step that wrote a message, or else was the first to observe it. */
function stepOf(episode: Episode, context: string, message: number): number | null {
  const own = episode.steps.filter((step) => step.context === context);
  const known = own.find((step) => step.reply === null || step.reply >= message) ?? own.at(-1);
  return known?.index ?? null;
}

export const contains = (episode: Episode, value: string) =>
  episode.contexts.some((context) => context.messages.some((message) => textsOf(message).some(([, text]) => folded(text).includes(value))));
