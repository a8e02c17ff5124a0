// One episode: its contexts as a drawing, and the conversation, the tokens or a prompt of one of them.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { hitsOf } from "./contents";
import { Conversation } from "./conversation";
import { type RunRows, episodeOf } from "./data";
import { folded } from "./folding";
import { useKeys } from "./keys";
import { Lanes, breakText } from "./lanes";
import { Status, backTo, groupKey, lastList, outcomeOf, sideBySide } from "./list";
import { change, go, indexOf, linkTo, numberOf } from "./router";
import { Share } from "./share";
import { asText, decimal, number, plural, short, visible } from "./text";
import { TokenView } from "./tokenview";
import type { Episode, Hit, Step } from "./types";

type Loaded = { episode: Episode | null; error: string | null };

export function useEpisode(run: number, line: number): Loaded {
  const [loaded, setLoaded] = useState<Loaded>({ episode: null, error: null });
  useEffect(() => {
    let isCurrent = true;
    setLoaded({ episode: null, error: null });
    episodeOf(run, line).then(
      (episode) => isCurrent && setLoaded({ episode, error: null }),
      (error: Error) => isCurrent && setLoaded({ episode: null, error: error.message }),
    );
    return () => {
      isCurrent = false;
    };
  }, [run, line]);
  return loaded;
}

interface Props {
  state: RunRows | undefined;
  run: number;
  line: number;
  query: Record<string, string>;
}

export function EpisodePage({ state, run, line, query }: Props) {
  const { episode, error } = useEpisode(run, line);
  const move = (by: number) => {
    const shown = lastList.run === run && lastList.lines.includes(line) ? lastList.lines : (state?.rows ?? []).map((row) => row.line);
    const next = shown[shown.indexOf(line) + by];
    if (next !== undefined) go(linkTo(["run", run, next], { view: query.view === "prompt" ? undefined : query.view }), true);
  };
  useKeys([
    { keys: ["Escape", "u"], what: "Back to the list", run: () => go(backTo(run, line)) },
    { keys: ["]"], what: "Next episode", run: () => move(1) },
    { keys: ["["], what: "Previous episode", run: () => move(-1) },
  ]);
  if (error) {
    return (
      <div class="page-message">
        <h1>Line {line} cannot be shown</h1>
        <p class="error-box">{visible(error)}</p>
        <p>
          <a href={backTo(run, line)}>Back to the list</a>
        </p>
      </div>
    );
  }
  if (!episode) return <p class="page-message faint">Reading…</p>;
  return <EpisodeView key={`${run}/${line}`} episode={episode} {...{ state, run, line, query, move }} />;
}

