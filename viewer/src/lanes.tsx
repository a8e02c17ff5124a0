// The drawing of an episode: contexts as lanes, steps as blocks as wide as their tokens, handoffs and returns as arrows,
// rewrites as cuts. What a rewrite dropped is hatched.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { numberOf } from "./router";
import { number, plural, short, visible } from "./text";
import { type Episode, LEGEND, type Step } from "./types";
import { useWidth } from "./virtual";

const TOP = 20;
const LEAST = 5; // pixels of a step
const GAP = 2;
const MANY = 5; // contexts; their lanes are low

/** The heights of a lane and of the bar in it, in pixels. */
const sizesOf = (episode: Episode) => (episode.contexts.length > MANY ? { lane: 25, bar: 12 } : { lane: 34, bar: 16 });

interface Placed {
  step: Step;
  x: number;
  width: number;
  y: number;
}

/** Return where each step is drawn: in the order of the steps, as wide as its tokens. */
export function placed(episode: Episode, width: number): { steps: Placed[]; width: number } {
  const lanes = new Map(episode.contexts.map((context, index) => [context.name, index]));
  const { lane } = sizesOf(episode);
  const tokens = episode.steps.reduce((sum, step) => sum + step.observed + step.sampled, 0) || 1;
  const room = Math.max(200, width - 16, episode.steps.length * (LEAST + GAP + 4)) - episode.steps.length * (LEAST + GAP);
  const scale = room / tokens;
  let x = 8;
  const steps = episode.steps.map((step) => {
    const own = { step, x, width: LEAST + (step.observed + step.sampled) * scale, y: TOP + (lanes.get(step.context) ?? 0) * lane };
    x += own.width + GAP;
    return own;
  });
  return { steps, width: Math.ceil(x + 8) };
}

interface Props {
  episode: Episode;
  context: string;
  selected: number | null;
  onStep: (step: number) => void;
  onContext: (name: string) => void;
}

export function Lanes({ episode, context, selected, onStep, onContext }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const available = useWidth(box);
  const drawing = useMemo(() => placed(episode, available), [episode, available]);
  const { lane, bar } = sizesOf(episode);
  const height = TOP + episode.contexts.length * lane + 4;
  const trained = useMemo(() => new Set(episode.samples.flatMap((sample) => sample.steps)), [episode]);
  useEffect(() => {
    const own = selected === null ? undefined : drawing.steps[selected];
    const element = box.current;
    if (own && element && (own.x < element.scrollLeft + 20 || own.x + own.width > element.scrollLeft + element.clientWidth - 20)) {
      element.scrollLeft = own.x - element.clientWidth / 2;
    }
    const lanes = element?.parentElement;
    if (own && lanes && (own.y < lanes.scrollTop || own.y + lane > lanes.scrollTop + lanes.clientHeight)) lanes.scrollTop = own.y - 60;
  }, [selected, drawing]);
  const breaks = episode.steps.filter((step) => step.break?.kind === "rewrite").length;
  const label = `${plural(episode.contexts.length, "context")}, ${plural(episode.steps.length, "step")}, ${plural(breaks, "rewrite")}, ${plural(episode.links.length, "handoff or return")}`;
  return (
    <>
      <div class="lanes">
        <div class="lane-names" style={{ paddingTop: `${TOP - (lane - bar) / 2}px` }}>
          {episode.contexts.map((own) => (
            <button type="button" style={{ height: `${lane}px` }} aria-pressed={own.name === context} onClick={() => onContext(own.name)} title={visible(own.name)}>
              <span class="lane-name">{visible(own.name.split("/").at(-1) ?? own.name)}</span>
              <span class="faint">{isNamedByRole(episode, own) ? "" : visible(own.role)}</span>
              <span class="lane-tokens">{number(own.tokens)}</span>
            </button>
          ))}
        </div>
        <div ref={box} class="lane-box" tabIndex={0} role="group" aria-label="Drawing of the contexts">
          <svg width={drawing.width} height={height} role="img" aria-label={label}>
            <Definitions />
            {episode.contexts.map((own, index) => (
              <line class={own.name === context ? "lane current" : "lane"} x1="0" x2={drawing.width} y1={TOP + index * lane + bar / 2} y2={TOP + index * lane + bar / 2} />
            ))}
            {drawing.steps.map((own) => (
              <Block {...{ own, bar, onStep }} isTrained={trained.has(own.step.index)} isSelected={own.step.index === selected} />
            ))}
            <Dropped episode={episode} steps={drawing.steps} />
            <Links episode={episode} steps={drawing.steps} />
            <Cuts drawing={drawing} bar={bar} />
          </svg>
        </div>
      </div>
      <Legend episode={episode} />
    </>
  );
}

