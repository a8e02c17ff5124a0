// How someone else sees an episode: its address, and the command that writes it into one file.

import { useState } from "preact/hooks";
import { isEmbedded, store } from "./data";
import { Dialog } from "./dialog";
import { visible } from "./text";

export function Share({ run, line, onClose }: { run: number; line: number; onClose: () => void }) {
  const path = store.runs[run]?.info.path ?? "RUN";
  const quoted = /^[\w./:@%+=-]+$/.test(path) ? path : `'${path.replaceAll("'", `'\\''`)}'`;
  return (
    <Dialog title="Share this episode" onClose={onClose}>
      <h3>As one file</h3>
      <p>This command writes the episode, with all its tokens, into a file that opens in any browser without a server:</p>
      <Copied text={`envsdk view ${quoted} --html episode-${line}.html --filter line=${line}`} />
      <h3>As a link</h3>
      <p>
        {isEmbedded
          ? "It leads to this place for whoever has this file at this path."
          : "It leads to this place on this machine while envsdk view runs. With --port, the address is the same the next time."}
      </p>
      <Copied text={location.href} />
    </Dialog>
  );
}

function Copied({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  return (
    <p class="copied">
      <code>{visible(text)}</code>
      <button type="button" onClick={() => void navigator.clipboard.writeText(text).then(() => setCopied(true))}>
        {isCopied ? "Copied" : "Copy"}
      </button>
    </p>
  );
}
