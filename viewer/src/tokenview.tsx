// The tokens of a context, or of a prompt: as text with colors, or as a table.

import { type ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { promptOf, tokensOf } from "./data";
import { Picture, Pixels, type Place, nameOf, sizeOf } from "./image";
import { useKeys } from "./keys";
import { breakText } from "./lanes";
import { change, indexOf, numberOf } from "./router";
import { decimal, number, plural, short, visible } from "./text";
import { type Line, Log, type Part, Sequence, lineAt, linesOf, rowAt, rowsOf } from "./tokens";
import type { Episode, Step } from "./types";
import { Rows, reveal, useSeen, useWidth } from "./virtual";

const LINE = 22;
const logs = new Map<string, Log>();
const MOST_LOGS = 12;

async function logOf(run: number, line: number, context: string): Promise<Log> {
  const given = await tokensOf(run, line, context);
  const key = `${run}/${line}/${context}`;
  let log = logs.get(key);
  if (!log || log.given !== given) {
    log = new Log(given);
    logs.set(key, log);
    const oldest = logs.keys().next().value;
    if (logs.size > MOST_LOGS && oldest !== undefined) logs.delete(oldest);
  }
  return log;
}

async function sequenceOf(run: number, line: number, context: string, step: Step | null): Promise<Sequence> {
  if (step === null) {
    const log = await logOf(run, line, context);
    return new Sequence([[context, 0, log.length]], new Map([[context, log]]));
  }
  const ranges = await promptOf(run, line, step.index);
  const names = [...new Set(ranges.map(([name]) => name))];
  const found = await Promise.all(names.map(async (name): Promise<[string, Log]> => [name, await logOf(run, line, name)]));
  return new Sequence(ranges, new Map(found));
}

interface Props {
  run: number;
  line: number;
  episode: Episode;
  context: string;
  step: Step | null; // the tokens are its prompt, if it is given
  query: Record<string, string>;
}

export function TokenView(props: Props) {
  const { run, line, context, step } = props;
  const [sequence, setSequence] = useState<Sequence | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let isCurrent = true;
    sequenceOf(run, line, context, step).then(
      (found) => isCurrent && setSequence(found),
      (problem: Error) => isCurrent && setError(problem.message),
    );
    return () => {
      isCurrent = false;
    };
  }, [run, line, context, step?.index]);
  if (error) return <p class="error-box page-message">{visible(error)}</p>;
  if (!sequence) return <p class="page-message faint">Reading…</p>;
  return <Loaded {...props} sequence={sequence} />;
}

type Mode = "source" | "role" | "logprob" | "difference" | "gap" | "advantage" | "sample" | "node";
const MODES: Record<Mode, string> = {
  source: "Kept, observed, sampled",
  role: "Role",
  logprob: "Log-probability",
  difference: "Difference to the trainer",
  gap: "History gap",
  advantage: "Advantage",
  sample: "Sample",
  node: "Tree node",
};

function modesOf(sequence: Sequence): Mode[] {
  const has = (test: (log: Log) => boolean) => sequence.parts.some((part) => test(part.log));
  const found: Mode[] = ["source"];
  if (has((log) => log.hasRoles)) found.push("role");
  if (has((log) => log.given.logprobs.some((value) => value !== null))) found.push("logprob");
  if (has((log) => log.reference !== null)) found.push(teacherOf(sequence) ? "gap" : "difference");
  if (has((log) => log.advantages !== null)) found.push("advantage");
  return [...found, "sample", "node"];
}

