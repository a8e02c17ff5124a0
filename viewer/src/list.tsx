// The table of episodes: sorted, filtered, and grouped by task.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { RunRows } from "./data";
import { FilterBox } from "./filterbox";
import { type Filter, InvalidFilter, parseFilter } from "./filters";
import { folded } from "./folding";
import { useKeys } from "./keys";
import { change, go, linkTo, numberOf } from "./router";
import { useSearch } from "./search";
import { Visible, decimal, number, plural, short, visible } from "./text";
import type { Hit, EpisodeRow } from "./types";
import { Rows, reveal, useSeen, useWidth } from "./virtual";

export const ROW = 30;

/** The list that was shown last: an episode leads to its neighbors there, and back to it. */
export const lastList = { run: -1, lines: [] as number[], query: {} as Record<string, string> };

export function backTo(run: number, line: number): string {
  return linkTo(["run", run], { ...(lastList.run === run ? lastList.query : {}), at: line });
}

interface Column {
  name: string;
  title: string;
  about?: string; // what it means
  width: string;
  least: number; // pixels
  drop: number; // columns with larger numbers are left out first where the window is narrow
  value: (row: EpisodeRow) => number | string | null;
  cell?: (row: EpisodeRow) => preact.ComponentChildren;
  isText?: boolean;
}

const scored = (row: EpisodeRow) => (row.is_scored && row.status !== "damaged" ? row.reward : null);
const isRead = (row: EpisodeRow) => row.status !== "damaged";

export function Status({ row }: { row: { status: string; stop_reason: string; error_kind?: string | null } }) {
  const detail = row.status === "truncated" ? row.stop_reason : row.status === "error" ? (row.error_kind ?? "") : "";
  const shown = detail && detail !== row.status ? detail.replaceAll("_", " ") : row.status;
  return <span class={`status ${row.status}`}>{shown}</span>;
}

export function Breaks({ breaks }: { breaks: Record<string, number> }) {
  return (
    <>
      {Object.entries(breaks).map(([reason, count]) => (
        <span class="break-count" title={`${count} ${reason}`}>
          {count} {reason.replaceAll("_", " ")}
        </span>
      ))}
    </>
  );
}

export function Reward({ value, low = 0, high = 1, because = "" }: { value: number | null; low?: number; high?: number; because?: string }) {
  if (value === null) return <span class="faint" title={because && `not scored: ${visible(because)}`}>–</span>;
  const at = (one: number) => 100 * Math.min(1, Math.max(0, (one - low) / (high - low || 1)));
  const [zero, end] = [at(0), at(value)];
  return (
    <span class={`reward ${outcomeOf(value)}`}>
      <span class="bar" aria-hidden="true">
        <span style={{ left: `${Math.min(zero, end)}%`, width: `${Math.abs(end - zero)}%` }} />
        {low < 0 && <i style={{ left: `${zero}%` }} />}
      </span>
      <b>{decimal(value)}</b>
    </span>
  );
}

/** The color of a reward or of a difference: above zero is success. It has nothing to do with how an episode ended. */
export const outcomeOf = (value: number) => (value > 0 ? "good" : "bad");

const NUMBER = "The number of the episode: its line in the file of the run, in the order in which episodes ended. Commands take it, too: envsdk show RUN 3";

