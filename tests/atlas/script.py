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
The user gave a task: print files with the shell, and say when all are printed. Some were printed.
Print the rest. This is summary number {number}.
</summary></state_snapshot>"""
_SHELL = re.compile(r"bash|shell|exec|command|terminal", re.IGNORECASE)
_DELEGATE = re.compile(r"^(task|agent|subagent|\w*spawn_agent|delegate\w*|\w*researcher)$", re.IGNORECASE)
_WAIT = re.compile(r"wait_agent$")
_FINISH = re.compile(r"^(final_answer|attempt_completion|finish|complete)$")
_SUMMARIZE = re.compile(
    r"\b(create|provide|write|produce|generate)\b[^.]{0,80} summary|summari[sz]e|summarizes a conversation|COMPACTION",
    re.IGNORECASE,
)
_SUMMARIZES = re.compile(r"summar|compact|condense|state_snapshot", re.IGNORECASE)
"""What a request for a summary has in its last message, and what one without tools has in its messages."""


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


@dataclass(frozen=True)
class Wait:
    """A call of the tool that waits for a sub-agent."""

    tool: str
    agent: str


Reply: TypeAlias = str | Shell | Delegate | Wait


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
            `delegate` (the arguments of its tool for sub-agents, where rules do not find them).

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
        self._tools = 0  # of the program's own conversation
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
                reply: Reply = SUMMARY.replace("{number}", str(len(self.log)))
            elif label == "side":
                reply = '{"title": "Atlas"}' if "json" in str(conversation).lower() else "Atlas"
            elif (waiting_call := self._wait(conversation[-1], tools)) is not None:
                reply = waiting_call
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

    def _wait(self, last: Message, tools: Sequence[Mapping[str, Any]]) -> Wait | None:
        """Return the call that waits for a sub-agent, if the last message reports the start of one."""
        name = next((tool["name"] for tool in tools if _WAIT.search(tool["name"])), None)
        started = re.search(r'"agent_id": ?"([^"]+)"', last.content)
        return None if name is None or started is None or last.role != "tool" else Wait(name, started[1])

    def _label(self, conversation: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        others = [message for message in conversation if message.role not in ("system", "developer")]
        users = [message.content for message in others if message.role == "user"]
        system = " ".join(message.content for message in conversation if message.role in ("system", "developer"))
        last = users[-1] if users else ""
        is_last = bool(others) and others[-1].role == "user"
        is_task = any(text in last for text in (TASK, CHILD, "This is summary number"))
        has_tools = bool(tools) or (bool(self.options.get("text")) and "title" not in system)
        if is_last and not is_task and _SUMMARIZE.search(last):
            return "summary"
        if not has_tools and "title" in f"{system[:200]} {last[:200]}".lower():
            return "side"
        if not has_tools and _SUMMARIZES.search(f"{system} {last}"):
            return "summary"
        if any(CHILD in content for content in users):
            return "child"
        self._tools = self._tools or len(tools)
        is_other = is_last and not is_task and len(tools) < self._tools / 2
        return "main" if has_tools and not is_other else "side"

    def _message(self, reply: Reply, tools: Sequence[Mapping[str, Any]], number: int, *, is_own: bool) -> Message:
        thinking = f" Thinking of step {number}: \n what is next? "
        finish = [tool for tool in tools if is_own and _FINISH.match(tool["name"])]
        if isinstance(reply, str) and finish:
            said_before = "" if (finish[0].get("parameters") or {}).get("properties") else reply
            return said(said_before, self._call(finish[0], reply), thinking=thinking)
        if isinstance(reply, str):
            form = self.options.get("finish", "{text}") if is_own else "{text}"
            return said(form.replace("{text}", reply), thinking=thinking)
        if form := self.options.get("text"):
            shell = reply if isinstance(reply, Shell) else Shell([])
            if form == "calls":  # its prompt has the tools as text; the model calls them in its own form
                calls = [("shell", json.dumps({"command": command})) for command in shell.commands]
                return said(shell.text, *calls, thinking=thinking)
            blocks = [form.replace("{command}", command) for command in shell.commands]
            return said("\n".join([shell.text, *blocks]), thinking=thinking)
        if isinstance(reply, Wait):
            arguments = json.dumps({"targets": [reply.agent], "timeout_ms": 60_000})
            return said("", (reply.tool, arguments), thinking=thinking)
        pattern = _DELEGATE if isinstance(reply, Delegate) else _SHELL
        named = [tool for tool in tools if pattern.search(tool["name"])]
        if not named:
            return said("There is no tool for it.", thinking=thinking)
        tool = min(named, key=lambda tool: len(tool["name"]))
        if isinstance(reply, Delegate):
            return said("", self._call(tool, reply.task, self.options.get("delegate", {})), thinking=thinking)
        return said(reply.text, *(self._call(tool, command) for command in reply.commands), thinking=thinking)

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
                arguments[name] = text if given[name] == "$task" else given[name]
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
