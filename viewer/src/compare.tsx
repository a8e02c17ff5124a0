// Episodes side by side, message by message, and where they diverge; and two runs, task by task.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type RunRows, episodeOf, store, tokensOf } from "./data";
import { Content } from "./image";
import { useKeys } from "./keys";
import { Breaks, Reward, Status, groupsOf, mean, outcomeOf, rewardsOf } from "./list";
import { change, go, linkTo, numberOf } from "./router";
import { Block, asText, decimal, number, plural, short, visible } from "./text";
import type { Context, Episode, Message, EpisodeRow } from "./types";
import { Rows, reveal, useSeen, useWidth } from "./virtual";

interface Column {
  run: number;
  line: number;
  episode: Episode;
  context: Context | undefined;
}

type Loaded = { columns: Omit<Column, "context">[]; error: string | null } | null;

export function Compare({ query }: { query: Record<string, string> }) {
  const [loaded, setLoaded] = useState<Loaded>(null);
  const given = query.e ?? "";
  useEffect(() => {
    let isCurrent = true;
    const wanted = given.split(",").filter(Boolean).slice(0, 8);
    const places = wanted.map((one) => one.split(".").map(Number) as [number, number]);
    Promise.all(places.map(([run, line]) => episodeOf(run, line))).then(
      (episodes) => isCurrent && setLoaded({ columns: episodes.map((episode, at) => ({ run: places[at]![0], line: places[at]![1], episode })), error: null }),
      (error: Error) => isCurrent && setLoaded({ columns: [], error: error.message }),
    );
    return () => {
      isCurrent = false;
    };
  }, [given]);
  useKeys([{ keys: ["Escape", "u"], what: "Back to the list", run: () => go(linkTo(["run", loaded?.columns[0]?.run ?? 0])) }]);
  if (!loaded) return <p class="page-message faint">Reading…</p>;
  if (loaded.error) return <p class="page-message error-box">{visible(loaded.error)}</p>;
  if (!loaded.columns.length) return <p class="page-message">No episode was chosen. Group the list by task, and open a group.</p>;
  return <Columns given={loaded.columns} query={query} />;
}

const textOf = (message: Message | undefined) =>
  message &&
  JSON.stringify([message.role, message.content, message.parts, message.reasoning, message.calls.map((call) => [call.name, call.arguments])]);

const differs = (columns: { context: Context | undefined }[], index: number) =>
  new Set(columns.map((column) => textOf(column.context?.messages[index]))).size > 1;

/** Return the index of the first message that is not the same in all columns; null if all are the same. */
export function divergence(columns: { context: Context | undefined }[]): number | null {
  const longest = Math.max(...columns.map((column) => column.context?.messages.length ?? 0));
  for (let index = 0; index < longest; index++) {
    if (differs(columns, index)) return index;
  }
  return null;
}

function Columns({ given, query }: { given: Omit<Column, "context">[]; query: Record<string, string> }) {
  const names = [...new Set(given.flatMap((column) => column.episode.contexts.map((own) => own.name)))];
  const name = query.context && names.includes(query.context) ? query.context : undefined;
  const columns: Column[] = given.map((column) => ({
    ...column,
    context: column.episode.contexts.find((own) => own.name === (name ?? column.episode.contexts[0]?.name)),
  }));
  const diverges = useMemo(() => divergence(columns), [given, name]);
  const longest = Math.max(...columns.map((column) => column.context?.messages.length ?? 0));
  const scale = scaleOf(columns.map((column) => column.episode.reward).filter((reward) => reward !== null));
  const [showsEqual, setShowsEqual] = useState(false);
  const equal = diverges ?? longest;
  const hidden = showsEqual || equal <= 2 ? 0 : equal - 1;
  const box = useRef<HTMLDivElement>(null);
  useKeys([
    { keys: ["e"], what: "Show or hide equal messages", run: () => setShowsEqual(!showsEqual) },
    { keys: ["d"], what: "Where they diverge", run: () => document.getElementById(`m${diverges}`)?.scrollIntoView({ block: "start" }) },
  ]);
  const template = `repeat(${columns.length}, minmax(300px, 1fr))`;
  return (
    <div class="compare">
      <header class="episode-head">
        <div class="title">
          <h1>{plural(columns.length, "episode")} side by side</h1>
          <span class="faint">
            {columns.length < 2
              ? "the only one of its task"
              : diverges === null
                ? "all messages are the same"
                : `${plural(diverges, "equal message")} first`}
          </span>
          {columns.length === 2 && <TokenDivergence columns={columns} />}
        </div>
        {names.length > 1 && (
          <label class="tools">
            Context{" "}
            <select value={name ?? names[0]} onChange={(event) => change({ context: event.currentTarget.value })}>
              {names.map((own) => (
                <option value={own}>{visible(own)}</option>
              ))}
            </select>
          </label>
        )}
      </header>
      <div class="compare-box" ref={box} tabIndex={0} role="region" aria-label="Episodes side by side">
        <div class="compare-row heads" style={{ gridTemplateColumns: template }}>
          {columns.map((column) => (
            <Head column={column} first={columns[0]!} scale={scale} />
          ))}
        </div>
        {hidden > 0 && (
          <button type="button" class="equal-note" onClick={() => setShowsEqual(true)}>
            {plural(hidden, "equal message")} not shown
          </button>
        )}
        {Array.from({ length: longest - hidden }, (_, at) => at + hidden).map((index) => (
          <div key={index} id={`m${index}`} class={`compare-row ${differs(columns, index) ? "differs" : ""}`} style={{ gridTemplateColumns: template }}>
            {index === diverges && columns.length > 1 && <p class="diverge-mark">They diverge here</p>}
            {columns.map((column) => (
              <Cell message={column.context?.messages[index]} column={column} />
            ))}
          </div>
        ))}
      </div>
    </div>
  );
}

