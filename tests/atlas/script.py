"""The scripted model: what it says in each scenario, to any agent, by rules on the tools that the agent offers."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agent_programs.replies import said

from envsdk import Action, Message
from envsdk.authoring._driver import driver_of
from envsdk.episodes._actions import action_of
from envsdk.gateway import ProgramEnv
from envsdk.policies._vocabularies import ANY_TOKENIZER

TASK, CHILD = "ATLAS-TASK", "ATLAS-CHILD"
"""The strings in the task of the program, and in that of a sub-agent."""
SUMMARY = """<state_snapshot><summary>
The user gave a task: print numbers with the shell, and say when all are printed. Some were printed. Print the rest.
</summary></state_snapshot>"""
_SHELL = re.compile(r"bash|shell|exec|command|terminal", re.IGNORECASE)
_DELEGATE = re.compile(r"^(task|agent|subagent|spawn_agent|delegate\w*|\w*researcher)$", re.IGNORECASE)
_FINISH = re.compile(r"^(final_answer|attempt_completion|finish)$")
_SUMMARIZE = re.compile(
    r"summari[sz]e|(?:an?|the|new|detailed|final) summary|compact|condense|state_snapshot", re.IGNORECASE
)


@dataclass(frozen=True)
class Shell:
    """Calls of the agent's shell, one for each command."""

    commands: Sequence[str]
    text: str = ""
    is_held: bool = False


@dataclass(frozen=True)
class Delegate:
    """A call of the agent's tool for sub-agents."""

    task: str


Reply: TypeAlias = str | Shell | Delegate


@dataclass(frozen=True)
class Sampled:
    """A reply of the policy, in its own log.

    Attributes:
        label: `main`, `child`, `summary` or `side`: the conversation by its content, not by where it was placed.
        context: The context that the gateway named.
        body: The request.
        prompt: The tokens that the policy saw.
        tokens: The tokens that it sampled; None if it was cancelled.
        seconds: How long it took.
    """

    label: str
    context: str
    body: Any
    prompt: list[int]
    tokens: list[int] | None
    seconds: float


@dataclass(eq=False)
class ScriptedPolicy:
    """Answers any agent by a script, and keeps a log.

    Args:
        env: The environment of the episode.
        script: The replies of the program's own conversation.
        child: The replies of its sub-agent.
        options: How the agent differs: `text` (it has no tools; a call is this text), `finish` (the text of an answer),
            `shell` and `delegate` (the arguments of its tools, where rules do not find them).

    Attributes:
        log: What it sampled.
        is_holding: Set while it waits in a reply that is held.
        release: Ends that.
    """

    tokenizer = ANY_TOKENIZER

    env: ProgramEnv
    script: Sequence[Reply]
    child: Sequence[Reply] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    log: list[Sampled] = field(default_factory=list[Sampled])
    is_holding: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._left: dict[str, Iterator[Reply]] = {"main": iter(self.script), "child": iter(self.child)}

    async def __call__(
        self, prompt: Any, *, context: str, max_tokens: int | None, stop: tuple[str, ...], **_: Any
    ) -> Action:
        """Return the next reply of the conversation that the prompt belongs to."""
        began = time.perf_counter()
        pending = self.env.episode.pending_reply(context)
        program = driver_of(self.env).program
        waiting = [asked for asked, turn in program._placed if turn is pending.turn]
        body = (waiting or [program._asked])[0].request.body
        conversation, tools = pending.context.conversation, [tool["function"] for tool in pending.context.tools]
        label = self._label(conversation, tools)
        tokens = None
        try:
            if label == "summary":
                reply: Reply = SUMMARY
            elif label == "side":
                reply = '{"title": "Atlas"}' if "json" in str(conversation).lower() else "Atlas"
            else:
                reply = next(self._left[label], "All is done.")
            if isinstance(reply, Shell) and reply.is_held:
                self.is_holding.set()
                while not self.release.is_set():
                    await asyncio.sleep(0.05)
            message = self._message(reply, tools, len(self.log), is_own=label in self._left)
            action = action_of(message, pending.context.renderer, stop=stop, max_tokens=max_tokens)
            tokens = action.tokens.tolist()
            return action
        finally:
            seconds = time.perf_counter() - began
            self.log.append(Sampled(label, context, body, prompt.tolist(), tokens, seconds))

    def _label(self, conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        others = [message for message in conversation if message.role not in ("system", "developer")]
        users = [message.content for message in others if message.role == "user"]
        system = " ".join(message.content for message in conversation if message.role in ("system", "developer"))
        last = users[-1] if users else ""
        has_tools = bool(tools) or (bool(self.options.get("text")) and "title" not in system)
        if (
            others[-1:]
            and others[-1].role == "user"
            and TASK not in last
            and CHILD not in last
            and _SUMMARIZE.search(last)
        ):
            return "summary"
        if not has_tools and _SUMMARIZE.search(f"{system} {last}"):
            return "summary"
        if any(CHILD in content for content in users):
            return "child"
        return "main" if has_tools else "side"

    def _message(self, reply: Reply, tools: Sequence[Mapping[str, Any]], number: int, *, is_own: bool) -> Message:
        thinking = f" Thinking of step {number}: \n what is next? "
        finish = [tool for tool in tools if is_own and _FINISH.match(tool["name"])]
        if isinstance(reply, str) and finish:
            return said("", self._call(finish[0], reply), thinking=thinking)
        if isinstance(reply, str):
            form = self.options.get("finish", "{text}") if is_own else "{text}"
            return said(form.replace("{text}", reply), thinking=thinking)
        if self.options.get("text"):
            commands = reply.commands if isinstance(reply, Shell) else ()
            blocks = [str(self.options["text"]).replace("{command}", command) for command in commands]
            return said("\n".join([reply.text, *blocks] if isinstance(reply, Shell) else blocks), thinking=thinking)
        if isinstance(reply, Delegate):
            tool = next(tool for tool in tools if _DELEGATE.match(tool["name"]))
            return said("", self._call(tool, reply.task, self.options.get("delegate", {})), thinking=thinking)
        shells = [tool for tool in tools if _SHELL.search(tool["name"])]
        tool = min(shells, key=lambda tool: len(tool["name"]))
        calls = [self._call(tool, command, self.options.get("shell", {})) for command in reply.commands]
        return said(reply.text, *calls, thinking=thinking)

    def _call(self, tool: Mapping[str, Any], text: str, given: Mapping[str, Any] | None = None) -> tuple[str, str]:
        """Return a call of a tool, with a text in the arguments that have to have one, in odd JSON."""
        schema = tool.get("parameters") or {}
        fields: Mapping[str, Any] = schema.get("properties") or {}
        names = [*(schema.get("required") or ()), *(given or {})]
        arguments: dict[str, Any] = {}
        for name in names or list(fields)[:1]:
            field_ = fields.get(name, {})
            kind = field_.get("type")
            if given and name in given:
                arguments[name] = given[name]
            elif "enum" in field_:
                arguments[name] = field_["enum"][0]
            elif name == "description":
                arguments[name] = "a step"
            elif kind == "array":
                arguments[name] = ["bash", "-lc", text]
            elif kind == "boolean":
                arguments[name] = False
            elif kind in ("integer", "number"):
                arguments[name] = 1
            else:
                arguments[name] = text
        return tool["name"], json.dumps(arguments, indent=1, separators=(" , ", " :"))