function columnsOf(rows: EpisodeRow[], run: number): Column[] {
  const names = new Set<string>();
  for (const row of rows.slice(0, 400)) for (const name of Object.keys(row.rewards)) names.add(name);
  const rewards = rows.map(scored).filter((value) => value !== null);
  const low = Math.min(0, ...(rewards.length < 50000 ? rewards : []));
  const high = rewards.reduce((most, value) => Math.max(most, value), 0) || 1;
  names.delete("reward");
  const hasContexts = rows.some((row) => row.contexts > 1);
  const hasImages = rows.some((row) => row.images);
  const hasTimes = rows.some((row) => row.duration_s !== null);
  const hasVersions = rows.some((row) => row.policy_versions.length);
  const all: (Column | false)[] = [
    {
      ...{ name: "line", title: "Episode", about: NUMBER, width: "78px", least: 78, drop: 0 },
      value: (row) => row.line,
      cell: (row) => (
        <a href={linkTo(["run", run, row.line])} tabIndex={-1} title={visible(row.id)}>
          {number(row.line)}
        </a>
      ),
    },
    {
      ...{ name: "task", title: "Task", width: "minmax(110px, 2fr)", least: 110, drop: 0, isText: true },
      value: (row) => row.task,
      cell: (row) => <Visible text={row.damage || row.error || row.task} />,
    },
    {
      ...{ name: "status", title: "End", width: "112px", least: 112, drop: 2, isText: true },
      value: (row) => `${row.status} ${row.stop_reason}`,
      cell: (row) => <Status row={row} />,
    },
    {
      ...{ name: "reward", title: "Reward", about: `The bar is from ${short(low)} to ${short(high)}. Green is above zero, purple is not.` },
      ...{ width: "116px", least: 116, drop: 0, value: scored },
      cell: (row) => (isRead(row) ? <Reward value={scored(row)} low={low} high={high} because={row.not_scored} /> : null),
    },
    ...[...names].slice(0, 4).map((name): Column => {
      const value = (row: EpisodeRow) => row.rewards[name] ?? null;
      return { name: `reward.${name}`, title: name, width: "76px", least: 76, drop: 8, value, cell: (row) => shown(value(row)) };
    }),
    { name: "steps", title: "Steps", width: "60px", least: 60, drop: 3, value: (row) => (isRead(row) ? row.steps : null) },
    {
      ...{ name: "breaks", title: "Breaks", width: "minmax(150px, 1fr)", least: 160, drop: 6, isText: true },
      value: (row) => Object.values(row.breaks).reduce((a, b) => a + b, 0),
      cell: (row) => <Breaks breaks={row.breaks} />,
    },
    hasContexts && { name: "contexts", title: "Contexts", width: "76px", least: 76, drop: 9, value: (row) => (isRead(row) ? row.contexts : null) },
    {
      ...{ name: "errors", title: "Errors", width: "62px", least: 62, drop: 7 },
      value: (row) => (isRead(row) ? row.reply_errors : null),
      cell: (row) => (row.reply_errors ? <span class="trouble">{row.reply_errors}</span> : isRead(row) ? <span class="faint">0</span> : null),
    },
    { name: "observed", title: "Observed", width: "86px", least: 86, drop: 10, value: (row) => (isRead(row) ? row.observed_tokens : null) },
    { name: "sampled", title: "Sampled", width: "80px", least: 80, drop: 4, value: (row) => (isRead(row) ? row.sampled_tokens : null) },
    hasImages && {
      ...{ name: "images", title: "Images", width: "70px", least: 70, drop: 8.5 },
      value: (row) => (isRead(row) ? row.images : null),
      cell: (row) => (isRead(row) ? <span title={`${number(row.image_tokens)} of the observed tokens`}>{number(row.images)}</span> : null),
    },
    hasTimes && {
      ...{ name: "duration", title: "Time", width: "66px", least: 66, drop: 5.5 },
      value: (row) => row.duration_s,
      cell: (row) => (row.duration_s === null ? null : <span title={`ended ${row.ended}`}>{duration(row.duration_s)}</span>),
    },
    hasVersions && {
      ...{ name: "version", title: "Version", width: "70px", least: 70, drop: 11 },
      value: (row) => row.policy_versions.at(-1) ?? null,
      cell: (row) => versions(row.policy_versions),
    },
  ];
  return all.filter((column) => column !== false);
}

const duration = (seconds: number) =>
  seconds < 100 ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : seconds < 6000 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
const versions = (given: number[]) => (given.length > 1 ? `${given[0]}–${given.at(-1)}` : (given[0] ?? null));
const shown = (value: number | null) => (value === null ? <span class="faint">–</span> : decimal(value));

