"""Writes episodes of environments as task folders in Harbor's format."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..authoring._driver import seeds_of
from ..authoring._env import Env
from ..errors import ConfigError
from ..policies._built_in import ReplyPolicy
from ..rollouts import rollout
from . import _harbor_client
from ._harbor_client import ADDRESS
from ._harbor_session import Session
from ._program import ProgramEnv

_ANSWER, _REPLIES, _EPISODE = "/app/answer.txt", "/var/lib/envsdk/replies.jsonl", "/opt/envsdk/episode.json"
_RUN = "python3 -m envsdk.gateway._harbor_session"
_TOML = """schema_version = "1.4"
artifacts = [{artifact}]

[task]
name = {name}
description = {description}

[metadata]
environment = {env}
seed = {seed}

[agent]
{agent}

[verifier]
timeout_sec = 600.0
environment_mode = "separate"

[environment]
network_mode = "no-network"
workdir = "/app"
{environment}"""
_SERVED = """
[environment.healthcheck]
command = "/opt/envsdk/serve.sh"
timeout_sec = 60.0
retries = 5
"""
_SERVE = f"""#!/bin/sh
test -S {ADDRESS} || setsid {_RUN} serve {_EPISODE} {_REPLIES} > /var/log/envsdk.log 2>&1 < /dev/null &
for second in 1 2 3 4 5 6 7 8 9 10; do
  test -S {ADDRESS} && exit 0
  sleep 1
done
exit 1
"""
_SETUP = """#!/bin/sh
# The agent can read neither the episode and its replies, nor the packages that it is played with.
set -e
useradd --create-home agent
install -d -o agent /app
install -d -m 700 /var/lib/envsdk
install -m 755 /opt/envsdk/envsdk-env /usr/local/bin/envsdk-env
chmod -R go-rwx /opt/envsdk
python3 - {packages} <<'END' | xargs -r chmod -R go-rwx
import importlib.util, sys
for found in map(importlib.util.find_spec, sys.argv[1:]):
    print(*(found.submodule_search_locations or [found.origin]) if found else ())
END
"""
_INSTRUCTION = """You take part in an episode of an environment, by a command:

- `envsdk-env` shows the episode.
- `envsdk-env reply 'TEXT'` sends your reply, and shows what the environment returns. `envsdk-env reply -` reads it from
  standard input.
- `envsdk-env call TOOL '{{"argument": "value"}}'` calls a tool.

Go on until it says that the episode is over. The environment says:

{shown}
"""
_TOOLS = "\nThe tools, as JSON schemas:\n\n```json\n{tools}\n```\n"


def export_tasks(
    env: str, options: Mapping[str, Any], seeds: int | str | Sequence[int], out: Path, *, image: str, package: str
) -> list[Path]:
    """Write a task folder for each seed, and return the folders.

    In a task with several steps, the agent replies with the command `envsdk-env`, which speaks to a process of root's;
    the agent can read neither the environment nor its replies. In a task with one step, it writes a file. The tests
    play the replies again from the seed, in another container.

    Args:
        env: The environment's id, or its class as `module:Class`.
        options: Its options, which are JSON.
        seeds: The seeds; see `Rollouts`.
        out: The folder to write into. It is created.
        image: An image with Python 3.11 or newer, which tasks start from.
        package: What pip installs in it: envsdk, and the package of the environment; empty if the image has it.

    Raises:
        ConfigError: If an episode has several contexts or images, is a program's, or its options are not JSON.
    """
    written: list[Path] = []
    for seed in seeds_of(seeds):
        episode: dict[str, Any] = {"env": env, "options": dict(options), "seed": seed}
        session = Session(episode)
        if isinstance(session.env, ProgramEnv) or session.env.shows_images:
            raise ConfigError(
                f"{env} shows images, or is an agent program; only text of an environment can be exported"
            )
        if session.env.tasks is not None:
            episode["task"], episode["options"] = session.env.task, {**options}
            episode["options"].pop("tasks", None)
        slug = re.sub("[^a-z0-9]+", "-", env.rpartition("/")[2].lower()).strip("-")
        folder = out / f"{slug}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in _files(session, episode, folder.name, image, package).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
            path.chmod(0o755 if content.startswith("#!") else 0o644)
        session.env.close()
        written.append(folder)
    return written


def _files(session: Session, episode: Mapping[str, Any], name: str, image: str, package: str) -> dict[str, str]:
    """Return the files of a task by their paths."""
    env = session.env
    try:
        text = json.dumps(episode, indent=1)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the options or the task of {env.name} are not JSON: {error}") from error
    shown, question = session.shown(), "\n\n".join(message.content for message in env.messages())
    tools, one_step, solution = env.default_tools(), env.limits.max_steps == 1, _solution(env, episode["seed"])
    if one_step and tools:
        raise ConfigError(f"{env.name} has one step and tools; raise its limit of steps to export it")
    install = f"RUN pip install --no-cache-dir {package}\n" if package else ""
    own = type(env).__module__.partition(".")[0]
    packages = dict.fromkeys(("envsdk", "envsdk_environments", "envsdk_renderers", own))
    left = _ANSWER if one_step else _REPLIES
    files = {
        "task.toml": _TOML.format(
            artifact=json.dumps(left),
            name=json.dumps(f"envsdk/{name}"),
            description=json.dumps((type(env).__doc__ or "").strip().partition("\n")[0]),
            env=json.dumps(episode["env"]),
            seed=episode["seed"],
            agent="" if one_step else 'user = "agent"',
            environment="" if one_step else _SERVED,
        ),
        "tests/episode.json": text,
        "tests/test.sh": f"#!/bin/sh\ncd / && exec {_RUN} grade /tests/episode.json {left}\n",
    }
    if one_step:
        files["instruction.md"] = f"{question}\n\nWrite your answer into the file `{_ANSWER}`.\n"
        files["environment/Dockerfile"] = f"FROM {image}\n\nWORKDIR /app\n"
        files["tests/Dockerfile"] = f"FROM {image}\n\n{install}WORKDIR /app\nCOPY . /tests\n"
    else:
        listed = _TOOLS.format(tools=json.dumps([dict(tool) for tool in tools], indent=1)) if tools else ""
        files["instruction.md"] = _INSTRUCTION.format(shown=shown) + listed
        files["environment/episode.json"] = text
        files["environment/envsdk-env"] = Path(_harbor_client.__file__).read_text(encoding="utf-8")
        files["environment/serve.sh"] = _SERVE
        files["environment/setup.sh"] = _SETUP.format(packages=" ".join(packages))
        files["environment/Dockerfile"] = (
            f"FROM {image}\n\n{install}COPY . /opt/envsdk\nRUN sh /opt/envsdk/setup.sh\nWORKDIR /app\n"
        )
    if solution is not None:
        lines = [f"envsdk-env send {shlex.quote(json.dumps(reply))}" for reply in solution]
        if one_step:
            lines = [f"printf '%s\\n' {shlex.quote(solution[0]['content'])} > {_ANSWER}"]
        files["solution/solve.sh"] = "\n".join(("#!/bin/sh", "set -e", *lines, ""))
    return files


def _solution(env: Env, seed: int) -> list[dict[str, Any]] | None:
    """Return the replies of the reference policy; None if there is none.

    Raises:
        ConfigError: If the episode has several contexts.
    """
    if type(env).reference_reply is Env.reference_reply:
        return None
    policy = ReplyPolicy(env, lambda acting: acting.reference_reply())
    trajectory = rollout(env, policy, seed=seed, options={"task": env.task} if env.tasks else None)
    if len(trajectory.contexts) > 1:
        raise ConfigError(f"an episode of {env.name} has several contexts; only those with one can be exported")
    return [message.to_openai() for message in env.messages() if message.role == "assistant"]
