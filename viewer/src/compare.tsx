// Episodes side by side, message by message, and where they diverge; and two runs, task by task.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type RunRows, episodeOf, store, tokensOf } from "./data";
import { Content } from "./image";
import { useKeys } from "./keys";
import { Breaks, Reward, Status, groupsOf, mean, rewardsOf } from "./list";
import { change, go, linkTo, numberOf } from "./router";
import { Block, asText, decimal, number, plural, short, visible } from "./text";
import type { Context, Episode, Message, EpisodeRow } from "./types";
import { Rows, reveal, useSeen } from "./virtual";

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
            <Head column={column} first={columns[0]!} />
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

function Head({ column, first }: { column: Column; first: Column }) {
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
        <Status row={episode} /> <Reward value={episode.reward} because={episode.not_scored} /> {than(episode.reward, first.episode.reward)}
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
  rows: EpisodeRow[][]; // of each run
}

const ROW = 30;

/** The runs, task by task. */
export function Runs({ runs, query }: { runs: RunRows[]; query: Record<string, string> }) {
  const box = useRef<HTMLDivElement>(null);
  const isByDifference = query.sort === "difference";
  const pairs = useMemo(() => {
    const found = new Map<string, Pair>();
    runs.forEach((state, run) => {
      for (const group of groupsOf(state.rows.filter((row) => row.status !== "damaged"))) {
        const pair = found.get(group.key) ?? { key: group.key, task: group.rows[0]!.task, rows: runs.map(() => []) };
        pair.rows[run] = group.rows;
        found.set(group.key, pair);
      }
    });
    const all = [...found.values()];
    return isByDifference ? all.sort((a, b) => (differenceOf(a) ?? Infinity) - (differenceOf(b) ?? Infinity)) : all;
  }, [runs.map((state) => state.rows).reduce((sum, rows) => sum + rows.length, 0), isByDifference]);
  const seen = useSeen(box, pairs.length, ROW, ROW);
  const selected = Math.min(Math.max(0, Number(query.at ?? 0)), Math.max(0, pairs.length - 1));
  const open = (pair: Pair | undefined) => {
    const chosen = pair?.rows.flatMap((rows, run) => rows.slice(0, 1).map((row) => `${run}.${row.line}`));
    if (chosen?.length) go(linkTo(["compare"], { e: chosen.join(",") }));
  };
  const select = (index: number) => change({ at: Math.min(Math.max(0, index), pairs.length - 1) });
  useEffect(() => reveal(box.current, selected, ROW, ROW), [selected]);
  useKeys([
    { keys: ["ArrowDown", "j"], what: "Next task", run: () => select(selected + 1) },
    { keys: ["ArrowUp", "k"], what: "Previous task", run: () => select(selected - 1) },
    { keys: ["Enter", "o"], what: "Open the episodes side by side", run: () => open(pairs[selected]) },
    { keys: ["Escape", "u"], what: "Back to the list", run: () => go(linkTo(["run", 0])) },
  ]);
  const template = `minmax(160px, 1fr) minmax(140px, 2fr) repeat(${runs.length}, minmax(110px, 150px)) 100px`;
  const both = pairs.filter((pair) => differenceOf(pair) !== null);
  return (
    <div class="list">
      <h1 class="unseen">Runs, task by task</h1>
      <div class="bar-row">
        <p class="figures">
          <b>{number(pairs.length)}</b> tasks, <b>{number(both.length)}</b> of them in all runs
          {both.length > 0 && (
            <>
              <span class="dot" />
              mean difference <b>{decimal(mean(both.map((pair) => differenceOf(pair)!)))}</b>
            </>
          )}
        </p>
        <button type="button" aria-pressed={isByDifference} onClick={() => change({ sort: isByDifference ? undefined : "difference" })}>
          Largest loss first
        </button>
      </div>
      <div ref={box} class="table" role="grid" tabIndex={0} aria-label="Tasks of the runs" aria-rowcount={pairs.length + 1} aria-activedescendant={selected >= seen.first && selected < seen.stop ? `row-${selected}` : undefined}>
        <div class="tr th" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
          {["Group", "Task"].map((name) => (
            <div role="columnheader">{name}</div>
          ))}
          {runs.map((state) => (
            <div role="columnheader" class="num">
              {visible(state.info.name)}
            </div>
          ))}
          <div role="columnheader" class="num">
            Difference
          </div>
        </div>
        <Rows seen={seen} count={pairs.length} height={ROW} depends={[pairs, selected]}>
          {(index) => {
            const pair = pairs[index]!;
            const difference = differenceOf(pair);
            return (
              <div key={pair.key} id={`row-${index}`} role="row" aria-rowindex={index + 2} aria-selected={index === selected} class={`tr ${index === selected ? "selected" : ""}`} style={{ gridTemplateColumns: template }} onClick={() => open(pair)}>
                <div role="gridcell">{visible(pair.key)}</div>
                <div role="gridcell">{visible(pair.task)}</div>
                {pair.rows.map((rows) => {
                  const rewards = rewardsOf(rows);
                  return (
                    <div role="gridcell" class="num">
                      {rewards.length ? <Reward value={mean(rewards)} /> : <span class="faint">–</span>}
                    </div>
                  );
                })}
                <div role="gridcell" class="num">
                  {difference === null ? <span class="faint">–</span> : <span class={difference < 0 ? "bad" : difference > 0 ? "good" : "faint"}>{`${difference > 0 ? "+" : ""}${decimal(difference)}`}</span>}
                </div>
              </div>
            );
          }}
        </Rows>
      </div>
    </div>
  );
}

/** The mean reward of a task in the last run, less that in the first one; null if one of them does not have it. */
function differenceOf(pair: Pair): number | null {
  const rewards = pair.rows.map(rewardsOf);
  const [first, last] = [rewards[0], rewards.at(-1)];
  return rewards.length > 1 && first?.length && last?.length ? mean(last) - mean(first) : null;
}