function Loaded({ sequence, run, line, episode, context, step, query }: Props & { sequence: Sequence }) {
  const box = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLInputElement>(null);
  const width = useWidth(box);
  const isTable = query.as === "table";
  const [columns, edge] = useColumns(box, width);
  const lines = useMemo(() => (isTable ? [] : linesOf(sequence, columns, edge)), [sequence, columns, isTable]);
  const rows = useMemo(() => (isTable ? rowsOf(sequence) : new Int32Array()), [sequence, isTable]);
  const count = isTable ? rows.length : lines.length;
  const seen = useSeen(box, count, LINE, isTable ? LINE : 0);
  const modes = useMemo(() => modesOf(sequence), [sequence]);
  const mode = modes.includes(query.color as Mode) ? (query.color as Mode) : "source";
  const scale = useMemo(() => scaleOf(sequence, mode), [sequence, mode]);
  const keep = step?.keep ?? 0;
  const at = query.at === undefined ? null : Math.min(Math.max(0, Number(query.at) || 0), sequence.length - 1);
  const [hovered, setHovered] = useState<number | null>(null);
  const [wanted, setWanted] = useState("");
  const [match, setMatch] = useState<[number, number] | null>(null);
  const text = useMemo(() => (wanted ? joined(sequence) : null), [sequence, wanted !== ""]);
  const rowOf = (position: number) => (isTable ? rowAt(rows, position) : lineAt(lines, position));
  const select = (position: number) => change({ at: Math.min(Math.max(0, position), sequence.length - 1) });
  const byRow = (by: number) => select(at === null ? 0 : (rows[rowAt(rows, at) + by] ?? at));
  const byToken = (by: number) => {
    if (isTable) return byRow(by);
    const own = at === null ? undefined : lines[lineAt(lines, at)];
    if (own?.image) return select(by > 0 ? own.stop : own.first - 1);
    select(at === null ? 0 : at + by);
  };
  const byLine = (by: number) => {
    if (isTable) return byRow(by);
    if (at === null) return select(by - 1);
    let target = lineAt(lines, at) + by;
    const from = lines[lineAt(lines, at)]!.first;
    while (lines[target] && (lines[target]!.step >= 0 || (lines[target]!.image && lines[target]!.first === from))) target += Math.sign(by);
    const own = lines[target];
    if (own) select(Math.min(own.first + at - lines[lineAt(lines, at)]!.first, own.stop - 1));
  };
  useEffect(() => {
    if (at !== null && count) reveal(box.current, rowOf(at), LINE, isTable ? LINE : 0);
  }, [at, lines, isTable]);
  useEffect(() => {
    const named = step ? null : indexOf(query.step);
    const chosen = named === null ? undefined : episode.steps[named];
    if (chosen && query.at === undefined && count) {
      const position = sequence.positionOf(chosen.context, chosen.start);
      if (position >= 0 && box.current) box.current.scrollTop = Math.max(0, (rowOf(position) - (isTable ? 0 : 1)) * LINE);
    }
  }, [query.step, lines, isTable]);
  const find = (by: number) => {
    if (!text || !wanted) return;
    const found = nextMatch(text, wanted, match?.[0] ?? at ?? (by > 0 ? -1 : sequence.length), by);
    setMatch(found);
    if (found) select(found[0]);
  };
  useKeys(
    [
      { keys: ["ArrowRight"], what: "Next token", run: () => byToken(1) },
      { keys: ["ArrowLeft"], what: "Previous token", run: () => byToken(-1) },
      { keys: ["ArrowDown", "j"], what: "Next line", run: () => byLine(1) },
      { keys: ["ArrowUp", "k"], what: "Previous line", run: () => byLine(-1) },
      { keys: ["Home"], what: "First token", run: () => select(0) },
      { keys: ["End"], what: "Last token", run: () => select(sequence.length - 1) },
      { keys: ["v"], what: "Tokens as text, or as a table", run: () => change({ as: isTable ? undefined : "table" }) },
      { keys: ["b"], what: "Color tokens by something else", run: () => change({ color: modes[(modes.indexOf(mode) + 1) % modes.length] }) },
      { keys: ["/"], what: "Search in the tokens", run: () => input.current?.focus() },
    ],
    1,
  );
  const shown = hovered ?? at;
  const problem = sequence.parts.map((part) => part.log.given.problem).find((own) => own);
  const hasTexts = sequence.parts.every((part) => part.log.given.has_texts);
  return (
    <div class="tokens">
      <div class="token-bar">
        <label>
          Color{" "}
          <select value={mode} onChange={(event) => change({ color: event.currentTarget.value })}>
            {modes.map((name) => (
              <option value={name}>{MODES[name]}</option>
            ))}
          </select>
        </label>
        <button type="button" aria-pressed={isTable} onClick={() => change({ as: isTable ? undefined : "table" })}>
          Table
        </button>
        <span class="search">
          <input
            ref={input}
            type="search"
            aria-label="Search in the tokens"
            placeholder="Search"
            value={wanted}
            onInput={(event) => {
              setWanted(event.currentTarget.value);
              setMatch(null);
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter") find(event.shiftKey ? -1 : 1);
              if (event.key === "Escape") event.currentTarget.blur();
              event.stopPropagation();
            }}
          />
          <span class="faint count" role="status">
            {wanted && match === null && text && nextMatch(text, wanted, -1, 1) === null ? "none" : ""}
          </span>
        </span>
        <span class="faint">
          {step ? (
            <>
              prompt of step {numberOf(step)}: {plural(sequence.length, "token")}, {number(step.keep)} kept
            </>
          ) : (
            <>
              {visible(context)}: {plural(sequence.length, "token")}
            </>
          )}
        </span>
        <Legend {...{ mode, sequence, scale }} />
      </div>
      {!hasTexts && <p class="note">The tokenizer of this context is not in the run folder: tokens are shown by their ids.</p>}
      {problem && <p class="note bad">{visible(problem)}</p>}
      <div class="token-body">
        <div
          ref={box}
          class={`token-box ${isTable ? "token-table" : "token-text"} by-${mode}`}
          tabIndex={0}
          role={isTable ? "grid" : "group"}
          aria-label={step ? `Tokens of the prompt of step ${numberOf(step)}` : `Tokens of ${context}`}
          aria-rowcount={isTable ? count + 1 : undefined}
          onMouseOver={(event) => {
            const position = (event.target as HTMLElement).closest("[data-at]")?.getAttribute("data-at");
            setHovered(position ? Number(position) : null);
          }}
          onMouseLeave={() => setHovered(null)}
          onClick={(event) => {
            const position = (event.target as HTMLElement).closest("[data-at]")?.getAttribute("data-at");
            if (position) select(Number(position));
          }}
        >
          {isTable && <TableHead sequence={sequence} />}
          <Rows seen={seen} count={count} height={LINE} depends={[sequence, lines, isTable, mode, at, match]}>
            {(index) =>
              isTable ? (
                <TableRow key={index} {...{ sequence, row: index, position: rows[index]!, stop: rows[index + 1] ?? sequence.length, mode, scale, keep, at, match, episode }} />
              ) : (
                <TextLine key={index} {...{ run, file: line, sequence, line: lines[index]!, mode, scale, keep, at, match, episode, isPrompt: step !== null }} />
              )
            }
          </Rows>
        </div>
        <Detail {...{ run, line, sequence, position: shown, episode }} />
      </div>
    </div>
  );
}