function EpisodeView({ episode, state, run, line, query, move }: Props & { episode: Episode; move: (by: number) => void }) {
  const named = indexOf(query.step);
  const selected = named !== null && named < episode.steps.length ? named : null;
  const wanted = query.context ?? (selected === null ? undefined : episode.steps[selected]!.context);
  const context = episode.contexts.find((own) => own.name === wanted) ?? episode.contexts[0];
  const [isSharing, setSharing] = useState(false);
  const view = query.view ?? "conversation";
  const search = query.find ?? "";
  const found = useMemo(() => hitsOf(episode, search ? [folded(search)] : []), [episode, search]);
  const hit = hitIndex(found, query);
  const input = useRef<HTMLInputElement>(null);
  const main = useRef<HTMLDivElement>(null);
  const step = selected === null ? null : episode.steps[selected]!;
  const select = (index: number) => {
    const next = episode.steps[Math.min(Math.max(index, 0), episode.steps.length - 1)];
    if (next) change({ step: numberOf(next), context: next.context, at: undefined, message: undefined });
  };
  const show = (next: string) => change({ view: next === "conversation" ? undefined : next, at: undefined });
  const prompt = (index: number) => change({ view: "prompt", step: numberOf({ index }), context: episode.steps[index]!.context, at: undefined }, false);
  const tokens = (name: string, at: number) => change({ view: "tokens", context: name, at }, false);
  const find = (by: number) => {
    if (!found.length) return;
    const at = hit === null ? (by > 0 ? 0 : found.length - 1) : (hit + by + found.length) % found.length;
    change({ ...placeOfHit(found[at]!), step: undefined });
  };
  useEffect(() => {
    const target = hit === null ? null : main.current?.querySelector(`[data-index="${found[hit]!.message}"], [data-result="${found[hit]!.message}"]`);
    (target?.querySelector("mark") ?? target)?.scrollIntoView({ block: "center" });
  }, [hit, query.context, search, view]);
  useEffect(() => {
    if (selected !== null && hit === null && view === "conversation") document.getElementById(`step-${numberOf({ index: selected })}`)?.scrollIntoView({ block: "nearest" });
  }, [selected, context?.name, view]);
  useKeys([
    { keys: ["n", "ArrowRight"], what: "Next step", run: () => select((selected ?? -1) + 1) },
    { keys: ["p", "ArrowLeft"], what: "Previous step", run: () => select((selected ?? episode.steps.length) - 1) },
    { keys: ["c"], what: "Conversation", run: () => show("conversation") },
    { keys: ["t"], what: "Tokens", run: () => show("tokens") },
    { keys: ["m"], what: "Prompt of the step", run: () => prompt(selected ?? 0) },
    { keys: ["i"], what: "About the episode", run: () => show("about") },
    {
      ...{ keys: ["x"], what: "Next context" },
      run: () => {
        const at = episode.contexts.findIndex((own) => own.name === context?.name);
        change({ context: episode.contexts[(at + 1) % episode.contexts.length]?.name });
      },
    },
    { keys: ["/"], what: "Search in the conversation", run: () => input.current?.focus() },
    { keys: ["s"], what: "Side by side with its group", run: () => go(besides()) },
  ]);
  const besides = () => {
    const own = state?.rows.find((row) => row.line === line);
    const group = own ? state!.rows.filter((row) => groupKey(row) === groupKey(own)) : [];
    return sideBySide(run, group.length > 1 ? group : own ? [own] : []);
  };
  if (!context) return <p class="page-message">The episode has no context: {visible(episode.error ?? episode.stop_reason)}</p>;
  return (
    <div class="episode">
      <header class="episode-head">
        <div class="title">
          <button type="button" class="quiet" aria-label="Previous episode" title="Previous episode ([)" onClick={() => move(-1)}>
            ‹
          </button>
          <button type="button" class="quiet" aria-label="Next episode" title="Next episode (])" onClick={() => move(1)}>
            ›
          </button>
          <h1>
            Episode {number(line)} <span class="faint">{visible(episode.id)}</span>
          </h1>
          <span class="head-reward">
            {episode.reward === null ? (
              `not scored (${episode.not_scored})`
            ) : (
              <>
                reward <b class={outcomeOf(episode.reward)}>{decimal(episode.reward)}</b>
              </>
            )}
          </span>
          <Status row={episode} />
          <span class="faint wide-only">
            {plural(episode.steps.length, "step")} · {number(episode.observed_tokens + episode.sampled_tokens)} tokens
          </span>
        </div>
        <div class="tools">
          <nav class="tabs" aria-label="Views of the episode">
            {["conversation", "tokens", "prompt", "about"].map((name) => (
              <button
                type="button"
                aria-pressed={view === name}
                onClick={() => (name === "prompt" ? prompt(selected ?? 0) : show(name))}
              >
                {name[0]!.toUpperCase() + name.slice(1)}
              </button>
            ))}
          </nav>
          <a class="button" href={besides()}>
            Side by side
          </a>
          <button type="button" onClick={() => setSharing(true)}>
            Share
          </button>
          {view === "conversation" && (
            <span class="search">
              <input
                ref={input}
                type="search"
                aria-label="Search in the conversation"
                placeholder="Search"
                value={search}
                onInput={(event) => change({ find: event.currentTarget.value, message: undefined })}
                onKeyDown={(event) => {
                  if (event.key === "Enter") find(event.shiftKey ? -1 : 1);
                  if (event.key === "Escape") event.currentTarget.blur();
                  event.stopPropagation();
                }}
              />
              <span class="faint count" role="status">
                {search && (found.length ? `${hit === null ? "" : `${hit + 1} of `}${found.length}` : "none")}
              </span>
            </span>
          )}
        </div>
      </header>
      {isSharing && <Share {...{ run, line }} onClose={() => setSharing(false)} />}
      <Lanes
        episode={episode}
        context={context.name}
        selected={selected}
        onStep={select}
        onContext={(name) => change({ context: name, at: undefined, step: undefined, view: view === "prompt" ? undefined : query.view })}
      />
      <div class="episode-body">
        <div class="episode-main" ref={main} tabIndex={view === "conversation" || view === "about" ? 0 : undefined} role="region" aria-label={view}>
          {view === "conversation" && (
            <Conversation
              {...{ run, line, episode, context, search, selected, onStep: select, onPrompt: prompt, onTokens: tokens }}
              onContext={(name) => change({ context: name })}
            />
          )}
          {view === "tokens" && <TokenView key={context.name} {...{ run, line, episode, query }} context={context.name} step={null} />}
          {view === "prompt" && step && <TokenView key={`p${selected}`} {...{ run, line, episode, query }} context={step.context} step={step} />}
          {view === "prompt" && !step && <p class="page-message">Select a step.</p>}
          {view === "about" && <About episode={episode} />}
        </div>
        {step && view !== "prompt" && (
          <StepPanel {...{ step, episode }} onPrompt={() => prompt(step.index)} onTokens={() => tokens(step.context, step.start)} onClose={() => change({ step: undefined })} />
        )}
      </div>
    </div>
  );
}

/** The place of a message in which something was found, for a link. Messages are counted from 1, as steps are. */
export const placeOfHit = (hit: Hit) => ({ context: hit.context, message: hit.message + 1 });

function hitIndex(found: Hit[], query: Record<string, string>): number | null {
  const at = found.findIndex((hit) => hit.context === query.context && hit.message === indexOf(query.message));
  return at < 0 ? null : at;
}

