// The frame of the page: the runs, the theme, the help, and the view that the address names.

import { render } from "preact";
import { useEffect, useLayoutEffect, useReducer, useState } from "preact/hooks";
import { Compare, Runs } from "./compare";
import { type RunRows, isEmbedded, load, store, subscribe } from "./data";
import { Dialog } from "./dialog";
import { EpisodePage } from "./episode";
import { keysNow, useKeys } from "./keys";
import { List } from "./list";
import { go, linkTo, usePlace } from "./router";
import { number, visible } from "./text";
import "./palette.css";
import "./style.css";

type Theme = "light" | "dark";
const THEME = "envsdk-theme";

function storedTheme(): Theme {
  let stored: string | null = null;
  try {
    stored = localStorage.getItem(THEME);
  } catch {
    // a page from file:// may have no storage
  }
  if (stored === "light" || stored === "dark") return stored;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(storedTheme);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  const toggle = () => {
    const next = theme === "dark" ? "light" : "dark";
    setTheme(next);
    try {
      localStorage.setItem(THEME, next);
    } catch {
      // then it lasts until the page is closed
    }
  };
  return [theme, toggle];
}

const NAMED: Record<string, string> = {
  ...{ ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Escape: "Esc", Enter: "Enter", PageDown: "PgDn", PageUp: "PgUp" },
};

function Help({ onClose }: { onClose: () => void }) {
  const [keys] = useState(keysNow);
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl>
        {keys.map((key) => (
          <>
            <dt>
              {key.keys.map((name) => (
                <kbd>{NAMED[name] ?? name}</kbd>
              ))}
            </dt>
            <dd>{key.what}</dd>
          </>
        ))}
      </dl>
      <h3>Filter</h3>
      <p>
        <code>reward&lt;0.5 break:summary role:researcher -status:error text:"refund policy" word "two words"</code>
      </p>
      <p>
        All terms hold; <code>-</code> negates. Numbers: reward, reward.NAME, metric.NAME, break.REASON, steps, breaks, contexts, tokens, observed, sampled,
        errors, duration, seed, version, line, with &lt; &lt;= &gt; &gt;= = !=. Names: status, stop, break, role, by (environment, policy or infrastructure). Texts: id,
        task, group, env, error, and text, which is what messages, reasoning, calls and results contain. Several values: <code>status:error,truncated</code>.
      </p>
      <h3>Colors</h3>
      <p>
        Orange was sampled, blue was observed, gray was kept. A line below tokens: trained. Hatched: dropped by a break. A reward above zero is green, others are
        purple. Red is only for trouble: errors, failed episodes, damaged lines.
      </p>
    </Dialog>
  );
}

function RunState({ state }: { state: RunRows }) {
  if (state.error) return <span class="trouble">{visible(state.error)}</span>;
  const facts = [state.info.env, state.info.policy, state.info.model, state.info.history].filter(Boolean);
  return (
    <>
      {facts.map((fact) => (
        <span>{visible(fact)}</span>
      ))}
      {state.isComplete === false && <span class={store.follow ? "live" : "warn"}>{store.follow ? "following" : "not complete"}</span>}
      {state.unreadBytes > 0 && (
        <span class="warn" title="The last line has no end yet: it is being written, or it was cut off.">
          {number(state.unreadBytes)} bytes without a line end
        </span>
      )}
    </>
  );
}

function App() {
  const [, update] = useReducer((count: number) => count + 1, 0);
  const place = usePlace();
  const [theme, toggle] = useTheme();
  const [isHelp, setHelp] = useState(false);
  useLayoutEffect(() => subscribe(() => update(null)), []); // before anything is painted, since data may come earlier
  useKeys([
    { keys: ["?"], what: "This help", run: () => setHelp(true) },
    { keys: ["D"], what: "Dark or light", run: toggle },
  ]);
  const [view, first, second] = place.path;
  const run = view === "run" ? Number(first ?? 0) : 0;
  const state = store.runs[run];
  const line = view === "run" && second !== undefined ? Number(second) : null;
  const only = isEmbedded && store.runs.length === 1 && state?.rows.length === 1 && !state.isReading ? state.rows[0]!.line : null;
  useEffect(() => {
    if (only !== null && !location.hash) go(linkTo(["run", 0, only]), true); // a file of one episode opens it
  }, [only]);
  useEffect(() => {
    document.title = [line === null ? "" : `${line}`, state?.info.name ?? "", "envsdk"].filter(Boolean).join(" · ");
  }, [line, state?.info.name]);
  return (
    <>
      <header class="top">
        <a class="brand" href={linkTo(["run", 0])} aria-label="envsdk: list of episodes">
          <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
            <path d="M3 2v12M3 6h5v6M8 9h5v5" fill="none" stroke="currentColor" stroke-width="2" />
          </svg>
        </a>
        <nav class="runs" aria-label="Runs">
          {store.runs.map((own, index) => (
            <a href={linkTo(["run", index])} aria-current={view !== "compare" && view !== "runs" && index === run ? "page" : undefined} title={visible(own.info.path)}>
              {visible(own.info.name)} <span class="faint">{number(own.rows.length)}</span>
            </a>
          ))}
          {store.runs.length > 1 && (
            <a href={linkTo(["runs"])} aria-current={view === "runs" ? "page" : undefined}>
              Compare
            </a>
          )}
        </nav>
        <p class="run-facts">{state && view !== "compare" && view !== "runs" && <RunState state={state} />}</p>
        <button type="button" class="quiet" onClick={toggle} aria-label={theme === "dark" ? "Light theme" : "Dark theme"} title="Dark or light (D)">
          {theme === "dark" ? "☀" : "☾"}
        </button>
        <button type="button" class="quiet" onClick={() => setHelp(true)} aria-label="Keys and filter" title="Keys and filter (?)">
          ?
        </button>
      </header>
      <main>{content()}</main>
      {isHelp && <Help onClose={() => setHelp(false)} />}
    </>
  );

  function content() {
    if (store.error) return <p class="page-message error-box">{visible(store.error)}</p>;
    if (!store.isLoaded) return <p class="page-message faint">Reading…</p>;
    if (view === "compare") return <Compare query={place.query} />;
    if (view === "runs") return <Runs runs={store.runs} query={place.query} />;
    if (!state) return <p class="page-message">There is no run {run}.</p>;
    if (line !== null) return <EpisodePage state={state} run={run} line={line} query={place.query} />;
    return <List key={run} state={state} run={run} query={place.query} />;
  }
}

document.documentElement.dataset.theme = storedTheme();
document.documentElement.dataset.source = isEmbedded ? "page" : "server";
render(<App />, document.getElementById("app")!);
void load();