const GAP = 12; // as in style.css
const PADDING = 14;

function fitting(columns: Column[], width: number): Column[] {
  const kept = [...columns];
  while (kept.reduce((sum, column) => sum + column.least + GAP, 2 * PADDING) > width) {
    const most = kept.reduce((one, other) => (other.drop > one.drop ? other : one));
    if (most.drop === 0) break;
    kept.splice(kept.indexOf(most), 1);
  }
  return kept;
}

export interface Group {
  key: string;
  rows: EpisodeRow[];
}

export const groupKey = (row: EpisodeRow) => row.group_id ?? (row.seed !== null ? `${row.env}/${row.seed}` : row.task || row.id);

export function groupsOf(rows: EpisodeRow[]): Group[] {
  const groups = new Map<string, EpisodeRow[]>();
  for (const row of rows) {
    const own = groups.get(groupKey(row));
    if (own) own.push(row);
    else groups.set(groupKey(row), [row]);
  }
  return [...groups].map(([key, own]) => ({ key, rows: own }));
}

export const mean = (values: number[]) => values.reduce((a, b) => a + b, 0) / values.length;
export const rewardsOf = (rows: EpisodeRow[]) => rows.map(scored).filter((value): value is number => value !== null);

type Item =
  | { kind: "row"; row: EpisodeRow }
  | { kind: "group"; group: Group }
  | { kind: "hit"; row: EpisodeRow; hit: Hit; number: number }
  | { kind: "more"; row: EpisodeRow; count: number };

/** The link to a message in which a text was found: at its step, with the text highlighted. */
function linkToHit(run: number, row: EpisodeRow, hit: Hit, wanted: string[]): string {
  const find = wanted.find((one) => folded(hit.found).startsWith(one)) ?? wanted[0];
  const step = hit.step === null ? undefined : numberOf({ index: hit.step });
  return linkTo(["run", run, row.line], { step, context: hit.context, message: hit.message + 1, find });
}

