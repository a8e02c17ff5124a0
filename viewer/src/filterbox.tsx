// The input of a filter: what is wrong with it is shown below, with its position.

import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { InvalidFilter } from "./filters";

interface Props {
  input: RefObject<HTMLInputElement | null>;
  value: string;
  problem: InvalidFilter | null;
  onChange: (value: string) => void;
  onLeave: () => void;
}

const PAUSE_MS = 120;

export function FilterBox({ input, value, problem, onChange, onLeave }: Props) {
  const [text, setText] = useState(value);
  useEffect(() => {
    if (document.activeElement !== input.current) setText(value);
  }, [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => onChange(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const wrong = problem && text === value ? problem : null;
  return (
    <div class="filter">
      <input
        ref={input}
        type="search"
        aria-label="Filter"
        aria-invalid={wrong !== null}
        aria-describedby="filter-problem"
        spellcheck={false}
        autocomplete="off"
        placeholder='Filter: reward<0.5 break:summary status:error text:"in the contents" words'
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape" || event.key === "Enter") {
            onChange(text);
            event.currentTarget.blur();
            onLeave();
            event.stopPropagation();
          }
        }}
      />
      <p id="filter-problem" class="problem" role="status">
        {wrong && (
          <>
            <code>{text.slice(wrong.position, wrong.position + wrong.length)}</code> {wrong.message}
          </>
        )}
      </p>
    </div>
  );
}