function useColumns(box: { current: HTMLElement | null }, width: number): [columns: number, edge: number] {
  const character = useMemo(() => {
    if (!box.current) return 7.5;
    const canvas = document.createElement("canvas").getContext("2d")!;
    canvas.font = getComputedStyle(box.current).font;
    return canvas.measureText("0".repeat(50)).width / 50 || 7.5;
  }, [width > 0]);
  return [Math.max(20, Math.floor((width - 34) / character)), 1 / character];
}

const isIn = (match: [number, number] | null, position: number) => match !== null && match[0] <= position && position < match[1];

/** What a token has in a mode: NaN where it has nothing. */
function valueOf(log: Log, at: number, mode: Mode): number {
  const reference = log.reference?.[at] ?? Number.NaN;
  if (mode === "logprob") return log.logprobs[at]!;
  if (mode === "difference") return reference - log.logprobs[at]!;
  if (mode === "gap") return log.logprobs[at]! - reference;
  return mode === "advantage" ? (log.advantages?.[at] ?? Number.NaN) : Number.NaN;
}

/** The value that has the strongest color: the largest, or 5 nats of a log-probability. */
function scaleOf(sequence: Sequence, mode: Mode): number {
  let most = mode === "logprob" ? 5 : 0;
  if (mode === "difference" || mode === "gap" || mode === "advantage") {
    for (const part of sequence.parts) {
      for (let at = part.start; at < part.stop; at++) most = Math.max(most, Math.abs(valueOf(part.log, at, mode)) || 0);
    }
  }
  return most || 1;
}

/** The history policy under which the other log-probabilities were computed, if they are a teacher's. */
const teacherOf = (sequence: Sequence) => sequence.parts.find((part) => part.log.given.teacher)?.log.given.teacher;

/** The class and the style of a token in a mode: its intensity is from 0 to 1. */
function shade(log: Log, at: number, mode: Mode, scale: number, isKept: boolean): { name: string; style?: Record<string, string | number> } {
  const value = valueOf(log, at, mode);
  switch (mode) {
    case "source":
      return { name: isKept ? "of-kept" : log.sampled[at] ? "of-sampled" : "of-observed" };
    case "role":
      return { name: `role-${log.role(at).split(":")[0]}` };
    case "logprob":
    case "difference":
    case "gap":
    case "advantage":
      if (Number.isNaN(value)) return { name: "" };
      return { name: mode === "logprob" ? "heat" : value > 0 ? "up" : "down", style: { "--a": Math.min(1, Math.abs(value) / scale).toFixed(2) } };
    case "sample":
      return log.trained[at]! < 0 ? { name: "" } : { name: "hue", style: { "--hue": (log.trained[at]! * 67 + 210) % 360 } };
    case "node":
      return { name: "hue", style: { "--hue": (log.nodes[at]! * 67 + 210) % 360 } };
  }
}