/** The ends of the bars of rewards: of all that are shown, with zero. */
const scaleOf = (rewards: number[]) => ({ low: rewards.reduce((a, b) => Math.min(a, b), 0), high: rewards.reduce((a, b) => Math.max(a, b), 0) || 1 });

function Head({ column, first, scale }: { column: Column; first: Column; scale: { low: number; high: number } }) {
  const { episode, run, line } = column;
  const breaks: Record<string, number> = {};
  for (const step of episode.steps) if (step.break) breaks[step.break.reason] = (breaks[step.break.reason] ?? 0) + 1;
  const than = (value: number | null, other: number | null) =>
    column === first || value === other || value === null || other === null ? null : <span class="faint"> {value > other ? "+" : "−"}{short(Math.abs(value - other))}</span>;
  return (
    <div class="compare-head">
      <h2>
        <a href={linkTo(["run", run, line])}>{visible(episode.id)}</a>
      </h2>
      {store.runs.length > 1 && <p class="faint">{visible(store.runs[run]?.info.name ?? "")}</p>}
      <p>
        <Status row={episode} /> <Reward value={episode.reward} {...scale} because={episode.not_scored} /> {than(episode.reward, first.episode.reward)}
      </p>
      <p>
        {plural(episode.steps.length, "step")}
        {than(episode.steps.length, first.episode.steps.length)} · {number(episode.observed_tokens)} observed · {number(episode.sampled_tokens)} sampled
        {than(episode.sampled_tokens, first.episode.sampled_tokens)}
      </p>
      <p class="breaks">
        <Breaks breaks={breaks} />
      </p>
    </div>
  );
}

function Cell({ message, column }: { message: Message | undefined; column: Column }) {
  if (!message) return <div class="compare-cell none" />;
  const steps = message.steps.map((at) => column.episode.steps[at]!);
  return (
    <div class={`compare-cell message ${message.role}`}>
      <header>
        <span class="role">{visible(message.role === "tool" && message.name ? `tool ${message.name}` : message.role)}</span>
        {steps.map((step) => (
          <a href={linkTo(["run", column.run, column.line], { step: numberOf(step), context: step.context })}>
            step {numberOf(step)}
            {step.reward ? `, ${short(step.reward)}` : ""}
          </a>
        ))}
      </header>
      {message.reasoning?.trim() && (
        <details class="reasoning">
          <summary>
            <span class="label">reasoning</span>
            <span class="preview">{visible(message.reasoning.trim().slice(0, 80))}</span>
          </summary>
          <Block text={message.reasoning} />
        </details>
      )}
      <Content run={column.run} line={column.line} episode={column.episode} message={message} />
      {message.calls.map((call) => (
        <p class="compare-call">
          <code>{visible(call.name)}</code> <span class="mono">{visible(asText(call.arguments))}</span>
        </p>
      ))}
      {message.errors.map((error) => (
        <p class="error-box">{visible(error)}</p>
      ))}
    </div>
  );
}

