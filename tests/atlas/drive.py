"""Drives one agent program through one scenario, and compares the policy's log with what was recorded."""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import real_models
from soundness import check

import envsdk
from envsdk import Trajectory
from envsdk.errors import EpisodeError
from envsdk.gateway import Endpoint, ProgramEnv, _serving
from envsdk.gateway._agents import prepared_agent

from .script import CHILD, TASK, Delegate, Reply, Sampled, ScriptedPolicy, Shell
from .wire import Wire

CHECKOUT = real_models.CHECKOUT
CACHE = CHECKOUT / ".cache" / "atlas"
CONTEXT_TOKENS = 200_000
_ENDING_S = 10.0
_CUT = b"Sentence 40 "


@dataclass(frozen=True)
class Scenario:
    """A task, and how the model and the wire behave while an agent works on it.

    Attributes:
        name: Its name.
        tasks: The tasks of the first process, and of further ones, which resume it.
        script: The replies of the model.
        child: Its replies to a sub-agent.
        can: The name of the ability that an agent needs for it; empty if each has it.
        expected: What the last process writes.
        limit_s: How long a process may take, in seconds.
    """

    name: str
    tasks: Sequence[str]
    script: Sequence[Reply]
    child: Sequence[Reply] = ()
    can: str = ""
    expected: str = ""
    limit_s: float = 120.0


def _task(text: str) -> str:
    return f"{TASK}: {text}"


_COUNT = _task("Print the files with the shell, one command after the other, and say when all are printed.")
_LINES = [
    Shell([f"yes 'This is one line of the long file number {number}, with text.' | head -n 350"]) for number in range(8)
]
_LONG = " ".join(f"Sentence {number} explains international telecommunication." for number in range(360))
"""So long that the gateway notices that the client is gone before it has sent all."""
SCENARIOS = [
    Scenario(
        "plain",
        [_task("Use the shell to print 40 + 2, and say what it is.")],
        [Shell(["echo $((40 + 2))"]), "The answer is fortytwo."],
        expected="fortytwo",
    ),
    Scenario(
        "parallel calls",
        [_task("Print one and two with the shell, at the same time.")],
        [Shell(["echo one-1", "echo two-2"], text="Both at once."), "Printed both, fortythree."],
        can="parallel",
        expected="fortythree",
    ),
    Scenario(
        "sub-agent",
        [_task("Let a sub-agent count the files here.")],
        [Delegate(f"{CHILD}: count the files in this folder, and report the number."), "It counted, fortyfour."],
        [Shell(["ls | wc -l"]), "There are three files."],
        can="sub-agent",
        expected="fortyfour",
    ),
    Scenario(
        "resume",
        [_task("Print 45 with the shell."), _task("Go on: print 46 as well.")],
        [Shell(["echo 45"]), "The first is printed.", Shell(["echo 46"]), "Also the second, fortysix."],
        can="resume",
        expected="fortysix",
    ),
    Scenario(
        "compaction",
        [_COUNT, _task("Go on: print 47 as well.")],
        [*_LINES, "All are printed.", Shell(["echo 47"]), "Also the last, fortyseven."],
        can="compaction",
        expected="fortyseven",
    ),
    Scenario(
        "context exceeded",
        [_COUNT],
        [*_LINES, "All are printed, fortyeight."],
        can="overflow",
        expected="fortyeight",
    ),
    Scenario(
        "cut stream",
        [_task("Print 49 with the shell.")],
        [Shell(["echo 49"], text=_LONG), Shell(["echo 49"]), "It is printed, fortynine."],
        expected="fortynine",
    ),
    Scenario(
        "abort",
        [_task("Print 50 with the shell."), _task("Go on, and say when it is done.")],
        [Shell(["echo 50"]), Shell(["echo fifty"], is_held=True), "It is printed, fifty-one."],
    ),
    Scenario("wrong key", [_task("Print 52 with the shell.")], ["This is never said."], limit_s=90.0),
]


@dataclass
class Process:
    """A process that ended: its command, exit status and output."""

    command: Sequence[str]
    status: int | None
    stdout: str
    stderr: str