/** Whether the role adds nothing to a name: it is in the name, or it is that of the context from which it was opened. */
function isNamedByRole(episode: Episode, own: Episode["contexts"][number]): boolean {
  const parent = episode.contexts.find((one) => one.name === own.parent);
  return own.role === (parent?.role ?? "") || own.role === own.name.split("/").at(-1)?.replace(/-\d+$/, "");
}

/** What the colors and signs mean: the same words as in the drawings of the documentation. */
function Legend({ episode }: { episode: Episode }) {
  const breaks = episode.steps.flatMap((step) => step.break ?? []);
  const signs: [boolean, string, string, preact.ComponentChildren][] = [
    [breaks.some((own) => own.kind === "rewrite"), "break", "a rewrite: what it dropped is hatched", <Sign name="cut" path="M1 0 L5 3 L1 6 L5 9 L1 12" />],
    [episode.links.some((own) => own.kind === "handoff"), "opens a context", "a branch, a sub-agent or a summary", <Sign name="links" path="M0 6 H22" width={24} />],
    [episode.links.some((own) => own.kind === "return"), "returns", "to the context that opened it", <Sign name="links" path="M0 6 H22" width={24} dashed />],
    [episode.steps.some((step) => step.reward), "reward of a step", "green above zero, purple below", <span class="swatch good" />],
  ];
  return (
    <ul class="lane-legend" aria-label="Legend">
      {Object.entries(LEGEND).map(([kind, meaning]) => (
        <li title={meaning}>
          <span class={`swatch ${kind}`} />
          {kind}
        </li>
      ))}
      {signs.map(
        ([isShown, name, meaning, sign]) =>
          isShown && (
            <li title={meaning}>
              {sign}
              {name}
            </li>
          ),
      )}
    </ul>
  );
}

const Sign = ({ name, path, width = 6, dashed = false }: { name: string; path: string; width?: number; dashed?: boolean }) => (
  <svg class={name} width={width} height="12" aria-hidden="true">
    <path class={dashed ? "return" : ""} d={path} marker-end={name === "links" ? "url(#arrow)" : undefined} />
  </svg>
);

function Definitions() {
  return (
    <defs>
      <pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
        <rect width="5" height="5" class="hatch-ground" />
        <line x1="0" y1="0" x2="0" y2="5" class="hatch-line" />
      </pattern>
      <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
        <path d="M0 1 L7 4 L0 7 z" class="arrow-head" />
      </marker>
    </defs>
  );
}

export function describe(step: Step): string {
  const parts = [`step ${numberOf(step)}`, `${number(step.observed)} observed`, `${number(step.sampled)} sampled`];
  if (step.reward) parts.push(`reward ${short(step.reward)}`);
  if (step.break) parts.push(breakText(step));
  return parts.join(" · ");
}

export function breakText(step: Step): string {
  const { reason, dropped, kept, observed_again, detail } = step.break!;
  const name = reason.replaceAll("_", " ");
  if (!dropped) return `${name}${detail ? ` ${detail}` : ""}`;
  const again = observed_again ? `, at least ${number(observed_again)} of them again` : "";
  return `${name}: ${number(dropped)} tokens dropped, ${number(kept)} kept, ${number(step.observed)} observed${again}${detail ? ` (${detail})` : ""}`;
}

interface BlockProps {
  own: Placed;
  bar: number;
  isTrained: boolean;
  isSelected: boolean;
  onStep: (step: number) => void;
}

function Block({ own, bar, isTrained, isSelected, onStep }: BlockProps) {
  const { step, x, y, width } = own;
  const total = step.observed + step.sampled || 1;
  const share = (step.sampled / total) * width;
  return (
    <g class={isSelected ? "block selected" : "block"} onClick={() => onStep(step.index)}>
      <title>{describe(step)}</title>
      <rect class="hit" x={x - 1} y={y - 6} width={width + 2} height={bar + 12} />
      <rect class="observed" x={x} y={y} width={width} height={bar} rx="2" />
      <rect class="sampled" x={x + width - share} y={y} width={share} height={bar} rx="2" />
      {isTrained && <rect class="trained" x={x + width - share} y={y + bar} width={share} height="2" />}
      {step.reward ? <rect class={step.reward > 0 ? "good" : "bad"} x={x} y={y + bar + 4} width={width} height="3" rx="1" /> : null}
      {isSelected && <rect class="ring" x={x - 1.5} y={y - 2.5} width={width + 3} height={bar + 6} rx="3" />}
    </g>
  );
}

