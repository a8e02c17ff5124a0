// The messages of a context: reasoning folded, calls with their results, errors and breaks where they occur.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { folded } from "./folding";
import { Content, type Place } from "./image";
import { breakText } from "./lanes";
import { outcomeOf } from "./list";
import { numberOf } from "./router";
import { Block, Visible, asText, number, plural, short, visible } from "./text";
import type { Call, Context, Episode, Message, Step } from "./types";

interface Shown {
  run: number;
  line: number;
  episode: Episode;
  context: Context;
  search: string;
  selected: number | null;
  onStep: (step: number) => void;
  onPrompt: (step: number) => void;
  onTokens: (context: string, position: number) => void;
  onContext: (name: string) => void;
}

export function Conversation(props: Shown) {
  const { context, episode } = props;
  const own = episode.steps.filter((step) => step.context === context.name);
  const inherited = context.messages.filter((message) => message.is_inherited).length;
  const begins = new Map<number, Step[]>(); // by the message that a step's break comes before
  let previous = inherited - 1;
  for (const step of own) {
    if (step.break) begins.set(previous + 1, [...(begins.get(previous + 1) ?? []), step]);
    if (step.reply !== null) previous = step.reply;
  }
  const shown: ComponentChildren[] = [];
  context.messages.forEach((message, index) => {
    if (message.is_inherited) return;
    for (const step of begins.get(index) ?? []) shown.push(<BreakMark key={`b${step.index}`} step={step} {...props} />);
    if (message.answers === null) shown.push(<Card key={index} message={message} index={index} {...props} />);
  });
  for (const step of begins.get(context.messages.length) ?? []) shown.push(<BreakMark key={`b${step.index}`} step={step} {...props} />);
  const unfinished = own.filter((step) => step.reply === null);
  return (
    <div class="conversation">
      <Origin {...props} />
      {inherited > 0 && <Inherited {...props} count={inherited} />}
      {shown}
      {unfinished.map((step) => (
        <p class="note" id={`step-${numberOf(step)}`}>
          Step {numberOf(step)} was not finished: {plural(step.sampled, "sampled token")}, {step.finish_reason}.
        </p>
      ))}
      {episode.final_break?.context === context.name && (
        <p class="note">
          The last observation was a rewrite ({episode.final_break.reason}), and no reply to it was requested.
        </p>
      )}
      {context.error && <p class="error-box">{visible(context.error)}</p>}
      <EndMark {...props} />
    </div>
  );
}

function Origin({ context, episode, onContext, onStep }: Shown) {
  if (context.parent === null && context.task === null) return null;
  const opened = episode.links.find((link) => link.kind === "handoff" && link.to === context.name);
  const opener = opened && lastStepOf(episode, opened.from, opened.step);
  return (
    <div class="origin">
      {context.parent !== null && (
        <p>
          Opened by{" "}
          <button type="button" class="link" onClick={() => onContext(context.parent!)}>
            {visible(context.parent)}
          </button>
          {opener && (
            <>
              {" "}
              in{" "}
              <button type="button" class="link" onClick={() => onStep(opener.index)}>
                step {numberOf(opener)}
              </button>
            </>
          )}
          {context.base !== null && <>, with the first {number(context.inherited_tokens)} tokens of {visible(context.base)}</>}
        </p>
      )}
      {context.task !== null && <Block text={asText(context.task)} mono />}
    </div>
  );
}

function Inherited(props: Shown & { count: number }) {
  const [isOpen, setOpen] = useState(false);
  const { context, count } = props;
  return (
    <details class="inherited" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {plural(count, "message")} of {visible(context.base ?? context.parent ?? "its parent")}
      </summary>
      {isOpen &&
        context.messages
          .slice(0, count)
          .map((message, index) => message.answers === null && <Card key={index} message={message} index={index} {...props} />)}
    </details>
  );
}