function TokenDivergence({ columns }: { columns: Column[] }) {
  const [found, setFound] = useState<ComponentChildren>(null);
  const [one, other] = columns as [Column, Column];
  useEffect(() => {
    let isCurrent = true;
    if (!one.context || !other.context || one.episode.tokenizer !== other.episode.tokenizer) return;
    const wanted = columns.map((column) => tokensOf(column.run, column.line, column.context!.name));
    void Promise.all(wanted).then(([a, b]) => {
      const length = Math.min(a!.ids.length, b!.ids.length);
      let at = 0;
      while (at < length && a!.ids[at] === b!.ids[at]) at++;
      if (!isCurrent) return;
      const link = (column: Column, name: string) => (
        <a href={linkTo(["run", column.run, column.line], { view: "tokens", context: column.context!.name, at: Math.min(at, length - 1) })}>{name}</a>
      );
      setFound(
        <span class="faint">
          first different token: {number(at)} ({link(one, "first")}, {link(other, "second")})
        </span>,
      );
    });
    return () => {
      isCurrent = false;
    };
  }, [one.context, other.context]);
  return <>{found}</>;
}

interface Pair {
  key: string;
  task: string;
  rows: [EpisodeRow[], EpisodeRow[]]; // of each run
}

const ROW = 30;
const WIDE = 700; // pixels

/** The tasks of two runs: those that both have come first, since they have a difference. */
function pairsOf(first: RunRows, second: RunRows): Pair[] {
  const found = new Map<string, Pair>();
  [first, second].forEach((state, run) => {
    for (const group of groupsOf(state.rows.filter((row) => row.status !== "damaged"))) {
      const pair = found.get(group.key) ?? { key: group.key, task: group.rows[0]!.task, rows: [[], []] };
      pair.rows[run] = group.rows;
      found.set(group.key, pair);
    }
  });
  return [...found.values()].sort((a, b) => Number(isInBoth(b)) - Number(isInBoth(a)));
}

const isInBoth = (pair: Pair) => pair.rows.every((rows) => rows.length > 0);

/** The two runs that share most tasks. */
function likeliest(runs: RunRows[]): [number, number] {
  const keys = runs.map((state) => new Set(groupsOf(state.rows.filter((row) => row.status !== "damaged")).map((group) => group.key)));
  let [best, most]: [[number, number], number] = [[0, 1], -1];
  keys.forEach((own, first) =>
    keys.slice(first + 1).forEach((other, at) => {
      const shared = [...own].filter((key) => other.has(key)).length;
      if (shared > most) [best, most] = [[first, first + 1 + at], shared];
    }),
  );
  return best;
}

