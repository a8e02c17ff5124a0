"""`envsdk play`: a person acts as the policy, and sees what the model would see."""

import contextlib
import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..authoring._env import Env
from ..contexts._context import Context
from ..contexts._protocol import Action, Break
from ..errors import EnvsdkError
from ..messages import ImagePart, Message, ToolSchema
from ..policies import ReplyPolicy
from ..trajectories._trajectory import Trajectory
from ..viewer._episodes import image_name
from ._options import (
    EnvName,
    EnvOptions,
    HistoryOption,
    RendererOption,
    TasksOption,
    TokenizerOption,
    env_options,
    maker,
)
from ._output import print_text, writable, write
from ._typed_reply import HELP, TypingError, read_reply, signatures


class Quit(Exception):
    """The person typed `:quit`."""


def play(
    env: EnvName,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the episode.")] = 0,
    option: EnvOptions = None,
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    history: HistoryOption = None,
    tasks: TasksOption = None,
    out: Annotated[Path | None, typer.Option(help="A folder for trajectories.jsonl and samples.jsonl.")] = None,
) -> None:
    """Play an episode yourself: you see what the model sees, and you type its replies.

    Type :help to see how to call tools and type replies of several lines. Ctrl-D ends the game.
    """
    options = env_options(option, renderer, tokenizer, history, tasks)
    folder = None if out is None else writable(out)
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # adds line editing and a history of lines to input()
    with contextlib.closing(maker(env, options)()) as played:
        try:
            trajectory = Game(played).play(seed)
        except (Quit, EOFError):
            steps = played.episode.root.steps
            print_text(f"\nYou quit after {steps} {'step' if steps == 1 else 'steps'}.")
            return
        except KeyboardInterrupt:
            print_text("\ninterrupted")
            raise typer.Exit(130) from None
    if folder is not None:
        write(folder, [trajectory], trajectory.samples())