function EndMark({ episode, context }: Shown) {
  const isFirst = episode.contexts[0]?.name === context.name;
  const reason = isFirst ? episode.stop_reason : context.stop_reason;
  return (
    <>
      {isFirst && episode.error && <p class="error-box">{visible(episode.error)}</p>}
      {reason && (
        <p class="end-mark">
          <span>
            {visible(reason).replaceAll("_", " ")}
            {context.reward !== null && ` · own reward ${short(context.reward)}`}
            {isFirst && (episode.reward === null ? ` · not scored (${episode.not_scored})` : ` · reward ${short(episode.reward)}`)}
          </span>
        </p>
      )}
    </>
  );
}

/** The last step of a context before a step of another one. */
const lastStepOf = (episode: Episode, context: string, before: number) =>
  episode.steps.slice(0, before).findLast((step) => step.context === context);

/** The rewrite that took a reply out of the prompts, if any did. The fold's own call is observed again, so it stays. */
function dropperOf(episode: Episode, reply: Step, isFold: boolean): Step | undefined {
  const step = episode.steps.find((one) => one.dropped.some(([context, start, stop]) => context === reply.context && start <= reply.action_start && reply.action_start < stop));
  const reason = step?.break?.reason ?? "";
  const isShownAgain = reason === "thinking_stripped" || reason === "template" || (reason === "fold" && isFold && lastStepOf(episode, reply.context, step!.index) === reply);
  return isShownAgain ? undefined : step;
}

/** What the tools do by which the model itself decides what stays in its context (`context_tools`). */
const CONTEXT_TOOLS: Record<string, string> = {
  fold: "The messages since the last fold leave the prompt. This call stays in their place.",
  branch: "A detour in a context that begins with all of this one. Of it, only the result stays here.",
  finish: "The end of the branch. Its parent sees only this result.",
  note: "Stays visible: after a break, the prompt ends with all notes.",
  recall: "A search in what left the prompt. The steps in its result count the replies of a context.",
};

function aboutCall(episode: Episode, call: Call): string | undefined {
  const { context_tools: tools } = episode.config;
  const name = call.name === "finish" ? "branch" : call.name;
  return Array.isArray(tools) && tools.includes(name) ? CONTEXT_TOOLS[call.name] : undefined;
}

export function BreakMark({ step, onStep }: { step: Step; onStep: (step: number) => void }) {
  const break_ = step.break!;
  return (
    <div class={`break-mark ${break_.kind}`}>
      <button type="button" onClick={() => onStep(step.index)}>
        {visible(breakText(step))}
      </button>
    </div>
  );
}

function labelOf(message: Message): string {
  return message.role === "tool" ? `tool${message.name ? ` ${message.name}` : ""}` : message.name ? `${message.role} ${message.name}` : message.role;
}

function Card(props: Shown & { message: Message; index: number }) {
  const { run, line, message, index, context, search, selected, episode, onStep, onPrompt, onTokens, onContext } = props;
  const steps = message.is_inherited ? [] : message.steps.map((at) => episode.steps[at]!);
  const last = steps.at(-1);
  const isSelected = steps.some((step) => step.index === selected);
  return (
    <article class={`message ${message.role} ${isSelected ? "selected" : ""}`} id={last ? `step-${numberOf(last)}` : undefined} data-index={index}>
      <header>
        <span class="role">{visible(labelOf(message))}</span>
        {steps.map((step) => (
          <span class="step-facts">
            <button type="button" class="link" onClick={() => onStep(step.index)}>
              step {numberOf(step)}
            </button>
            <span>{plural(step.sampled, "token")}</span>
            <Rewards step={step} />
            {step.finish_reason !== "stop" && <span class="warn">{step.finish_reason}</span>}
            {step.is_copied && <span class="faint">before the fork</span>}
            <DroppedMark {...{ episode, step, message, onStep }} />
            <span class="actions">
              <button type="button" class="quiet" onClick={() => onPrompt(step.index)}>
                prompt
              </button>
              <button type="button" class="quiet" onClick={() => onTokens(context.name, step.action_start)}>
                tokens
              </button>
            </span>
          </span>
        ))}
      </header>
      {message.reasoning !== null && <Reasoning text={message.reasoning} search={search} isOpenBlock={message.open_block === "reasoning"} />}
      <Content {...{ run, line, episode, message, search }} />
      {message.content === "" && !message.parts && message.reasoning === null && !message.calls.length && <p class="faint">(empty)</p>}
      {message.calls.map((call, at) => (
        <CallBox key={at} {...{ run, line, episode, call, search, last, onContext }} result={call.result === null ? null : context.messages[call.result]!} />
      ))}
      {message.errors.map((error) => (
        <p class="error-box">
          <Visible text={error} search={search} />
        </p>
      ))}
    </article>
  );
}

