"""`envsdk play`: a person is the policy, and sees what the model would see."""

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..authoring.env import Env
from ..contexts.context import Context
from ..contexts.protocol import Action, Break
from ..errors import EnvsdkError
from ..messages import Message, ToolSchema
from ..rollouts import ReplyPolicy
from ..trajectories.trajectory import Trajectory
from .options import ENVIRONMENT, NAMED, OPTION, SPECIFICATION, TOKENIZER, maker, options_of, specification
from .output import say, writable, write
from .typed import HELP, TypingError, read_reply, signatures


class Left(Exception):
    """The person does not want to go on."""


def play(
    env: Annotated[str, typer.Argument(help=ENVIRONMENT)],
    seed: Annotated[int, typer.Option(min=0, help="Which task.")] = 0,
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    history: Annotated[str, typer.Option(help=SPECIFICATION + " Such as compact:every=10.")] = "keep",
    tasks: Annotated[Path | None, typer.Option(help="A JSONL file, one task a line.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = None,
) -> None:
    """Play an episode yourself: you are told what the model is told, and your replies are its replies.

    Type :help for how calls of tools and replies of several lines are typed. Ctrl-D ends it.
    """
    options = options_of(option or (), NAMED)
    options |= {"renderer": specification(renderer), "tokenizer": tokenizer, "history": specification(history)}
    if tasks is not None:
        options["tasks"] = str(tasks)
    folder = None if out is None else writable(out)
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # lines can then be edited, and repeated
    with contextlib.closing(maker(env, options)()) as played:
        try:
            trajectory = Game(played).play(seed)
        except (Left, EOFError):
            steps = played.episode.root.usage.steps
            say(f"\nYou left after {steps} {'step' if steps == 1 else 'steps'}.")
            return
        except KeyboardInterrupt:
            say("\ninterrupted")
            raise typer.Exit(130) from None
    if folder is not None:
        write(folder, [trajectory], trajectory.samples())


class Game:
    """Plays one episode with a person at the terminal, or with lines from standard input.

    Args:
        env: The environment.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._shown: dict[str, int] = {}
        """For each context, how many of its messages were shown, ..."""
        self._tools: dict[str, list[ToolSchema]] = {}
        """... and which tools."""
        self._last = ""
        """The context in which the person spoke last."""

    def play(self, seed: int) -> Trajectory:
        """Play to the end.

        Raises:
            Left: If the person does not want to go on.
            EOFError: If there is nothing more to read.
        """
        _, info = self._env.reset(seed=seed)
        say(f"{self._env.name}, seed {seed}. You are the model; :help says how to reply.", style="bold")
        while self._env.trajectory is None:
            self._show(info)
            action = self._action(info)
            context = self._env.episode.contexts[info["context"]]
            self._shown[context.name] = len(context.messages) + 1  # what was typed need not be shown
            _, reward, _, _, info = self._env.step(action)
            _show_outcome(reward, info, is_cut=action.finish_reason == "length")
        self._show_messages()
        trajectory = self._env.trajectory
        _show_end(trajectory)
        return trajectory

    def _show(self, info: dict[str, Any]) -> None:
        """Show what is new, and what the reply begins with."""
        agent = self._env.episode.agent
        break_: Break | None = info.get("break")
        if break_ is not None and break_.kind == "rewrite":
            detail = f" ({break_.detail})" if break_.detail else ""
            say(
                f"-- {break_.reason}{detail}: of what was said so far, {break_.kept} tokens stay and {break_.dropped} "
                "are dropped or written anew; :prompt shows all of it",
                style="yellow",
            )
        self._show_messages()
        if agent.context.name != self._last and (self._last or agent.context.name != "main"):
            say(f"-- now you are {agent.context.name} ({agent.context.role})", style="yellow")
        self._last = agent.context.name
        self._show_tools(agent.context)
        for what, begun in (("goes on with", agent.turn.continuation), ("begins with", agent.turn.prefill)):
            if begun is not None:
                say(f"-- your reply {what}: {_said(begun) if isinstance(begun, Message) else begun}", style="yellow")
        limits = [f"ends at {' or '.join(map(repr, info['stop']))}"] if info["stop"] else []
        limits += [f"has at most {info['max_tokens']} tokens"] if info["max_tokens"] is not None else []
        if limits:
            say(f"-- your reply {', and '.join(limits)}", style="dim")

    def _show_messages(self) -> None:
        """Show what was said in each context since it was shown last."""
        contexts = self._env.episode.contexts
        for name, context in contexts.items():
            start = min(self._shown.setdefault(name, context.inherited), len(context.messages))
            for message in context.messages[start:]:
                say(f"[{message.role if len(contexts) == 1 else f'{name} · {message.role}'}]", style="bold")
                say(_said(message))
            self._shown[name] = len(context.messages)

    def _show_tools(self, context: Context, *, again: bool = False) -> None:
        tools = list(context.tools)
        if tools != self._tools.get(context.name, []) or again:
            say("[tools]", style="bold")
            for line in signatures(tools) or ["none"]:
                say(line)
        self._tools[context.name] = tools

    def _action(self, info: dict[str, Any]) -> Action:
        """Ask until there is a reply, and write it as the model would have sampled it."""
        while True:
            line = _read("> ")
            try:
                if not line.strip() or self._obey(line.strip()):
                    continue
                reply = read_reply(line, lambda: _read("... "), self._env.episode.agent.context.tools)
                return self._written(reply, info)
            except (TypingError, EnvsdkError) as error:
                say(f"-- {error}", style="red")

    def _obey(self, line: str) -> bool:
        """Do what a line that is no reply asks for; whether it is one."""
        agent = self._env.episode.agent
        match line:
            case ":help":
                say(HELP)
            case ":tools":
                self._show_tools(agent.context, again=True)
            case ":prompt":
                say(agent.context.renderer.tokenizer.decode(self._env.prompt()))
            case ":quit":
                raise Left
            case _:
                return False
        return True

    def _written(self, reply: Message, info: dict[str, Any]) -> Action:
        """The reply as tokens, up to a stop string and cut where there is no room for more."""
        policy = ReplyPolicy(self._env, lambda _: reply)
        return policy(self._env.prompt(), context=info["context"], max_tokens=info["max_tokens"], stop=info["stop"])


def _read(prompt: str) -> str:
    """A line that somebody types. What cannot be read as text has its bytes as they are."""
    try:
        line = input(prompt)
    except RuntimeError as error:  # there is no standard input, or no output
        raise EOFError from error
    if not sys.stdin.isatty():
        say(line)  # as a terminal would show it
    return line.encode(errors="surrogateescape").decode(errors="replace")


def _show_outcome(reward: float, info: dict[str, Any], *, is_cut: bool) -> None:
    """Show what a step earned."""
    rewards, metrics = info["rewards"], info["metrics"]
    named = ", ".join(f"{name} {value:g}" for name, value in rewards.items() if name != "reward")
    earned = f"reward {reward:g}" if rewards else "not scored"
    parts = [earned + (f" ({named})" if named else ""), *(f"{name} {value:g}" for name, value in metrics.items())]
    if is_cut:
        parts.append("your reply was cut: it was too long")
    say(f"-- {', '.join(parts)}", style="cyan")


def _show_end(trajectory: Trajectory) -> None:
    breaks = ", ".join(break_.reason for break_ in trajectory.breaks) or "none"
    earned = f"reward {trajectory.reward:g} in {len(trajectory.steps)} steps"
    say(f"The episode is over: {trajectory.stop_reason}, {earned}, breaks: {breaks}.", style="bold")
    for name, log in trajectory.contexts.items():
        if log.reward is not None:
            say(f"{name} earned {log.reward:g}.")


def _said(message: Message) -> str:
    """A message as text: its reasoning, content and calls."""
    thinking = [] if message.reasoning is None else [f"<think>{message.reasoning}</think>"]
    calls = [f"-> {call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([*thinking, *filter(None, [message.content]), *calls])
