// Images: in messages, between texts, and at their tokens. An image is known by its hash.

import { useEffect, useState } from "preact/hooks";
import { imageUrlOf } from "./data";
import { Block, number, plural, visible } from "./text";
import type { Episode, ImageFacts, Message } from "./types";

const HASH_CHARACTERS = 12;

/** Where the images of an episode are found. */
export interface Place {
  run: number;
  line: number;
  episode: Episode;
}

export const sizeOf = (facts: ImageFacts) => `${number(facts.width)} × ${number(facts.height)}`;

export function nameOf(sha256: string, facts: ImageFacts): string {
  const tokens = facts.tokens === null ? [] : [plural(facts.tokens, "token")];
  const kind = facts.media_type.replace("image/", "").toUpperCase();
  return [`${sizeOf(facts)} ${kind}`, ...tokens, sha256.slice(0, HASH_CHARACTERS)].join(" · ");
}

/** The image itself, or why it cannot be shown. */
export function Pixels({ run, line, episode, sha256, row }: Place & { sha256: string; row?: number }) {
  const [url, setUrl] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    let isCurrent = true;
    setProblem(null);
    imageUrlOf(run, line, sha256).then(
      (found) => isCurrent && setUrl(found),
      (error: Error) => isCurrent && setProblem(error.message),
    );
    return () => {
      isCurrent = false;
    };
  }, [run, line, sha256]);
  if (problem) return <span class="image-missing">{visible(problem)}</span>;
  if (!url) return null;
  const facts = episode.images[sha256]!;
  return (
    <img
      src={url}
      alt={row ? "" : `Image, ${sizeOf(facts)}`}
      width={facts.width}
      height={facts.height}
      decoding="async"
      style={{ marginTop: row ? `${-22 * row}px` : "" }}
      onError={() => setProblem("The file of the image is missing or damaged.")}
    />
  );
}

/** An image of a message: small at first, and as large as the window allows after a click. */
export function Picture({ sha256, ...place }: Place & { sha256: string }) {
  const [isLarge, setLarge] = useState(false);
  const facts = place.episode.images[sha256]!;
  return (
    <figure class={`picture ${isLarge ? "large" : ""}`}>
      <button type="button" aria-pressed={isLarge} title={`media/${facts.file}`} onClick={() => setLarge(!isLarge)}>
        <Pixels {...place} sha256={sha256} />
      </button>
      <figcaption class="faint">{nameOf(sha256, facts)}</figcaption>
    </figure>
  );
}

/** The content of a message: its text, or its parts. */
export function Content({ message, search = "", ...place }: Place & { message: Message; search?: string }) {
  if (!message.parts) return message.content === "" ? null : <Block text={message.content} search={search} />;
  return (
    <>
      {message.parts.map((part, at) =>
        "image" in part ? <Picture key={at} {...place} sha256={part.image} /> : part.text && <Block key={at} text={part.text} search={search} />,
      )}
    </>
  );
}
