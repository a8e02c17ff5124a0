"""Recipes of agent programs: how each one finds an endpoint, and how it is started, as data."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, cast

from pydantic import field_validator

from ..authoring._context_tools import ContextToolsConfig
from ._programs import Endpoint

agents: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("agents.toml").read_text())
"""The recipe of each agent program that envsdk knows: `install`, `command`, `environ` and `files`, as agents.toml
describes them."""
CONTEXT_TOKENS = 128_000
"""The context size in an agent's configuration, in tokens, if the environment's limits name none."""


class AgentConfig(ContextToolsConfig):
    """The options of a `ProgramEnv` whose class defines no others; also `context_tools` and `max_notes_chars`.

    Attributes:
        agent: An agent program, by the name of its recipe in `agents`; None for `run` or `command`.
        task: The task that it gets. None: the task of the episode, which is a string, or has a field `prompt`.
    """

    agent: str | None = None
    task: str | None = None

    @field_validator("agent")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is not None and name not in agents:
            raise ValueError(f"there is no recipe for it: expected one of {', '.join(agents)}, or set command instead")
        return name


def prepared_agent(
    name: str, task: str, endpoint: Endpoint, context_tokens: int, home: Path, seen: str
) -> tuple[list[str], dict[str, str]]:
    """Write an agent's own files, and return its command and its environment variables.

    Args:
        name: The name of its recipe.
        task: The task that it gets.
        endpoint: The endpoint that it calls.
        context_tokens: The size of the model's context, in tokens.
        home: The folder for its own files. It is not the folder that it works in, which agents list in their prompts.
        seen: The path under which the agent sees `home`.
    """
    values = {
        "task": task,
        "base_url": endpoint.base_url,
        "anthropic_base_url": endpoint.anthropic_base_url,
        "api_key": endpoint.api_key,
        "model": endpoint.model,
        "home": seen,
    }

    def filled(value: Any) -> Any:
        if value == "$context_tokens":  # a number in a file of JSON
            return context_tokens
        if isinstance(value, str):
            return Template(value).substitute(values, context_tokens=context_tokens)
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, Any]", value)
            return {filled(key): filled(entry) for key, entry in entries.items()}
        return [filled(entry) for entry in cast("list[Any]", value)] if isinstance(value, list) else value

    recipe = agents[name]
    for path, content in recipe.get("files", {}).items():
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        written = filled(content)
        file.write_text(written if isinstance(written, str) else json.dumps(written, indent=2))
    environ = {key: str(filled(value)) for key, value in recipe["environ"].items()}
    return filled(recipe["command"]), {**endpoint.environ(), **environ}