interface PanelProps {
  step: Step;
  episode: Episode;
  onPrompt: () => void;
  onTokens: () => void;
  onClose: () => void;
}

function StepPanel({ step, episode, onPrompt, onTokens, onClose }: PanelProps) {
  const samples = episode.samples.filter((sample) => sample.steps.includes(step.index));
  const rewards = Object.entries(step.rewards).filter(([name]) => name !== "reward" || step.rewards[name] !== 0);
  return (
    <aside class="panel" tabIndex={0} aria-label={`Step ${numberOf(step)}`}>
      <header>
        <h2>Step {numberOf(step)}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick={onClose}>
          ×
        </button>
      </header>
      <div class="panel-actions">
        <button type="button" onClick={onPrompt}>
          Prompt that the model saw
        </button>
        <button type="button" onClick={onTokens}>
          Tokens
        </button>
      </div>
      <Facts
        of={[
          ["context", step.context],
          ["prompt", number(step.prompt_tokens)],
          ["kept", number(step.keep) + (step.base === step.context ? "" : ` of ${step.base}`)],
          ["observed", number(step.observed)],
          ["sampled", number(step.sampled)],
          ["finish", step.finish_reason],
          ["temperature", [...new Set(step.parts.map((part) => short(part.temperature)))].join(", ")],
          ["version", [...new Set(step.parts.map((part) => part.policy_version ?? "unknown"))].join(", ")],
          ["samples", samples.map((sample) => sample.index).join(", ") || "none"],
        ]}
      />
      {step.break && (
        <>
          <h3>{step.break.kind === "rewrite" ? "Break" : "Switch"}</h3>
          <p>{visible(breakText(step))}</p>
        </>
      )}
      <h3>Reward</h3>
      {step.reward === null ? (
        <p class="faint">not scored</p>
      ) : (
        <Facts of={[...rewards.map(([name, value]): [string, string] => [name, short(value)]), ["sum", short(step.reward)]]} />
      )}
      {Object.keys(step.left).length > 0 && (
        <>
          <h3>Left of the limits</h3>
          <Facts of={Object.entries(step.left).map(([name, value]) => [name.replace("max_", "").replaceAll("_", " "), number(value)])} />
        </>
      )}
      {Object.keys(step.metrics).length > 0 && (
        <>
          <h3>Metrics</h3>
          <Facts of={Object.entries(step.metrics).map(([name, value]) => [name, short(value)])} />
        </>
      )}
    </aside>
  );
}

export function Facts({ of }: { of: [string, string][] }) {
  return (
    <dl class="facts">
      {of
        .filter(([, value]) => value !== "")
        .map(([name, value]) => (
          <>
            <dt>{visible(name)}</dt>
            <dd>{visible(value)}</dd>
          </>
        ))}
    </dl>
  );
}

function About({ episode }: { episode: Episode }) {
  const parts: [string, unknown][] = [
    ["Task", episode.task],
    ["Configuration", episode.config],
    ["Limits", episode.limits],
    ["History policy", episode.history],
    ["Renderer", episode.renderer],
    ["Forked from", episode.origins.length ? episode.origins.join("\n") : null],
    ["Error", episode.error],
  ];
  return (
    <div class="about">
      <Facts
        of={[
          ["environment", episode.env],
          ["seed", episode.seed === null ? "none" : String(episode.seed)],
          ["group", episode.group_id ?? "none"],
          ["status", episode.stop_reason === episode.status ? episode.status : `${episode.status} (${episode.stop_reason})`],
          ["error of", episode.error_kind ?? ""],
          ["samples", `${episode.samples.length}, ${number(episode.samples.reduce((sum, own) => sum + own.tokens, 0))} tokens`],
          ["tree", `${plural(episode.nodes.length, "node")}, ${number(episode.nodes.reduce((sum, own) => sum + own.stop - own.start, 0))} tokens`],
          ["tokenizer", episode.tokenizer],
        ]}
      />
      {parts.map(
        ([name, value]) =>
          value !== null &&
          asText(value) !== "{}" && (
            <section>
              <h2>{name}</h2>
              <pre class="text mono">{visible(asText(value))}</pre>
            </section>
          ),
      )}
      <section>
        <h2>Contexts</h2>
        <table>
          <thead>
            <tr>
              <th>Name</th>
              <th>Role</th>
              <th>End</th>
              <th class="num">Tokens</th>
              <th class="num">Messages</th>
              <th class="num">Reward</th>
              <th>Tools</th>
            </tr>
          </thead>
          <tbody>
            {episode.contexts.map((own) => (
              <tr>
                <td>{visible(own.name)}</td>
                <td>{visible(own.role)}</td>
                <td>{visible(own.stop_reason)}</td>
                <td class="num">{number(own.tokens)}</td>
                <td class="num">{number(own.messages.length)}</td>
                <td class="num">{short(own.own_reward)}</td>
                <td>{visible(own.tools.join(", "))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </div>
  );
}