/** Where a token of a log is drawn. */
function positionOf(own: Placed, token: number): number {
  const { step, x, width } = own;
  return x + (width * (token - step.start)) / (step.stop - step.start || 1);
}

function Dropped({ episode, steps }: { episode: Episode; steps: Placed[] }) {
  const { bar } = sizesOf(episode);
  const found = useMemo(() => {
    const rects: { x: number; y: number; width: number }[] = [];
    const byContext = new Map<string, Placed[]>();
    for (const own of steps) byContext.set(own.step.context, [...(byContext.get(own.step.context) ?? []), own]);
    for (const step of episode.steps) {
      for (const [context, start, stop] of step.dropped) {
        for (const own of byContext.get(context) ?? []) {
          const [first, last] = [Math.max(start, own.step.start), Math.min(stop, own.step.stop)];
          if (first < last) rects.push({ x: positionOf(own, first), y: own.y, width: positionOf(own, last) - positionOf(own, first) });
        }
      }
    }
    return rects;
  }, [episode, steps]);
  return (
    <g class="dropped" aria-hidden="true">
      {found.map((rect) => (
        <rect x={rect.x} y={rect.y} width={rect.width} height={bar} fill="url(#hatch)" />
      ))}
    </g>
  );
}

function Links({ episode, steps }: { episode: Episode; steps: Placed[] }) {
  const { lane, bar } = sizesOf(episode);
  const lanes = new Map(episode.contexts.map((context, index) => [context.name, TOP + index * lane]));
  return (
    <g class="links" aria-hidden="true">
      {episode.links.map((link) => {
        const to = steps[link.step];
        const from = lastBefore(steps, link.from, link.step) ?? firstOf(steps, link.from);
        if (!to || !from) return null;
        const laneOf = (name: string) => (lanes.get(name) ?? 0) + bar / 2;
        const [source, target] = [laneOf(link.from), to.y + bar / 2];
        const turn = Math.sign(target - source) * 4;
        const edge = Math.sign(target - source) * (bar / 2);
        // A handoff leaves the end of its parent, down to the lane of the new context; a return arrives from below.
        const trunk = link.kind === "handoff" ? from.x + from.width - 5 : to.x + Math.min(5, to.width / 2);
        const path =
          link.kind === "handoff"
            ? `M${trunk} ${source + edge} V${target - turn} Q${trunk} ${target} ${trunk + 4} ${target} H${to.x - 1}`
            : `M${from.x + from.width} ${source} H${trunk - 4} Q${trunk} ${source} ${trunk} ${source + turn} V${target - edge - Math.sign(edge) * 2}`;
        return <path class={link.kind} d={path} marker-end="url(#arrow)" />;
      })}
    </g>
  );
}

function lastBefore(steps: Placed[], context: string, index: number): Placed | undefined {
  for (let at = index - 1; at >= 0; at--) if (steps[at]?.step.context === context) return steps[at];
  return undefined;
}

const firstOf = (steps: Placed[], context: string) => steps.find((own) => own.step.context === context);

const CHARACTER = 5.8; // pixels of a label

/** The rewrites, each with its reason and cost as far as there is room before the next one of its lane. */
function Cuts({ drawing, bar }: { drawing: ReturnType<typeof placed>; bar: number }) {
  const cuts = drawing.steps.filter((own) => own.step.break?.kind === "rewrite");
  return (
    <g class="cut" aria-hidden="true">
      {cuts.map((own, index) => {
        const { x, y, step } = own;
        const room = (cuts.slice(index + 1).find((next) => next.y === y)?.x ?? drawing.width) - x - 8;
        const reason = step.break!.reason.replaceAll("_", " ");
        const text = [`${reason} −${number(step.break!.dropped)}`, reason].find((one) => one.length * CHARACTER < room);
        const teeth = [0, 1, 2, 3, 4, 5].map((tooth) => `${x - 2 + (tooth % 2 ? 2.5 : -2.5)} ${y - 5 + tooth * ((bar + 10) / 5)}`);
        return (
          <>
            <path d={`M${teeth.join(" L")}`} />
            {text && (
              <text x={x + 2} y={y - 5}>
                {text}
              </text>
            )}
          </>
        );
      })}
    </g>
  );
}