function classOf(log: Log, at: number, more: string, isPrompt = false): string {
  const piece = log.piece(at);
  const names = ["tk", more];
  if (piece.kind !== "text") names.push(piece.kind);
  if (log.trained[at]! >= 0) names.push("trained");
  if (log.dropped[at]! >= 0 && !isPrompt) names.push("gone");
  return names.join(" ");
}

interface LineProps {
  run: number;
  file: number; // the number of the episode's line in its file
  sequence: Sequence;
  line: Line;
  mode: Mode;
  scale: number;
  keep: number; // tokens of a prompt that were in it already
  at: number | null;
  match: [number, number] | null;
  episode: Episode;
  isPrompt: boolean;
}

function TextLine({ run, file, sequence, line, mode, scale, keep, at, match, episode, isPrompt }: LineProps) {
  if (line.step >= 0) {
    const step = episode.steps[line.step];
    const isCut = step?.break?.kind === "rewrite";
    return (
      <div class={`token-line mark ${isCut ? "cut-mark" : ""}`}>
        <span>
          step {numberOf({ index: line.step })}
          {step && ` · ${number(step.observed)} observed · ${number(step.sampled)} sampled`}
          {step?.break && ` · ${visible(breakText(step))}`}
        </span>
      </div>
    );
  }
  if (line.image) return <ImageLine {...{ run, file, sequence, line, at, match, episode, isPrompt }} />;
  const found: ComponentChildren[] = [];
  let part: Part | null = null;
  for (let position = line.first; position < line.stop; position++) {
    if (!part || position >= part.position + part.stop - part.start) part = sequence.part(position);
    const index = part.start + position - part.position;
    const { name, style } = shade(part.log, index, mode, scale, position < keep);
    const more = `${name}${position === at ? " selected" : ""}${isIn(match, position) ? " match" : ""}`;
    found.push(
      <span class={classOf(part.log, index, more, isPrompt)} style={style} data-at={position}>
        {part.log.piece(index).text}
      </span>,
    );
  }
  return <div class="token-line">{found}</div>;
}

/** One of the lines of an image, whose placeholders are folded. */
function ImageLine({ run, file, sequence, line, at, match, episode, isPrompt }: Omit<LineProps, "mode" | "scale" | "keep">) {
  const { sha256, row } = line.image!;
  const part = sequence.part(line.first);
  const holds = (position: number | null | undefined) => position !== null && position !== undefined && line.first <= position && position < line.stop;
  const more = `image${holds(at) ? " selected" : ""}${holds(match?.[0]) ? " match" : ""}`;
  const count = plural(line.stop - line.first, "placeholder");
  return (
    <div class="token-line image-line" data-at={line.first}>
      <span class="thumbnail">
        <Pixels run={run} line={file} episode={episode} sha256={sha256} row={row} />
      </span>
      {row === 0 && <span class={classOf(part.log, part.start + line.first - part.position, more, isPrompt)}>{count}</span>}
      {row === 1 && <span class="faint">{nameOf(sha256, episode.images[sha256]!)}</span>}
    </div>
  );
}

const hasReference = (sequence: Sequence) => sequence.parts.some((part) => part.log.reference);
const hasAdvantages = (sequence: Sequence) => sequence.parts.some((part) => part.log.advantages);

function TableHead({ sequence }: { sequence: Sequence }) {
  const names = ["Position", "Id", "Text", "Bytes", "Role", "Step", "Log-prob"];
  if (hasReference(sequence)) names.push(...(teacherOf(sequence) ? ["Teacher", "Gap"] : ["Trainer", "Difference"]));
  if (hasAdvantages(sequence)) names.push("Advantage");
  names.push("Trained in", "Node", "Dropped at");
  return (
    <div class="token-row th" role="row" aria-rowindex={1}>
      {names.map((name) => (
        <div role="columnheader" class={LEFT.has(name) ? "" : "num"}>
          {name}
        </div>
      ))}
    </div>
  );
}

