"""Writes docs/agents.md from the rows of the atlas."""

import statistics
from collections.abc import Mapping
from typing import Any

from envsdk.gateway._agents import agents as recipes

from .drive import SCENARIOS, Agent, gives_up

_INTRODUCTION = """# Agent programs that were run

`make test-agents` installs the programs below in the versions that the table names, and drives each against the
gateway, with a scripted model, through the same scenarios. The programs are unchanged. They have no network: every
connection to the outside is refused, and recorded. `make test-agents` writes this page, from `docs/agents.json`.

The scenarios: a task with one call of a tool (*plain*); several calls in one reply; a task for a *sub-agent*; a session
that a second process *resumes*; a *compaction* because the program knows a small context; one because the server
refuses a request with `context_length_exceeded`; a *cut* stream; a process that is *aborted* while the model replies,
and then resumed; a wrong key. A `-` means that the program lacks what the scenario needs, or has no setting for it.

After each run, the log of the scripted model is compared with the record: each prompt and each sampled token, exactly
once; each text that the program sent is in the prompt; the program's own conversation is one context; a sub-agent has
its own, whose parent is the program's; every rewrite is declared. **yes** means that all of it holds, or that what
differs is right, and why; **partly** that the program worked, with a difference that its section names; **no** that it
did not end as it should.

"""
_AFTER = """
*Trained* is the share of sampled tokens that are in a sample, over all scenarios, without the replies that were cut.
*Overhead* is the median time of an answer without the model's, in ms, on a machine with other work.

## Use one

`envsdk.gateway.agents` has what each program needs, as data: the package, the command line, the environment variables
and the files. Telemetry, updates and other requests to the outside are switched off. The program's own files are in a
folder that is removed at the end of the episode (`$home` below); your home folder is not read. Install the program so
that it is on the `PATH`. A program in a container (`container=`) has to be in its image.

```python
from envsdk.gateway import ProgramEnv, ProgramResult


class Answer(ProgramEnv):
    def score(self, result: ProgramResult) -> float:
        return float("42" in result.stdout)


env = Answer(agent="qwen-code", task="Use the shell to print 40 + 2, and say what it is.")
```

With `tasks=`, the task of each episode is the row, if it is a string, or its field `prompt`. An agent is given the
size of the model's context: `Limits.max_context_tokens`, or 128,000 tokens.

"""


def written(agents: Mapping[str, Agent], stored: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        agents: The agents, in order.
        stored: For each its version and the rows of its scenarios.
    """
    names = [scenario.name for scenario in SCENARIOS]
    lines = [f"| agent | {' | '.join(names)} | trained | overhead |", "| --- " * (len(names) + 3) + "|"]
    for name, agent in agents.items():
        rows = stored[name]["scenarios"]
        cells = [verdict(agent, each, rows[each]) if each in rows else "-" for each in names]
        received = sum(row["sampled"] - row["unseen"] for row in rows.values())
        trained = sum(row["trained"] for row in rows.values())
        times = [row["overhead_ms"] for row in rows.values() if row["overhead_ms"] is not None]
        overhead = f"{statistics.median_high(times):g}" if times else "-"
        link = f"[{name}](#{name}) {agent.version}"
        lines.append(f"| {link} | {' | '.join(cells)} | {min(1.0, trained / max(received, 1)):.1%} | {overhead} |")
    every = [row for each in stored.values() for row in each["scenarios"].values()]
    keys = ("requests", "sampled", "unseen", "trained")
    requests, sampled, unseen, trained = (sum(row[key] for row in every) for key in keys)
    lines += ["", f"{len(every)} runs, {requests} requests, {sampled} sampled tokens, of which {trained} are trained."]
    lines += [f"{unseen} are of replies that were cut: what a program did not receive is not trained (`train_unseen`)."]
    sections = [section(agent, stored[name]["scenarios"]) for name, agent in agents.items()]
    return _INTRODUCTION + "\n".join(lines) + "\n" + _AFTER + "\n" + "\n".join(sections)


def verdict(agent: Agent, name: str, row: Mapping[str, Any]) -> str:
    """Return whether a scenario is as expected: `yes`, `partly` or `no`."""
    wrong = [problem for problem in row["problems"] if reason(agent, name, problem) is None]
    if not wrong:
        return "yes"
    return "partly" if row["reward"] else "no"


def reason(agent: Agent, name: str, problem: str) -> str | None:
    """Return why a difference in a scenario is right, or None."""
    return next((why for part, why in agent.right.items() if part in f"{name}: {problem}"), None)


def section(agent: Agent, rows: Mapping[str, Any]) -> str:
    """Return the section of an agent."""
    lines = [f"## {agent.name}", ""]
    if agent.name in recipes:
        recipe = recipes[agent.name]
        environ = ", ".join(f"`{key}={value}`" for key, value in recipe["environ"].items())
        files = ", ".join(f"`$home/{path}`" for path in recipe.get("files", {}))
        lines += [f"- Package: `{recipe['install']}`", f"- Command: `{' '.join(recipe['command'])}`"]
        lines += [f"- Environment: {environ}", *([f"- Files: {files}"] if files else [])]
    else:
        program = f"tests/atlas/frameworks/{agent.name.replace('-', '_')}_program.py"
        settings = "".join(f"; `{key}={value}`" for key, value in agent.environ.items())
        lines.append(f"- Program: `{program}`{settings}")
    lines += [*(f"- {note}" for note in agent.notes), ""]
    lines += [
        "| scenario | requests | contexts (role: replies by content) | breaks | samples | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        contexts = ", ".join(
            f"{context} ({each['role']}: {' '.join(f'{label} {count}' for label, count in each['replies'].items())})"
            for context, each in row["contexts"].items()
        )
        breaks = "; ".join(f"{context}: {kind}, {detail}" for context, kind, detail in row["breaks"])
        remarks = [
            f"{problem}: {why}" if (why := reason(agent, name, problem)) else f"**{problem}**"
            for problem in row["problems"]
        ]
        remarks += ["the program gives up when the stream is cut"] if gives_up(name, row) else []
        cells = [name, str(row["requests"]), contexts, breaks, str(row.get("samples", 0)), "; ".join(remarks)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join([*lines, ""])