/** Two runs, task by task: which two, the address says. */
export function Runs({ runs, query }: { runs: RunRows[]; query: Record<string, string> }) {
  const box = useRef<HTMLDivElement>(null);
  const isWide = useWidth(box) >= WIDE;
  const isByDifference = query.sort === "difference";
  const rowCount = runs.reduce((sum, state) => sum + state.rows.length, 0);
  const guessed = useMemo(() => likeliest(runs), [rowCount]);
  const chosen = (given: string | undefined, guess: number) => (given !== undefined && runs[Number(given)] ? Number(given) : guess);
  const [first, second] = [chosen(query.first, guessed[0]), chosen(query.second, guessed[1])];
  const pairs = useMemo(() => {
    const all = pairsOf(runs[first]!, runs[second]!);
    return isByDifference ? all.sort((a, b) => (differenceOf(a, rewardsOf) ?? Infinity) - (differenceOf(b, rewardsOf) ?? Infinity)) : all;
  }, [first, second, rowCount, isByDifference]);
  const seen = useSeen(box, pairs.length, ROW, ROW);
  const selected = Math.min(Math.max(0, Number(query.at ?? 0)), Math.max(0, pairs.length - 1));
  const open = (pair: Pair | undefined) => {
    const ids = pair?.rows.flatMap((rows, at) => rows.slice(0, 1).map((row) => `${at ? second : first}.${row.line}`));
    if (ids?.length) go(linkTo(["compare"], { e: ids.join(",") }));
  };
  const select = (index: number) => change({ at: Math.min(Math.max(0, index), pairs.length - 1) });
  useEffect(() => reveal(box.current, selected, ROW, ROW), [selected]);
  useEffect(() => {
    if (document.activeElement?.closest(".top")) box.current?.focus();
  }, []);
  useKeys([
    { keys: ["ArrowDown", "j"], what: "Next task", run: () => select(selected + 1) },
    { keys: ["ArrowUp", "k"], what: "Previous task", run: () => select(selected - 1) },
    { keys: ["Enter", "o"], what: "Open the episodes side by side", run: () => open(pairs[selected]) },
    { keys: ["Escape", "u"], what: "Back to the list", run: () => go(linkTo(["run", first])) },
  ]);
  const differences: [string, (rows: EpisodeRow[]) => number[]][] = [
    ["Reward", rewardsOf],
    ["Steps", (rows) => rows.map((row) => row.steps)],
    ["Sampled", (rows) => rows.map((row) => row.sampled_tokens)],
  ];
  const shown = differences.slice(0, isWide ? 3 : 1);
  const template = isWide ? `minmax(150px, 1fr) minmax(120px, 1.6fr) repeat(2, 140px) repeat(3, 84px)` : `minmax(80px, 1fr) repeat(2, 64px) 74px`;
  const both = pairs.filter(isInBoth);
  const scale = useMemo(() => scaleOf(pairs.flatMap((pair) => pair.rows.map(rewardsOf).filter((own) => own.length).map(mean))), [pairs]);
  const names = runs.map((state) => visible(state.info.name));
  return (
    <div class="list">
      <h1 class="unseen">Two runs, task by task</h1>
      <div class="bar-row">
        {([["first", first], ["second", second]] as const).map(([which, at]) => (
          <label class="choice">
            {which === "first" ? "First" : "Second"}
            <select value={at} onChange={(event) => change({ [which]: event.currentTarget.value, at: undefined })}>
              {names.map((name, index) => (
                <option value={index}>{name}</option>
              ))}
            </select>
          </label>
        ))}
        <button type="button" aria-pressed={isByDifference} onClick={() => change({ sort: isByDifference ? undefined : "difference" })}>
          Largest loss first
        </button>
        <p class="figures">
          <b>{number(both.length)}</b> {both.length === 1 ? "task" : "tasks"} in both
          {pairs.length > both.length && <span class="faint">, {number(pairs.length - both.length)} in one of them</span>}
          {both.length > 0 && (
            <>
              <span class="dot" />
              mean of second less first: reward <Change of={meanDifference(both, rewardsOf)} isOutcome />
            </>
          )}
        </p>
      </div>
      <div ref={box} class="table" role="grid" tabIndex={0} aria-label="Tasks of two runs" aria-rowcount={pairs.length + 1} aria-activedescendant={selected >= seen.first && selected < seen.stop ? `row-${selected}` : undefined}>
        <div class="tr th" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
          {isWide && <div role="columnheader">Group</div>}
          <div role="columnheader">Task</div>
          {[first, second].map((at) => (
            <div role="columnheader" class="num">
              {names[at]}
            </div>
          ))}
          {shown.map(([name]) => (
            <div role="columnheader" class="num" title="Second less first, of the means of a task's episodes">
              Δ {name.toLowerCase()}
            </div>
          ))}
        </div>
        <Rows seen={seen} count={pairs.length} height={ROW} depends={[pairs, selected, isWide]}>
          {(index) => {
            const pair = pairs[index]!;
            return (
              <div key={pair.key} id={`row-${index}`} role="row" aria-rowindex={index + 2} aria-selected={index === selected} class={`tr ${index === selected ? "selected" : ""}`} style={{ gridTemplateColumns: template }} onClick={() => open(pair)}>
                {isWide && <div role="gridcell">{visible(pair.key)}</div>}
                <div role="gridcell">{visible(pair.task)}</div>
                {pair.rows.map((rows) => {
                  const rewards = rewardsOf(rows);
                  const value = rewards.length ? mean(rewards) : null;
                  return (
                    <div role="gridcell" class="num">
                      {value === null || isWide ? <Reward value={value} {...scale} /> : <b class={outcomeOf(value)}>{decimal(value)}</b>}
                    </div>
                  );
                })}
                {shown.map(([name, valuesOf]) => (
                  <div role="gridcell" class="num">
                    <Change of={differenceOf(pair, valuesOf)} isOutcome={name === "Reward"} />
                  </div>
                ))}
              </div>
            );
          }}
        </Rows>
      </div>
    </div>
  );
}

/** A difference with its sign. One of a reward has the color of an outcome. */
function Change({ of, isOutcome = false }: { of: number | null; isOutcome?: boolean }) {
  if (of === null) return <span class="faint">–</span>;
  const text = isOutcome ? decimal(Math.abs(of)) : short(Number(Math.abs(of).toFixed(1)));
  return <span class={!of ? "faint" : isOutcome ? outcomeOf(of) : ""}>{`${of > 0 ? "+" : of < 0 ? "−" : ""}${text}`}</span>;
}

/** The mean of a task's episodes in the second run, less that in the first one; null if one of them does not have it. */
function differenceOf(pair: Pair, valuesOf: (rows: EpisodeRow[]) => number[]): number | null {
  const [first, second] = pair.rows.map(valuesOf) as [number[], number[]];
  return first.length && second.length ? mean(second) - mean(first) : null;
}

function meanDifference(pairs: Pair[], valuesOf: (rows: EpisodeRow[]) => number[]): number | null {
  const found = pairs.map((pair) => differenceOf(pair, valuesOf)).filter((one): one is number => one !== null);
  return found.length ? mean(found) : null;
}