/** A text of which the spaces can be seen. */
const dotted = (text: string) => text.replaceAll(" ", "\u00b7");

const LEFT = new Set(["Text", "Bytes", "Role"]);

interface RowProps {
  sequence: Sequence;
  row: number;
  position: number;
  stop: number; // after its last token: the placeholders of an image are one row
  mode: Mode;
  scale: number;
  keep: number;
  at: number | null;
  match: [number, number] | null;
  episode: Episode;
}

function TableRow({ sequence, row, position, stop, mode, scale, keep, at: selected, match, episode }: RowProps) {
  const part = sequence.part(position);
  const { log } = part;
  const at = part.start + position - part.position;
  const image = log.imageAt(at);
  const isSelected = selected !== null && position <= selected && selected < stop;
  const isMatch = isIn(match, position) || isIn([position, stop], match?.[0] ?? -1);
  const { name, style } = shade(log, at, mode, scale, position < keep);
  const difference = valueOf(log, at, teacherOf(sequence) ? "gap" : "difference");
  const cell = (value: string | number, kind = "num") => (
    <div role="gridcell" class={kind}>
      {value}
    </div>
  );
  const of = (value: number) => (Number.isNaN(value) ? "" : decimal(value));
  const index = (value: number) => (value < 0 ? "" : value);
  return (
    <div class={`token-row ${isSelected ? "selected" : ""} ${isMatch ? "match" : ""}`} role="row" aria-rowindex={row + 2} aria-selected={isSelected} data-at={position}>
      {cell(number(position), "num faint")}
      {cell(log.ids[at]!)}
      <div role="gridcell" class={image ? "image-cell" : undefined} aria-colspan={image ? 2 : undefined}>
        <span class={classOf(log, at, image ? `${name} image` : name)} style={style}>
          {image ? nameOf(image[2], episode.images[image[2]]!) : dotted(log.piece(at).text)}
        </span>
      </div>
      {!image && cell(log.bytes(at), "bytes-cell faint")}
      {cell(visible(log.role(at)), "")}
      {cell(log.steps[at]! + 1)}
      {cell(of(log.logprobs[at]!))}
      {hasReference(sequence) && cell(of(log.reference?.[at] ?? Number.NaN))}
      {hasReference(sequence) && cell(of(difference))}
      {hasAdvantages(sequence) && cell(of(log.advantages?.[at] ?? Number.NaN))}
      {cell(index(log.trained[at]!))}
      {cell(log.nodes[at]!)}
      {cell(index(log.dropped[at]! < 0 ? log.dropped[at]! : log.dropped[at]! + 1))}
    </div>
  );
}

function Detail({ sequence, position, ...place }: Place & { sequence: Sequence; position: number | null }) {
  const { episode } = place;
  if (position === null || position >= sequence.length) {
    return (
      <aside class="panel token-detail" tabIndex={0} aria-label="Token">
        <p class="faint">Point at a token, or use the arrow keys.</p>
      </aside>
    );
  }
  const part = sequence.part(position);
  const { log } = part;
  const at = part.start + position - part.position;
  const logprob = log.logprobs[at]!;
  const reference = log.reference?.[at] ?? Number.NaN;
  const advantage = log.advantages?.[at] ?? Number.NaN;
  const node = episode.nodes[log.nodes[at]!];
  const trained = log.trained[at]!;
  const dropped = log.dropped[at]!;
  const rows: [string, ComponentChildren][] = [
    ["id", log.ids[at]!],
    ["bytes", log.bytes(at) || "unknown"],
    ["position", number(position)],
    ["context", visible(part.context)],
    ["in its log", number(at)],
    ["role", visible(log.role(at))],
    ["step", `${log.steps[at]! + 1}, ${log.sampled[at] ? "sampled" : "observed"}`],
    ["trained", trained < 0 ? "no" : `in sample ${trained}`],
    ["samples", log.samples(at).join(", ") || "none"],
    ["tree node", node ? `${node.number} (after ${node.parent < 0 ? "nothing" : node.parent})` : ""],
    ["dropped", dropped < 0 ? "no" : `at step ${dropped + 1}`],
  ];
  const image = log.imageAt(at);
  if (image) rows.push(["image", sizeOf(episode.images[image[2]]!)], ["SHA-256", image[2]], ["placeholders", number(image[1] - image[0])]);
  if (!Number.isNaN(logprob)) rows.push(["log-prob", `${decimal(logprob, 4)} (${(100 * Math.exp(logprob)).toFixed(2)}%)`]);
  const teacher = teacherOf(sequence);
  if (!Number.isNaN(reference) && teacher) rows.push([`under ${visible(teacher)}`, decimal(reference, 4)], ["history gap", decimal(logprob - reference, 4)]);
  else if (!Number.isNaN(reference)) rows.push(["trainer", decimal(reference, 4)], ["difference", decimal(reference - logprob, 4)]);
  if (!Number.isNaN(advantage)) rows.push(["advantage", decimal(advantage, 4)]);
  return (
    <aside class="panel token-detail" tabIndex={0} aria-label="Token">
      {image && <Picture key={image[2]} {...place} sha256={image[2]} />}
      <p class="token-shown">
        <span class={classOf(log, at, log.sampled[at] ? "of-sampled" : "of-observed")}>{dotted(log.piece(at).text)}</span>
      </p>
      <dl class="facts" aria-live="polite">
        {rows.map(([name, value]) => (
          <>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </>
        ))}
      </dl>
    </aside>
  );
}

