"""The conformance checks of history policies, on a scripted conversation with reasoning, tool calls and questions."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..authoring._env import Env, EnvConfig
from ..authoring._loop_tasks import in_event_loop
from ..contexts._history import HistoryPolicy, get_history
from ..episodes._turn import Turn
from ..errors import ConfigError
from ..limits import Limits
from ..messages import Message, ToolCall
from ..rendering.renderer import Renderer
from ._renderers import TOOL
from ._reports import Check, CheckFailure, CheckReport, NotPossible, described, run_check

_PLAYS = "it can be played"


class HistoryReport(CheckReport[Check]):
    """The results of all checks of one history policy."""


def check_history(
    history: str | Mapping[str, Any] | HistoryPolicy, *, steps: int = 24, renderer: str | Renderer = "qwen3"
) -> HistoryReport:
    """Run the conformance checks of a history policy.

    Args:
        history: The policy, or its name with options, as environments take it.
        steps: How many replies the conversation has. The first check reports how many rewrites there were, and how
            long the prompts were. If there were none, choose more steps, or a smaller limit of the policy.
        renderer: A renderer of a family with tools, or its name, on the embedded vocabulary.

    Returns:
        A report. In a test, call its `raise_if_failed()`. A check that does not apply, or cannot run, is
        `NOT POSSIBLE`, which is not a failure.

    Raises:
        ConfigError: If there are fewer than two steps, or `history` is not a policy.
    """
    if steps < 2:
        raise ConfigError(f"steps is {steps}; expected at least 2")
    script = _Script(get_history(history), steps, renderer)
    if in_event_loop():  # as in a notebook: a second event loop needs its own thread
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_check_all, script).result()
    return _check_all(script)


def _check_all(script: "_Script") -> HistoryReport:
    report = HistoryReport(type(script.policy).__name__)
    for name, check in CHECKS.items():
        if report.failed and report.failed[0].name == _PLAYS:
            report.checks.append(Check(name, "NOT POSSIBLE", f'see "{_PLAYS}"'))
        else:
            report.checks.append(run_check(name, partial(check, script)))
    return report


class _Step(NamedTuple):
    """The observation before one reply."""

    keep: int
    tokens: list[int]
    reason: str
    is_rewritten: bool


class _Dialog(Env):
    """Asks questions; the model calls a tool for each of them, and answers."""

    class Config(EnvConfig):
        """The options of the environment."""

        steps: int

    default_limits = Limits(max_steps=100_000)

    def start(self) -> Turn:
        """Ask the first question."""
        self.replies = 0
        return Turn("Question 0: what is 0 + 1?", system="Look it up.", tools=[TOOL])

    def respond(self, reply: Message) -> Turn:
        """Return the result of a call, or ask the next question."""
        self.replies += 1
        text = f"Result {self.replies}: {'found it, ' * 8}{self.replies}."
        results = [
            Message(role="tool", name=call.name, content=text, tool_call_id=call.id) for call in reply.tool_calls
        ]
        return Turn(results or f"Question {self.replies}: and now?", terminated=self.replies >= self.config.steps)


@dataclass(frozen=True, slots=True)
class _Script:
    """A policy, and the conversation that it is checked on."""

    policy: HistoryPolicy
    steps: int
    renderer: str | Renderer

    def env(self, policy: HistoryPolicy) -> Env:
        """Make an environment with a policy."""
        tokenizer = "embedded" if isinstance(self.renderer, str) else None
        return _Dialog(renderer=self.renderer, tokenizer=tokenizer, history=policy, steps=self.steps)

    def play(self, policy: HistoryPolicy) -> list[_Step]:
        """Play an episode, and return what the model gets."""
        return list(self.playing(self.env(policy)))

    def fresh(self) -> HistoryPolicy:
        """Return a copy of the policy as it was given."""
        try:
            return copy.deepcopy(self.policy)
        except Exception as error:  # a policy may hold anything
            raise NotPossible(f"the policy cannot be copied, which the checks need: {described(error)}") from error

    def playing(self, env: Env, *, is_reset: bool = True) -> Iterator[_Step]:
        """Play an episode step by step; with `is_reset=False`, the rest of one."""
        observation, info = env.reset(seed=0) if is_reset else env.pending()
        while True:
            break_ = info.get("break")
            reason, is_rewritten = ("", False) if break_ is None else (break_.reason, break_.kind == "rewrite")
            yield _Step(observation.keep, observation.tokens.tolist(), reason, is_rewritten)
            if env.trajectory is not None:
                return
            reply = Message(role="assistant", content="All was found.")  # the summary that is requested
            if observation.context == "main":  # a call, or an answer
                number, is_question = len(env.messages()), env.messages()[-1].role == "user"
                call = ToolCall(name=TOOL["function"]["name"], arguments={"what": f"it {number}"})
                reply = Message(
                    role="assistant",
                    content="" if is_question else f"It is {number}.",
                    reasoning=f"Let me think of {number}. " * 4,
                    tool_calls=(call,) if is_question else (),
                )
            observation, *_, info = env.step(env.renderer.reply(reply))


def _plays(script: _Script) -> str:
    """Check that an episode ends, and report what the policy did in it."""
    env = script.env(script.fresh())
    *replied, _ = script.playing(env)
    breaks = sum(bool(step.reason) for step in replied)
    longest = max(step.keep + len(step.tokens) for step in replied)
    end = "" if env.trajectory is None else f", stop reason: {env.trajectory.stop_reason}"
    return f"{len(replied)} replies, {breaks} breaks, prompts of up to {longest} tokens{end}"


def _repeats(script: _Script) -> str:
    """Check that the same replies give the same prompts."""
    _expect_same(script.play(script.fresh()), script.play(script.fresh()), "two episodes with the same replies")
    return ""


def _serves_many(script: _Script) -> str:
    """Check that one object can serve several contexts at a time: its memory is in `history.state`."""
    expected, policy = script.play(script.fresh()), script.fresh()
    together = zip(script.playing(script.env(policy)), script.playing(script.env(policy)), strict=False)
    advice = "keep what a policy remembers in history.state, not in the policy"
    for played in zip(*together, strict=True):
        _expect_same(expected, list(played), f"an episode alone and one whose policy serves two at a time ({advice})")
    _expect_same(expected, script.play(policy), f"an episode and a later one with the same policy ({advice})")
    return ""


def _forks(script: _Script) -> str:
    """Check that a fork continues like its original."""
    expected = script.play(script.fresh())
    for at in range(1, len(expected) - 1, max(1, len(expected) // 4)):
        env = script.env(script.fresh())
        original = script.playing(env)
        before = [next(original) for _ in range(at + 1)]
        rest = list(script.playing(env.fork(), is_reset=False))
        what = f"an episode and its fork after {at} replies"
        _expect_same(expected, [*before, *rest[1:]], what)
        _expect_same(expected, [*before, *original], f"{what}, of which the original continued later")
    return ""


def _keeps_calls(script: _Script) -> str:
    """Check that no tool result is visible without the call that it answers."""
    env, rewrites = script.env(script.fresh()), 0
    for step in script.playing(env):
        if not step.is_rewritten:
            continue
        rewrites += 1
        view = env.episode.agent.context.view
        for index, message in enumerate(view):
            asked = next((m for m in reversed(view[:index]) if m.role != "tool"), None)
            if message.role == "tool" and (asked is None or not asked.tool_calls):
                raise CheckFailure(
                    f"message {index} of the {len(view)} that the model sees is a tool's result, but the call that it "
                    "answers was dropped: drop or keep a reply together with the results of its calls"
                )
    if not rewrites:
        raise NotPossible("the policy rewrote nothing")
    return f"{rewrites} rewrites"


def _expect_same(first: Sequence[_Step], second: Sequence[_Step], what: str) -> None:
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            raise CheckFailure(
                f"{what} differ at step {index + 1}: the first keeps {one.keep} tokens ({one.reason or 'no break'}), "
                f"the second {other.keep} ({other.reason or 'no break'})"
            )
    if len(first) != len(second):
        raise CheckFailure(f"{what} have {len(first) - 1} and {len(second) - 1} replies")


CHECKS: dict[str, Callable[[_Script], str]] = {
    _PLAYS: _plays,
    "same replies, same prompts": _repeats,
    "one object serves many contexts": _serves_many,
    "forks": _forks,
    "tool results keep their calls": _keeps_calls,
}
"""All checks by name, in the order in which they run. If the episode fails, no further check runs."""