export function List({ state, run, query }: { state: RunRows; run: number; query: Record<string, string> }) {
  const { rows } = state;
  const filter = query.q ?? "";
  const sort = query.sort ?? "line";
  const isDown = query.desc === "1";
  const isGrouped = query.group === "1";
  const isWorstFirst = sort === "reward" && !isDown;
  const box = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const width = useWidth(box);
  const all = useMemo(() => columnsOf(rows, run), [rows, run]);
  const columns = useMemo(() => fitting(all, width || 1200), [all, width]);
  const [parsed, problem] = useMemo((): [Filter | null, InvalidFilter | null] => {
    try {
      return [parseFilter(filter), null];
    } catch (error) {
      return [null, error as InvalidFilter];
    }
  }, [filter]);
  const isSearch = parsed !== null && parsed.texts.length > 0;
  const [isStopped, setStopped] = useState(false);
  useEffect(() => setStopped(false), [filter]);
  const found = useSearch(run, state, filter, parsed, isStopped);
  const chosen = useMemo(() => {
    if (parsed === null) return rows;
    return isSearch ? rows.filter((row) => found.matches.has(row.line)) : rows.filter(parsed.matchesRow);
  }, [rows, parsed, found.matches]);
  const sorted = useMemo(() => sortedBy(chosen, all.find((column) => column.name === sort), isDown), [chosen, all, sort, isDown]);
  Object.assign(lastList, { run, query, lines: useMemo(() => sorted.map((row) => row.line), [sorted]) });
  const items = useMemo((): Item[] => {
    const itemsOf = (row: EpisodeRow): Item[] => {
      const match = isSearch ? found.matches.get(row.line) : undefined;
      const hits = (match?.hits ?? []).map((hit, number): Item => ({ kind: "hit", row, hit, number }));
      const count = (match?.count ?? 0) - hits.length;
      return [{ kind: "row", row }, ...hits, ...(count > 0 ? [{ kind: "more" as const, row, count }] : [])];
    };
    if (!isGrouped) return sorted.flatMap(itemsOf);
    return groupsOf(sorted).flatMap((group): Item[] => [{ kind: "group", group }, ...group.rows.flatMap(itemsOf)]);
  }, [sorted, isGrouped, found.matches]);
  const seen = useSeen(box, items.length, ROW, 0);
  const selected = Math.min(Math.max(0, items.findIndex((item) => keyOf(item) === query.at)), Math.max(0, items.length - 1));
  const select = (index: number) => {
    const item = items[Math.min(Math.max(index, 0), items.length - 1)];
    if (item) change({ at: keyOf(item) });
  };
  useEffect(() => reveal(box.current, selected, ROW, ROW), [selected, box.current === null]);
  useEffect(() => {
    if (document.activeElement?.closest(".top")) box.current?.focus(); // after a click on a run, keys are for its list
  }, []);
  const placeOf = (item: Item): string => {
    if (item.kind === "group") return sideBySide(run, item.group.rows);
    if (item.kind === "hit") return linkToHit(run, item.row, item.hit, parsed?.searched ?? []);
    return linkTo(["run", run, item.row.line], item.kind === "more" ? { find: parsed?.searched[0] } : {});
  };
  const open = (item: Item | undefined) => {
    if (item) go(placeOf(item));
  };
  const page = Math.max(1, Math.floor((box.current?.clientHeight ?? 600) / ROW) - 2);
  useKeys([
    { keys: ["ArrowDown", "j"], what: "Next row", run: () => select(selected + 1) },
    { keys: ["ArrowUp", "k"], what: "Previous row", run: () => select(selected - 1) },
    { keys: ["PageDown"], what: "A page down", run: () => select(selected + page) },
    { keys: ["PageUp"], what: "A page up", run: () => select(selected - page) },
    { keys: ["Home"], what: "First row", run: () => select(0) },
    { keys: ["End"], what: "Last row", run: () => select(items.length - 1) },
    { keys: ["Enter", "o"], what: "Open the episode, or the group side by side", run: () => open(items[selected]) },
    { keys: ["/"], what: "Filter", run: () => input.current?.focus() },
    { keys: ["g"], what: "Group by task", run: () => change({ group: isGrouped ? undefined : 1 }) },
  ]);
  const template = columns.map((column) => column.width).join(" ");
  const rewards = useMemo(() => rewardsOf(chosen), [chosen]);
  const failed = useMemo(() => chosen.filter((row) => row.status === "error").length, [chosen]);
  const damaged = useMemo(() => rows.filter((row) => row.status === "damaged").length, [rows]);
  return (
    <div class="list">
      <h1 class="unseen">Episodes of {visible(state.info.name)}</h1>
      <div class="bar-row">
        <FilterBox input={input} value={filter} problem={problem} onChange={(q) => change({ q, at: undefined })} onLeave={() => box.current?.focus()} />
        <button type="button" aria-pressed={isGrouped} onClick={() => change({ group: isGrouped ? undefined : 1 })}>
          Group by task
        </button>
        <button type="button" aria-pressed={isWorstFirst} onClick={() => change(isWorstFirst ? { sort: undefined, at: undefined } : { sort: "reward", desc: undefined, at: undefined })}>
          Worst first
        </button>
        <p class="figures">
          <b>{chosen.length === rows.length ? number(rows.length) : `${number(chosen.length)} of ${number(rows.length)}`}</b>{" "}
          {rows.length === 1 ? "episode" : "episodes"}
          {state.info.episodes > rows.length && <span class="faint"> of {number(state.info.episodes)} planned</span>}
          {rewards.length > 0 && (
            <>
              <span class="dot" />
              mean reward <b>{decimal(mean(rewards))}</b>
              {rewards.length < chosen.length && <span class="faint"> of {number(rewards.length)} scored</span>}
            </>
          )}
          {failed > 0 && (
            <>
              <span class="dot" />
              <span class="trouble">{number(failed)} failed</span>
            </>
          )}
          {damaged > 0 && (
            <>
              <span class="dot" />
              <span class="trouble">{plural(damaged, "damaged line")}</span>
            </>
          )}
          {state.isReading && <span class="faint"> reading…</span>}
          {isSearch && !state.isReading && found.searched < rows.length && found.error === null && (
            <span class="faint">
              {" "}
              {isStopped ? "stopped after" : "searched"} {number(found.searched)} of {number(rows.length)}{" "}
              {!isStopped && (
                <button type="button" class="link" onClick={() => setStopped(true)}>
                  Stop
                </button>
              )}
            </span>
          )}
          {found.error !== null && <span class="trouble"> {visible(found.error)}</span>}
        </p>
        <Histogram values={rewards} />
      </div>
      <div
        ref={box}
        class="table"
        role="grid"
        tabIndex={0}
        aria-label="Episodes"
        aria-rowcount={items.length + 1}
        aria-activedescendant={selected >= seen.first && selected < seen.stop ? `row-${selected}` : undefined}
      >
        <div class="tr th" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
          {columns.map((column) => (
            <div
              role="columnheader"
              class={column.isText ? "" : "num"}
              aria-sort={sort === column.name ? (isDown ? "descending" : "ascending") : "none"}
            >
              <button
                type="button"
                title={column.about}
                onClick={() => change({ sort: column.name, desc: (sort === column.name ? !isDown : column.name === "reward") ? 1 : undefined })}
              >
                <Visible text={column.title} />
                <span class="arrow" aria-hidden="true">
                  {sort === column.name ? (isDown ? "↓" : "↑") : ""}
                </span>
              </button>
            </div>
          ))}
        </div>
        <Rows seen={seen} count={items.length} height={ROW} depends={[items, columns, selected]}>
          {(index) => {
            const item = items[index]!;
            const className = `tr ${index === selected ? "selected" : ""} ${item.kind === "row" && item.row.status === "damaged" ? "damaged" : ""}`;
            const common = { id: `row-${index}`, role: "row" as const, "aria-rowindex": index + 2, "aria-selected": index === selected };
            if (item.kind === "group") {
              return (
                <div key={keyOf(item)} {...common} class={`${className} group`} onClick={() => open(item)}>
                  <GroupCell group={item.group} run={run} />
                </div>
              );
            }
            if (item.kind === "hit" || item.kind === "more") {
              return (
                <div key={keyOf(item)} {...common} class={`${className} hit`} onClick={() => open(item)}>
                  <div role="gridcell">
                    <a href={placeOf(item)} tabIndex={-1}>
                      {item.kind === "hit" ? hitLabel(item.hit) : `${plural(item.count, "further message")}`}
                    </a>
                    {item.kind === "hit" && <Snippet hit={item.hit} />}
                  </div>
                </div>
              );
            }
            return (
              <div
                key={keyOf(item)}
                {...common}
                class={className}
                style={{ gridTemplateColumns: template }}
                onClick={(event) => {
                  if (!(event.ctrlKey || event.metaKey || event.shiftKey)) open(item);
                }}
              >
                {columns.map((column) => (
                  <div role="gridcell" class={column.isText ? "" : "num"}>
                    {column.cell ? column.cell(item.row) : numeric(column.value(item.row))}
                  </div>
                ))}
              </div>
            );
          }}
        </Rows>
        {!items.length && (
          <p class="empty">
            {isSearch && found.searched < rows.length ? "Searching…" : rows.length ? "No episode matches the filter." : state.isReading ? "Reading…" : "There is no episode yet."}
          </p>
        )}
      </div>
    </div>
  );
}

