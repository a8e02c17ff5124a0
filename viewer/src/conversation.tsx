// The messages of a context: reasoning folded, calls with their results, errors and breaks where they occur.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { folded } from "./folding";
import { breakText } from "./lanes";
import { numberOf } from "./router";
import { Block, Visible, asText, number, plural, short, visible } from "./text";
import type { Call, Context, Episode, Message, Step } from "./types";

interface Shown {
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
        <p class="note bad">
          The last observation was a rewrite ({episode.final_break.reason}), and no reply to it was requested.
        </p>
      )}
      {context.error && <p class="error-box">{visible(context.error)}</p>}
      <EndMark {...props} />
    </div>
  );
}

function Origin({ context, onContext }: Shown) {
  if (context.parent === null && context.task === null) return null;
  return (
    <div class="origin">
      {context.parent !== null && (
        <p>
          Opened by{" "}
          <button type="button" class="link" onClick={() => onContext(context.parent!)}>
            {visible(context.parent)}
          </button>
          {context.base !== null && <>, with its first {number(context.inherited_tokens)} tokens as they were</>}
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
  const { message, index, context, search, selected, episode, onStep, onPrompt, onTokens } = props;
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
      {message.content !== "" && <Block text={message.content} search={search} />}
      {message.content === "" && message.reasoning === null && !message.calls.length && <p class="faint">(empty)</p>}
      {message.calls.map((call, at) => (
        <CallBox key={at} call={call} result={call.result === null ? null : context.messages[call.result]!} search={search} />
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
  if (!named.length) return step.reward ? <span class="earned">reward {short(step.reward)}</span> : null;
  return (
    <>
      {named.map(([name, value]) => (
        <span class={value > 0 ? "earned" : value < 0 ? "bad" : "faint"}>
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

function CallBox({ call, result, search }: { call: Call; result: Message | null; search: string }) {
  const given = call.arguments;
  const isObject = given !== null && typeof given === "object";
  return (
    <div class={`call ${call.error ? "failed" : ""}`}>
      <div class="call-head">
        <span class="role">call</span>
        <code class="name">
          <Visible text={call.name || "(no name)"} search={search} />
        </code>
        {call.id && <span class="faint">{visible(call.id)}</span>}
      </div>
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
          <Block text={result.content} search={search} />
        </div>
      ) : (
        <p class="faint no-result">no result</p>
      )}
    </div>
  );
}