export function Rewards({ step }: { step: Step }) {
  const named = Object.entries(step.rewards).filter(([name, value]) => value !== 0 || name !== "reward");
  if (step.reward === null) return null;
  if (!named.length) return step.reward ? <span class={`earned ${outcomeOf(step.reward)}`}>reward {short(step.reward)}</span> : null;
  return (
    <>
      {named.map(([name, value]) => (
        <span class={value ? `earned ${outcomeOf(value)}` : "faint"}>
          {visible(name)} {value > 0 ? "+" : ""}
          {short(value)}
        </span>
      ))}
    </>
  );
}

function Reasoning({ text, search, isOpenBlock }: { text: string; search: string; isOpenBlock: boolean }) {
  const isFound = search !== "" && folded(text).includes(folded(search));
  if (!text.trim()) return <p class="faint reasoning-empty">empty reasoning</p>;
  return (
    <details class="reasoning" open={isFound}>
      <summary>
        <span class="label">reasoning</span>
        {isOpenBlock && <span class="warn">not closed</span>}
        <span class="preview">{visible(text.trim().slice(0, 160))}</span>
      </summary>
      <Block text={text} search={search} />
    </details>
  );
}

function DroppedMark({ episode, step, message, onStep }: { episode: Episode; step: Step; message: Message; onStep: (step: number) => void }) {
  const dropper = dropperOf(
    episode,
    step,
    message.calls.some((call) => call.name === "fold"),
  );
  if (!dropper?.break) return null;
  return (
    <button type="button" class="link dropped-mark" title={visible(breakText(dropper))} onClick={() => onStep(dropper.index)}>
      <span class="swatch dropped" />
      dropped at step {numberOf(dropper)} ({visible(dropper.break.reason.replaceAll("_", " "))})
    </button>
  );
}

interface CallProps extends Place {
  call: Call;
  result: Message | null;
  search: string;
  last: Step | undefined; // of the message
  onContext: (name: string) => void;
}

function CallBox({ call, result, search, last, onContext, ...place }: CallProps) {
  const { episode } = place;
  const given = call.arguments;
  const about = aboutCall(episode, call);
  const opened = episode.links.filter((link) => link.kind === "handoff" && last && lastStepOf(episode, link.from, link.step) === last);
  const isObject = given !== null && typeof given === "object";
  return (
    <div class={`call ${call.error ? "failed" : ""}`}>
      <div class="call-head">
        <span class="role">call</span>
        <code class="name">
          <Visible text={call.name || "(no name)"} search={search} />
        </code>
        {call.id && <span class="faint">{visible(call.id)}</span>}
        {opened.map((link) => (
          <button type="button" class="link opened" onClick={() => onContext(link.to)}>
            → {visible(link.to)}
          </button>
        ))}
      </div>
      {about && <p class="faint about-call">{about}</p>}
      {isObject ? (
        <dl class="arguments">
          {Object.entries(given).map(([name, value]) => (
            <>
              <dt>
                <Visible text={name} search={search} />
              </dt>
              <dd>
                <Block text={asText(value)} search={search} mono={typeof value !== "string"} />
              </dd>
            </>
          ))}
        </dl>
      ) : (
        <Block text={asText(given)} search={search} mono />
      )}
      {call.error && (
        <p class="error-box">
          <Visible text={call.error} search={search} />
        </p>
      )}
      {result ? (
        <div class="result" data-result={call.result}>
          <span class="role">result</span>
          <Content {...place} message={result} search={search} />
        </div>
      ) : (
        <p class="faint no-result">no result</p>
      )}
    </div>
  );
}