function keyOf(item: Item): string {
  if (item.kind === "group") return `g${item.group.rows[0]!.line}`;
  return `${item.row.line}${item.kind === "hit" ? `h${item.number}` : item.kind === "more" ? "m" : ""}`;
}

function hitLabel(hit: Hit): string {
  const part = hit.part === "text" ? hit.role : hit.part;
  return [hit.step === null ? "" : `step ${numberOf({ index: hit.step })}`, visible(hit.context), visible(part)].filter(Boolean).join(" · ");
}

function Snippet({ hit }: { hit: Hit }) {
  return (
    <span class="snippet">
      <Visible text={hit.before} />
      <mark>
        <Visible text={hit.found} />
      </mark>
      <Visible text={hit.after} />
    </span>
  );
}

const numeric = (value: number | string | null) => (typeof value === "number" ? number(value) : value);

export function sideBySide(run: number, rows: EpisodeRow[]): string {
  const readable = rows.filter((row) => row.status !== "damaged").slice(0, 8);
  return linkTo(["compare"], { e: readable.map((row) => `${run}.${row.line}`).join(",") });
}

function GroupCell({ group, run }: { group: Group; run: number }) {
  const rewards = rewardsOf(group.rows);
  const spread = rewards.length > 1 ? Math.max(...rewards) - Math.min(...rewards) : 0;
  return (
    <div role="gridcell" class="group-cell">
      <a href={sideBySide(run, group.rows)} tabIndex={-1}>
        <Visible text={group.key} />
      </a>
      <span class="faint">{plural(group.rows.length, "episode")}</span>
      {rewards.length > 0 && (
        <span>
          mean <b>{decimal(mean(rewards))}</b>
        </span>
      )}
      {rewards.length > 1 && <span class={spread ? "" : "faint"}>{spread ? `spread ${decimal(spread)}` : "all equal"}</span>}
      <span class="task-text">
        <Visible text={group.rows[0]!.task} />
      </span>
    </div>
  );
}