class AtlasEnv(ProgramEnv):
    """Runs an agent's processes, one after the other.

    Args:
        agent: The agent, an entry of programs.toml.
        scenario: The scenario.
    """

    def __init__(self, agent: "Agent", scenario: Scenario, **options: Any) -> None:
        super().__init__(**options)
        self._agent, self._scenario = agent, scenario
        self.processes: list[Process] = []
        self.policy: ScriptedPolicy | None = None
        self.folder, self.home = CACHE / "work" / agent.name, CACHE / "home" / agent.name

    def run(self, model: Endpoint) -> float:
        """Run the processes; the reward is 1 if the last one ended well and wrote what was expected."""
        scenario, agent = self._scenario, self._agent
        for folder in (self.folder, self.home):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for name in ("one.txt", "two.txt", "three.txt"):
            (self.folder / name).write_text(f"{name}\n")
        subprocess.run(("git", "init", "--quiet"), cwd=self.folder, check=True)
        if scenario.name == "wrong key":
            base = model.base_url.partition("/s/")[0]  # a URL with the id of a session needs no key
            model = replace(model, base_url=f"{base}/v1", anthropic_base_url=base, api_key="sk-wrong")
        resumes = "resume" in agent.can
        for number, task in enumerate(scenario.tasks if resumes else scenario.tasks[:1]):
            context_tokens = agent.window if scenario.name == "compaction" and agent.window else CONTEXT_TOKENS
            command, environ = agent.prepared(task, model, context_tokens, self.home, is_resumed=number > 0)
            self.processes.append(self._process(command, environ, is_aborted=scenario.name == "abort" and number == 0))
        last = self.processes[-1]
        if scenario.name == "abort" and not resumes:
            return float(last.status != 0 and last.status is not None)
        return float(last.status == 0 and any(text in last.stdout for text in (scenario.expected, "All is done")))

    def _process(self, command: Sequence[str], environ: Mapping[str, str], *, is_aborted: bool) -> Process:
        port = _serving.background_server().socket.getsockname()[1]
        proxy = f"http://127.0.0.1:{port}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
        quiet = {"TERM": "dumb", "LANG": "C.UTF-8", "NO_PROXY": "127.0.0.1,localhost", "NODE_USE_ENV_PROXY": "1"}
        quiet["no_proxy"] = quiet["NO_PROXY"]
        path = f"{self._agent.path}:{os.environ['PATH']}"
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={"PATH": path, "HOME": str(self.home), **quiet, **proxies, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        try:
            if is_aborted:
                self._abort(process)
            stdout, stderr = process.communicate(timeout=self._scenario.limit_s)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            status = None
        return Process(command, status, stdout, stderr)

    def _abort(self, process: "subprocess.Popen[str]") -> None:
        """Interrupt a process while the policy is in the reply that is held."""
        assert self.policy is not None
        for _ in range(int(self._scenario.limit_s * 10)):
            if self.policy.is_holding.is_set() or process.poll() is not None:
                break
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        for number in (signal.SIGINT, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
                try:
                    process.wait(_ENDING_S)
                except subprocess.TimeoutExpired:
                    continue
        self.policy.release.set()


@dataclass(frozen=True)
class Agent:
    """An agent program, as programs.toml describes it.

    Attributes:
        name: Its name; a recipe of `envsdk.gateway.agents` has the same, unless it is a framework.
        version: The package and its version.
        path: The folder of its programs.
        can: What it can do: `parallel`, `sub-agent`, `resume`, `compaction`, `overflow`.
        command: The command of a framework's program; empty to use the recipe.
        resumed: The command that goes on with the last session; empty if the recipe's, with arguments in place of
            `$task`, is enough.
        window: The size of the context that it is given in the scenario `compaction`, in tokens; 0 if it takes none.
        limit: The context that the model has in the scenario `context exceeded`, in tokens.
        script: Options of the scripted model.
        right: Breaks and other differences that are right, or known: a part of what is reported, and the reason.
        notes: What users should know.
    """

    name: str
    version: str
    path: str
    can: Sequence[str] = ()
    command: Sequence[str] = ()
    resumed: Sequence[str] = ()
    window: int = 0
    limit: int = 30_000
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    script: Mapping[str, Any] = field(default_factory=dict[str, Any])
    right: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: Sequence[str] = ()

    def prepared(
        self, task: str, model: Endpoint, context_tokens: int, home: Path, *, is_resumed: bool
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment variables of a process."""
        if self.command:
            words = self.resumed if is_resumed and self.resumed else self.command
            return [word.replace("$task", task) for word in words], {**model.environ(), **self.environ}
        command, environ = prepared_agent(self.name, task, model, context_tokens, home, str(home))
        if is_resumed:
            command = [word.replace("$task", task).replace("$home", str(home)) for word in self.resumed]
        return command, {**environ, **self.environ}


def drive(agent: Agent, scenario: Scenario) -> dict[str, Any]:
    """Run a scenario, and return its row, as docs/agents.json stores it."""
    wires: list[Wire] = []
    app_of = _serving.model_app

    def model_app(*args: Any, **options: Any) -> Wire:
        wires.append(Wire(app_of(*args, **options), cut_at=_CUT if scenario.name == "cut stream" else None))
        return wires[-1]

    limits: dict[str, Any] = {"max_steps": 60}
    if scenario.name == "context exceeded":
        limits["max_context_tokens"] = agent.limit
    with mock.patch.object(_serving, "model_app", model_app), mock.patch.object(_serving, "_server", None):
        env = AtlasEnv(agent, scenario, renderer="qwen3", tokenizer=real_models.qwen3_folder(), limits=limits)
        policy = env.policy = ScriptedPolicy(env, scenario.script, scenario.child, agent.script)
        server = _serving.background_server()
        error, trajectory = "", None
        try:
            trajectory = envsdk.rollout(env, policy, seed=7)
        except EpisodeError as raised:
            error = str(raised)
        env.close()
        server.stop()
    wire = wires[0]
    _store(agent, scenario, env, wire, policy, trajectory)
    row = {
        "error": error or (trajectory.error if trajectory is not None else None),
        "exit": [process.status for process in env.processes],
        "requests": len(wire.requests),
        "sampled": sum(len(each.tokens or ()) for each in policy.log),
        "unseen": len(policy.log[0].tokens or ()) if wire.was_cut else 0,
        "outside": sorted(set(wire.outside)),
        "refused": dict(Counter(str(each.status) for each in wire.requests if each.status >= 400)),
        "reward": None if trajectory is None else trajectory.reward,
        "overhead_ms": _overhead_ms(wire, policy),
        "contexts": {},
        "breaks": [],
        "trained": 0,
        "problems": [],
    }
    if trajectory is not None:
        row["contexts"] = _contexts(trajectory, policy.log)
        row["breaks"] = [
            [break_.context, f"{break_.kind} {break_.reason}", break_.detail] for break_ in trajectory.breaks
        ]
        samples = trajectory.samples()
        row["trained"] = sum(int(sample.mask.sum()) for sample in samples)
        row["samples"] = len(samples)
    row["problems"] = problems(scenario, row, trajectory, policy)
    return row


def _overhead_ms(wire: Wire, policy: ScriptedPolicy) -> float | None:
    """Return the median time of an answer without the policy's, in ms, without the first one."""
    times = [each.seconds for each in wire.requests if each.status == 200 and each.method == "POST"]
    waits = [each.seconds for each in policy.log]
    if len(times) != len(waits) or len(times) < 2:  # requests without a reply of the policy, or repeated ones
        return None
    return round(1000 * statistics.median(time - wait for time, wait in zip(times[1:], waits[1:], strict=True)), 1)


def _contexts(trajectory: Trajectory, log: Sequence[Sampled]) -> dict[str, Any]:
    labels: dict[str, Counter[str]] = {}
    for each in log:
        labels.setdefault(each.context, Counter())[each.label] += 1
    return {
        name: {"role": context.role, "parent": context.parent, "replies": dict(labels.get(name, {}))}
        for name, context in trajectory.contexts.items()
    }


def problems(
    scenario: Scenario, row: Mapping[str, Any], trajectory: Trajectory | None, policy: ScriptedPolicy
) -> list[str]:
    """Return what does not hold, each as a sentence."""
    found: list[str] = []
    if scenario.name == "wrong key":
        if row["sampled"]:
            found.append("a request with a wrong key was answered")
        if not row["refused"].get("401"):
            found.append(f"a wrong key was not refused with 401: {row['refused']}")
        return found
    if trajectory is None:
        return [f"no episode: {row['error']}"]
    if row["error"]:
        found.append(f"the episode failed: {row['error']}")
    if not row["reward"] and not gives_up(scenario.name, row):
        found.append(f"the program did not end as expected (exit {row['exit']})")
    try:
        check(trajectory)
    except AssertionError as error:
        found.append(f"the record is not sound: {error}")
    prompts = Counter((tuple(prompt.tolist()), tuple(action.tolist())) for _, prompt, action in trajectory.prompts())
    logged = Counter((tuple(each.prompt), tuple(each.tokens or ())) for each in policy.log)
    if prompts != logged:
        found.append(f"{(logged - prompts).total()} logged replies are not recorded, {(prompts - logged).total()} else")
    # What a program never received is not trained by default: `train_unseen`.
    if not row["sampled"] - row["unseen"] <= row["trained"] <= row["sampled"]:
        found.append(f"{row['trained']} of {row['sampled']} sampled tokens are trained")
    placed: dict[str, list[str]] = {}
    for each in policy.log:
        if each.context not in placed.setdefault(each.label, []):
            placed[each.label].append(each.context)
    mains = placed.get("main", [])
    # An aborted program that kept nothing begins again: that is another conversation.
    begun = sum(each.label == "main" and not has_reply(each.body) for each in policy.log)
    if len(mains) > (max(1, begun) if scenario.name == "abort" else 1):
        found.append(f"the main conversation is in {len(mains)} contexts: {', '.join(mains)}")
    for name in placed.get("child", []):
        if name in mains:
            found.append(f"the sub-agent is in the main conversation's context {name}")
        elif trajectory.contexts[name].parent not in mains:
            found.append(f"the sub-agent {name} has the parent {trajectory.contexts[name].parent}")
    if len(placed.get("child", [])) > 1:
        found.append(f"the sub-agent is in {len(placed['child'])} contexts")
    if scenario.child and not placed.get("child"):
        found.append("no request came from a sub-agent")
    for label in ("summary", "side"):
        both = sorted({*placed.get(label, [])} & {*mains})
        found += [f"a {label} request is in the main conversation's context {name}" for name in both]

    def is_cut(detail: str) -> bool:
        """Return whether an edit is because the program did not get a reply, or only a part of it."""
        is_lost = re.match(r"the reply \d+ was (left out|cut)|message \d+ \(assistant\) (differs|was cut)$", detail)
        return bool(is_lost) and scenario.name in ("cut stream", "abort")

    rewrites = [break_ for break_ in row["breaks"] if break_[1].startswith("rewrite")]
    if scenario.name in ("compaction", "context exceeded"):
        if "summary" not in placed:
            found.append("it did not compact")
        elif not rewrites and len(mains) < 2:
            found.append("the compaction is not declared")
    else:
        found += [f"rewrite of {name} ({kind}): {detail}" for name, kind, detail in rewrites if not is_cut(detail)]
    if scenario.name != "context exceeded" and row["refused"]:
        found.append(f"requests were refused: {row['refused']}")
    found += unseen(policy)
    if row["outside"]:
        found.append(f"it wanted to connect to {', '.join(row['outside'])}")
    return found


def unseen(policy: ScriptedPolicy) -> list[str]:
    """Return the strings of requests that are not in the prompts that the policy saw."""
    decode, found = policy.env.renderer.tokenizer.decode, list[str]()
    for number, each in enumerate(policy.log):
        seen = " ".join(decode(each.prompt).split())
        missing = [text for text in strings_of(each.body) if " ".join(text.split()) not in seen]
        found += [f"reply {number} ({each.label}): the model did not see {text[:80]!r}" for text in missing]
    return found[:3]


def gives_up(name: str, row: Mapping[str, Any]) -> bool:
    """Return whether a program ended with an error after its stream was cut, which is its right."""
    return name == "cut stream" and row["requests"] == 1 and row["exit"] not in ([0], [None])


def has_reply(body: Any) -> bool:
    """Return whether a request in any of the protocols has a reply of the model in it."""
    messages = body.get("messages") or body.get("input") or []
    return any(each.get("role") == "assistant" or each.get("type") == "function_call" for each in messages)


def strings_of(body: Any) -> list[str]:
    """Return the strings of a request in any of the protocols, without reasoning and arguments."""

    def walk(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list):
            return [text for entry in value for text in walk(entry)]
        if not isinstance(value, dict) or value.get("type") in ("thinking", "reasoning", "redacted_thinking"):
            return []
        return [text for key in ("text", "content", "output") if key in value for text in walk(value[key])]

    return [text for key in ("system", "instructions", "messages", "input") for text in walk(body.get(key))]


def _store(
    agent: Agent,
    scenario: Scenario,
    env: AtlasEnv,
    wire: Wire,
    policy: ScriptedPolicy,
    trajectory: Trajectory | None,
) -> None:
    """Store what happened, as evidence."""
    folder = CACHE / "runs" / agent.name / scenario.name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, process in enumerate(env.processes):
        text = f"{process.command}\nexit {process.status}\n--- stdout\n{process.stdout}\n--- stderr\n{process.stderr}"
        (folder / f"process-{number}.txt").write_text(text)
    for number, request in enumerate(wire.requests):
        stored = {**asdict(request), "answer": request.answer.decode(errors="replace")}
        (folder / f"request-{number:02}.json").write_text(json.dumps(stored, indent=1, ensure_ascii=False))
    lines = [f"{each.label:8} {each.context:24} {len(each.prompt)} {len(each.tokens or ())}" for each in policy.log]
    (folder / "replies.txt").write_text("\n".join(lines))
    if trajectory is not None:
        (folder / "trajectory.json").write_bytes(trajectory.to_json())