@dataclass(eq=False, repr=False)
class Game:
    """Runs one episode with replies from a person at the terminal, or from standard input.

    Args:
        env: The environment.
    """

    _env: Env
    _shown: dict[str, int] = field(default_factory=dict[str, int])
    """The number of messages of each context that were shown."""
    _tools: dict[str, list[ToolSchema]] = field(default_factory=dict[str, list[ToolSchema]])
    """The tools of each context that were shown last."""
    _last: str = ""
    """The context that the person acted in last."""

    def play(self, seed: int) -> Trajectory:
        """Play an episode to its end.

        Raises:
            Quit: If the person types `:quit`.
            EOFError: If standard input ends.
        """
        _, info = self._env.reset(seed=seed)
        print_text(f"{self._env.name}, seed {seed}. You are the model. Type :help to see how to reply.", style="bold")
        while (trajectory := self._env.trajectory) is None:
            self._show(info)
            action = self._action(info)
            context = self._env.episode.contexts[info["context"]]
            self._shown[context.name] = len(context.messages) + 1  # do not show the reply that was typed
            _, reward, _, _, info = self._env.step(action)
            rewards = info["rewards"]
            named = ", ".join(f"{name} {value:g}" for name, value in rewards.items() if name != "reward")
            earned = (f"reward {reward:g}" if rewards else "not scored") + (f" ({named})" if named else "")
            facts = [earned, *(f"{name} {value:g}" for name, value in info["metrics"].items())]
            facts += ["your reply was too long and was cut"] if action.finish_reason == "length" else []
            print_text(f"-- {', '.join(facts)}", style="cyan")
        self._show_messages()
        breaks = ", ".join(break_.reason for break_ in trajectory.breaks) or "none"
        earned = f"{trajectory.reward_text} in {len(trajectory.steps)} steps"
        print_text(f"The episode is over: {trajectory.stop_reason}, {earned}, breaks: {breaks}.", style="bold")
        for name, log in trajectory.contexts.items():
            if log.reward is not None:
                print_text(f"{name} got the reward {log.reward:g}.")
        return trajectory

    def _show(self, info: dict[str, Any]) -> None:
        """Show what is new since the last reply, and how the next reply starts."""
        agent = self._env.episode.agent
        break_: Break | None = info.get("break")
        if break_ is not None and break_.kind == "rewrite":
            detail = f" ({break_.detail})" if break_.detail else ""
            print_text(
                f"-- {break_.reason}{detail}: of the context, {break_.kept} tokens are kept and {break_.dropped} are "
                "dropped or rewritten; type :prompt to see the whole prompt",
                style="yellow",
            )
        self._show_messages()
        if agent.context.name != self._last and (self._last or agent.context.name != "main"):
            print_text(f"-- you now act as {agent.context.name} ({agent.context.role})", style="yellow")
        self._last = agent.context.name
        self._show_tools(agent.context)
        for verb, start in (("continues", agent.turn.continuation), ("starts with", agent.turn.prefill)):
            if start is not None:
                print_text(
                    f"-- your reply {verb}: {_text_of(start) if isinstance(start, Message) else start}", style="yellow"
                )
        limits = [f"ends at {' or '.join(map(repr, info['stop']))}"] if info["stop"] else []
        limits += [f"may have at most {info['max_tokens']} tokens"] if info["max_tokens"] is not None else []
        if limits:
            print_text(f"-- your reply {', and '.join(limits)}", style="dim")

    def _show_messages(self) -> None:
        """Show the new messages of each context, with the names of their images."""
        contexts = self._env.episode.contexts
        for name, context in contexts.items():
            start = min(self._shown.setdefault(name, context.inherited), len(context.messages))
            for message in context.messages[start:]:
                print_text(f"[{message.role if len(contexts) == 1 else f'{name} · {message.role}'}]", style="bold")
                for part in (message.parts or ()) if message.images else ():
                    if isinstance(part, ImagePart):
                        vision = context.renderer.vision
                        tokens = None if vision is None else vision.count(part.data)
                        facts = {**part.data.reference(), "tokens": tokens}
                        print_text(f"[{image_name(part.data.sha256, facts)}]", style="magenta")
                    else:
                        print_text(part.text)
                if not message.images:
                    print_text(_text_of(message))
            self._shown[name] = len(context.messages)

    def _show_tools(self, context: Context, *, again: bool = False) -> None:
        tools = list(context.tools)
        if tools != self._tools.get(context.name, []) or again:
            print_text("[tools]", style="bold")
            for line in signatures(tools) or ["none"]:
                print_text(line)
        self._tools[context.name] = tools

    def _action(self, info: dict[str, Any]) -> Action:
        """Read lines until one is a valid reply; return it as tokens, cut after a stop string and at the maximum."""
        context = self._env.episode.agent.context
        while True:
            line = _read("> ")
            try:
                match line.strip():
                    case "":
                        pass
                    case ":help":
                        print_text(HELP)
                    case ":tools":
                        self._show_tools(context, again=True)
                    case ":prompt":
                        print_text(context.renderer.tokenizer.decode(self._env.prompt()))
                    case ":quit":
                        raise Quit
                    case _:
                        reply = read_reply(line, lambda: _read("... "), context.tools)
                        policy = ReplyPolicy(self._env, lambda _, reply=reply: reply)
                        sampling = {name: info[name] for name in ("context", "max_tokens", "stop")}
                        return policy(self._env.prompt(), **sampling)
            except (TypingError, EnvsdkError) as error:
                print_text(f"-- {error}", style="red")


def _read(prompt: str) -> str:
    """Read a line. Bytes that are not valid in its encoding are replaced."""
    try:
        line = input(prompt)
    except RuntimeError as error:  # standard input or output is missing
        raise EOFError from error
    if not sys.stdin.isatty():
        print_text(line)  # print the line, because a pipe does not echo it
    return line.encode(errors="surrogateescape").decode(errors="replace")


def _text_of(message: Message) -> str:
    """Return a message as a string: its reasoning, content and tool calls."""
    thinking = [] if message.reasoning is None else [f"<think>{message.reasoning}</think>"]
    calls = [f"-> {call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([*thinking, *filter(None, [message.content]), *calls])