function sortedBy(rows: EpisodeRow[], column: Column | undefined, isDown: boolean): EpisodeRow[] {
  if (!column || (column.name === "line" && !isDown)) return rows;
  const sign = isDown ? -1 : 1;
  const collator = new Intl.Collator("en", { numeric: true });
  const values = new Map(rows.map((row) => [row, column.value(row)]));
  return [...rows].sort((a, b) => {
    const [one, other] = [values.get(a) ?? null, values.get(b) ?? null];
    if (one === null || other === null) return one === other ? a.line - b.line : one === null ? 1 : -1;
    const order = typeof one === "string" ? collator.compare(one, String(other)) : one - Number(other);
    return order * sign || a.line - b.line;
  });
}

function Histogram({ values }: { values: number[] }) {
  const [bins, step, tall] = [24, 6, 22];
  const low = values.reduce((least, value) => Math.min(least, value), 0);
  const high = values.reduce((most, value) => Math.max(most, value), 0) || 1;
  const at = (bin: number) => low + (bin * (high - low)) / bins;
  const counts = useMemo(() => {
    const found = new Array<number>(bins).fill(0);
    for (const value of values) found[Math.min(bins - 1, Math.floor(((value - low) / (high - low || 1)) * bins))]!++;
    return found;
  }, [values]);
  if (values.length < 2) return null;
  const most = Math.max(...counts);
  return (
    <svg class="histogram" width={bins * step} height={tall + 14} role="img" aria-label={`Episodes by reward, from ${short(low)} to ${short(high)}`}>
      {counts.map((count, bin) => {
        const height = count ? Math.max(2, (count / most) * tall) : 0;
        return (
          <rect class={bin > 0 && at(bin) > -1e-9 ? "good" : "bad"} x={bin * step} y={tall - height} width={step - 1} height={height}>
            <title>{`${plural(count, "episode")} with a reward from ${short(at(bin))} to ${short(at(bin + 1))}`}</title>
          </rect>
        );
      })}
      <line x1="0" x2={bins * step} y1={tall + 0.5} y2={tall + 0.5} />
      <text y={tall + 13}>{short(low)}</text>
      <text x={(bins * step) / 2} y={tall + 13} text-anchor="middle">
        reward
      </text>
      <text x={bins * step} y={tall + 13} text-anchor="end">
        {short(high)}
      </text>
    </svg>
  );
}
