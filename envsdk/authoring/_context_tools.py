"""Context tools: tools with which the model itself decides what stays in its context.

A `ToolEnv` offers them with the option `context_tools`. The wording of their descriptions and answers is part of the
prompts.
"""

import copy
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field, field_validator

from ..contexts._context import Context
from ..contexts._edits import Edit
from ..contexts._notes import Notes
from ..episodes._agent import Agent
from ..episodes._turn import Opening, Turn
from ..errors import ConfigError, ToolError
from ..messages import Message, ToolCall, ToolSchema
from ._driver import driver_of
from ._env import Env, EnvConfig
from ._recall import RECALL, Archive
from ._tools import Tool, tool

ContextTool: TypeAlias = Literal["fold", "branch", "note", "recall"]
"""The context tools that a `ToolEnv` may offer. `branch` brings the tool `finish`."""
_IN_BRANCH = "You are in a branch now. Call finish with the result when its task is done; only the result will stay."
_DETAIL_CHARS = 80


class ContextToolsConfig(EnvConfig):
    """The options of environments that may offer context tools.

    Attributes:
        context_tools: The tools with which the model itself decides what stays in its context: `fold` (replace what
            lies between the last fold and now by its own summary), `branch` (a detour of which only the result stays;
            it comes with `finish`), `note` (text that stays visible), and `recall` (search what was dropped).
        max_notes_chars: The most characters that all notes of an episode have together.
    """

    context_tools: tuple[ContextTool, ...] = ()
    max_notes_chars: int = Field(default=2_000, ge=1)

    @field_validator("context_tools")
    @classmethod
    def _each_name_comes_once(cls, names: tuple[ContextTool, ...]) -> tuple[ContextTool, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a name comes twice")
        return names


class _Branch(NamedTuple):
    """A branch that is open."""

    parent: str
    """The context that opened it."""
    call_id: str | None
    """The id of the call that opened it."""
    first_note: int
    """The number of notes before it."""


@dataclass(slots=True)
class _Memory:
    """What one player and its branches remember beyond their contexts."""

    notes: Notes = field(default_factory=Notes)
    archive: Archive = field(default_factory=Archive)


class ContextTools:
    """The context tools of a `ToolEnv` in one episode.

    A tool that moves the model to another past or another context only requests it; `applied` changes the turn that
    answers the reply.

    Args:
        env: The environment.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._calls: Sequence[ToolCall] = ()
        self._move: Literal["fold", "branch", "finish"] | None = None
        self._answer: Message | None = None
        self._task = ""
        self._branches: dict[str, _Branch] = {}
        self._memories: dict[str, _Memory] = {}  # by the context that all branches come from

    def tools(self) -> dict[str, Tool]:
        """Return the tools that the model has, by name."""
        names: Sequence[ContextTool] = self._env.config.context_tools
        given = [*names, *(["finish"] if "branch" in names else [])]
        return {name: getattr(self, name) for name in given}

    def added_to(self, tools: Sequence[ToolSchema], whose: str) -> list[ToolSchema]:
        """Return the schemas of tools with those of the context tools, which come last.

        Args:
            tools: The schemas of the environment's or the program's tools.
            whose: Whose they are, for the error message.

        Raises:
            ConfigError: If another tool has the name of a context tool.
        """
        added = {name: tool.schema for name, tool in self.tools().items()}
        own = [schema for schema in tools if schema not in added.values()]
        if taken := added.keys() & {schema.get("function", schema)["name"] for schema in own}:
            raise ConfigError(
                f"{whose} has a tool of its own named {min(taken)!r}, which is the name of a "
                "context tool: leave that out of context_tools, or give the other tool another name"
            )
        return [*own, *added.values()]

    # Tools. They are async so that they never run in threads, and calls of one reply run in order.

    @tool
    async def fold(self, summary: str) -> str:
        """Replace the conversation since your last fold with your own summary, to make room.

        The messages since the last fold (at first: since the task) disappear. What stays is this call with its summary,
        so write into it everything that you still need. Call it alone.

        Args:
            summary: What was done, what came out of it, and what is left to do.
        """
        self._refuse_others("fold")
        context = self._context
        count, tokens = context.foldable()
        if not summary.strip():
            raise ToolError("fold: the summary is empty, so nothing was folded")
        if not count:
            raise ToolError("fold: there is nothing to fold: no message came since the last fold, or since the task")
        length = len(context.renderer.tokenizer.encode(summary))
        if length >= tokens:
            raise ToolError(
                f"fold: the summary has {length} tokens, and what it replaces has {tokens}, so nothing was folded"
            )
        self._move = "fold"
        return f"{count} messages were folded into your summary."

    @tool
    async def branch(self, task: str) -> str:
        """Do a part of the work in a branch: you keep all that you know, and of the branch only its result stays.

        Use it for a detour whose steps do not matter later. In the branch, call finish with the result. Call it alone.

        Args:
            task: What to do in the branch.
        """
        self._refuse_others("branch")
        agent, name, depth = self._agent, self._context.name, 1
        if not task.strip():
            raise ToolError("branch: the task is empty")
        while name in self._branches:
            name, depth = self._branches[name].parent, depth + 1
        most = (agent, *agent.ancestors)[-1].limits.max_handoff_depth
        if depth + len(agent.ancestors) > most:
            raise ToolError(f"branch: branches may be nested {most} deep at most; do the task here, or finish first")
        self._move, self._task = "branch", task
        return _IN_BRANCH

    @tool
    async def finish(self, result: str) -> str:
        """End the branch that you are in. Call it alone.

        Args:
            result: The result of the branch's task: all of the branch that you will still see.
        """
        self._refuse_others("finish")
        if self._context.name not in self._branches:
            raise ToolError("finish: you are not in a branch")
        if not result.strip():
            raise ToolError("finish: the result is empty")
        self._move = "finish"
        return result

    @tool
    async def note(self, text: str) -> str:
        """Write down what you will need later. Notes stay visible when other parts of the conversation are dropped.

        Args:
            text: The note, as short as possible: the space for notes is limited.
        """
        notes, most = self._memory.notes, self._env.config.max_notes_chars
        if not text.strip():
            raise ToolError("note: the text is empty")
        if text in notes.texts:
            raise ToolError("note: this is noted already")
        length = sum(map(len, notes.texts)) + len(text)
        if length > most:
            raise ToolError(
                f"note: with this note, your notes would have {length:,} characters, and {most:,} are allowed, so it "
                "was not added"
            )
        notes.texts.append(text)
        return f"Noted ({length:,} of {most:,} characters)."

    @tool
    async def recall(self, query: str) -> str:
        """Search the part of the conversation that you cannot see anymore. It returns the passages that fit best.

        Args:
            query: Words to search for.
        """
        return self._memory.archive.search(query, self._context.view, self._context.name)

    def _refuse_others(self, name: str) -> None:
        if len(self._calls) > 1:
            raise ToolError(f"{name}: call it alone; this reply has {len(self._calls)} calls")

    # What `ToolEnv` calls.

    def take(self, calls: Sequence[ToolCall]) -> None:
        """Take a reply, whose calls are about to be run."""
        self._calls, self._move, self._answer = calls, None, None
        context = self._context
        self._remember(context, len(context.messages) - 1)
        context.notes = self._memory.notes

    def answered(self, answers: list[Message]) -> list[Message]:
        """Return the answers to the calls of the reply. That to `finish` becomes the result of the branch."""
        if self._move == "finish":
            answers = [self._result(self._context.name, answers[0].content)]
        self._answer = answers[0] if self._move is not None else None
        return answers

    def without_call(self, reply: Message) -> Turn | None:
        """Return the turn that ends a branch whose reply has no call; None if the model is not in a branch."""
        name = self._context.name
        if name not in self._branches:
            return None
        why = "ended without finish" if self._agent.cut is None else f"did not finish: {self._agent.cut}"
        self._move, self._answer = "finish", self._result(name, f"{reply.content}\n[The branch {why}.]".lstrip())
        return Turn([self._answer])

    def applied(self, turn: Turn) -> Turn:
        """Return a turn with what the calls of its reply requested: a fold, a new branch, or the end of a branch.

        A branch also ends if its next prompt does not fit, or a limit of the context cut its reply. If the environment
        or a limit of the episode ends the episode, that happens in the branch.
        """
        agent, context, move = self._agent, self._context, self._move
        self._move, turn = None, copy.copy(turn)
        is_elsewhere = (
            agent.full_name(turn.context) != context.name or turn.opening is not None or turn.edit is not None
        )
        if move is not None and (is_elsewhere or turn.continuation is not None or turn.shortens):
            self._refuse(turn, f"{move}: the environment changed the conversation itself")
            return turn
        is_over = turn.terminated or turn.truncated or agent.limit_reached() is not None
        if move == "finish":
            self._leave(turn, context.name)
        elif move == "fold" and agent.reason_to_stop(turn) is None:
            call, (count, _) = self._calls[0], context.foldable()
            detail = f"{count} messages, by the call {call.id or call.name}"
            turn.edit = Edit(context.unfolded, detail, reason="fold")
            turn.messages = [context.conversation[-1], *turn.messages]
        elif move == "branch" and agent.reason_to_stop(turn) is None and self._open(turn, context):
            return turn
        while not is_over and turn.continuation is None and (name := agent.full_name(turn.context)) in self._branches:
            reason = agent.cut if agent.limits.end_on_cut else None
            if reason is None and (agent.limits.max_context_tokens or context.policy.full_beyond) is not None:
                reason = driver_of(self._env).running_episode.why_full(agent, turn)
            if reason is None:
                break
            turn.messages = [self._result(name, f"[The branch did not finish: {reason}.]")]
            turn.opening = turn.edit = turn.prefill = None
            self._leave(turn, name)
        return turn

    # Branches.

    def _open(self, turn: Turn, context: Context) -> bool:
        """Let a turn open a branch if its first prompt fits; return whether it does."""
        episode = driver_of(self._env).running_episode
        names = (f"{context.name}/branch-{number}" for number in itertools.count(1))
        name = next(name for name in names if name not in episode.contexts)
        detail = textwrap.shorten(f"from {context.name}: {self._task}", _DETAIL_CHARS, placeholder=" …")
        turn.context = name
        turn.opening = Opening(context.role, context.name, len(context.conversation), detail, context.is_trainable)
        if reason := episode.why_full(self._agent, turn):
            turn.context = turn.opening = None
            self._refuse(turn, f"branch: there is no room for one ({reason})")
            return False
        self._branches[name] = _Branch(context.name, self._calls[0].id, len(self._memory.notes.texts))
        return True

    def _leave(self, turn: Turn, name: str) -> None:
        """Let a turn return from a branch to the context that opened it."""
        branch = driver_of(self._env).running_episode.contexts[name]
        self._remember(branch, len(branch.messages))
        turn.context = self._branches.pop(name).parent
        self._agent.leave_context()

    def _result(self, name: str, text: str) -> Message:
        """Return the message with the result of a branch, and the notes that were made in it."""
        branch, notes = self._branches[name], self._memory.notes
        if branch.first_note < len(notes.texts):
            text = f"{text}\n\nYour notes from the branch:\n{notes.listed(branch.first_note)}"
        message = Message(role="tool", name="branch", tool_call_id=branch.call_id, content=text)
        notes.repeated.append((message, branch.first_note, len(notes.texts)))
        return message

    def _refuse(self, turn: Turn, reason: str) -> None:
        """Let a turn answer the call with an error."""
        call = self._calls[0]
        error = Message(role="tool", content=f"Error: {reason}", name=call.name, tool_call_id=call.id)
        turn.messages = [error if message is self._answer else message for message in turn.messages]

    def _remember(self, context: Context, stop: int) -> None:
        """Let `recall` find the messages of a context before number `stop`, once they are dropped."""
        if RECALL in self._env.config.context_tools:
            self._memory.archive.add(context, stop)

    @property
    def _agent(self) -> Agent:
        return driver_of(self._env).running

    @property
    def _context(self) -> Context:
        return self._agent.context

    @property
    def _memory(self) -> _Memory:
        name = self._context.name
        while name in self._branches:
            name = self._branches[name].parent
        if name not in self._memories:  # a context that begins with another's messages begins with its notes
            notes = self._context.notes or Notes()
            self._memories[name] = _Memory(Notes([*notes.texts], [*notes.repeated]))
        return self._memories[name]