/** What the color of a mode means. The legend of the drawing above has what all modes share. */
function Legend({ mode, sequence, scale }: { mode: Mode; sequence: Sequence; scale: number }) {
  const most = short(Number(scale.toPrecision(2)));
  const scales: Partial<Record<Mode, ComponentChildren>> = {
    logprob: <span class="scale heat-scale">0, certain … −{most} or less, unlikely</span>,
    difference: (
      <span class="scale up-scale">
        −{most}, the trainer gives less … +{most}, more
      </span>
    ),
    gap: (
      <span class="scale up-scale" title="The log-probability with the past that the reply saw, less that with the other past">
        −{most}, likelier under {visible(teacherOf(sequence) ?? "")} … +{most}, likelier as played
      </span>
    ),
    advantage: (
      <span class="scale up-scale">
        −{most} … +{most}
      </span>
    ),
  };
  const mean = useMemo(() => meanOf(sequence, mode), [sequence, mode]);
  const roles = useMemo(() => {
    const found = new Set<string>();
    if (mode !== "role") return [];
    for (const part of sequence.parts) {
      for (let at = part.start; at < part.stop && found.size < 9; at += at > 4000 ? 37 : 1) found.add(part.log.role(at).split(":")[0]!);
    }
    return [...found];
  }, [sequence, mode]);
  return (
    <span class="legend">
      {roles.map((role) => (
        <span class={`tk role-${role}`}>{visible(role)}</span>
      ))}
      {mean !== null && <span class="faint">mean {short(Number(mean.toPrecision(3)))}</span>}
      {scales[mode]}
    </span>
  );
}

/** The mean of what the tokens have in a mode; null if they have nothing. */
function meanOf(sequence: Sequence, mode: Mode): number | null {
  let [sum, count] = [0, 0];
  for (const part of sequence.parts) {
    for (let at = part.start; at < part.stop; at++) {
      const value = valueOf(part.log, at, mode);
      if (!Number.isNaN(value)) [sum, count] = [sum + value, count + 1];
    }
  }
  return count ? sum / count : null;
}

interface Joined {
  text: string;
  starts: Uint32Array;
}

function joined(sequence: Sequence): Joined {
  const texts: string[] = [];
  const starts = new Uint32Array(sequence.length + 1);
  let length = 0;
  let position = 0;
  for (const part of sequence.parts) {
    for (let at = part.start; at < part.stop; at++) {
      const raw = part.log.raw(at).toLowerCase();
      texts.push(raw);
      starts[position++] = length;
      length += raw.length;
    }
  }
  starts[position] = length;
  return { text: texts.join(""), starts };
}

/** Return the tokens of the next place that has a text, after (or before) a token; it begins again at the end. */
function nextMatch({ text, starts }: Joined, wanted: string, from: number, by: number): [number, number] | null {
  const lower = wanted.toLowerCase();
  const after = from + 1 < starts.length ? starts[from + 1]! : 0;
  const before = from > 0 ? starts[from]! - 1 : -1;
  let found = by > 0 ? text.indexOf(lower, after) : before >= 0 ? text.lastIndexOf(lower, before) : -1;
  if (found < 0) found = by > 0 ? text.indexOf(lower) : text.lastIndexOf(lower);
  if (found < 0) return null;
  return [tokenOf(starts, found), tokenOf(starts, found + lower.length - 1) + 1];
}

function tokenOf(starts: Uint32Array, character: number): number {
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle]! <= character) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
