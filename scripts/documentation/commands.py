"""The reference of the command line, made from the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from envsdk.cli import app


def commands_page() -> str:
    """Return the page of all commands with their arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = ["# Command line\n", f"{group.help}\n", "`envsdk COMMAND --help` prints the same in the terminal.\n"]
    for name, command in sorted(group.commands.items()):
        parts.append(f"## `envsdk {name}`\n")
        parts.append(f"{command.help}\n".replace("\b", ""))
        parts.append("".join(["| argument or option | default | meaning |\n|---|---|---|\n", *rows(command)]))
    return "\n".join(parts)


def rows(command: Any) -> Iterator[str]:
    """Yield a row for each argument and option."""
    for parameter in command.params:
        names = [parameter.name.upper()] if parameter.param_type_name == "argument" else [*parameter.opts]
        names += [name for name in parameter.secondary_opts if name not in names]
        default = "required" if parameter.required else shown(parameter.default)
        yield f"| {', '.join(f'`{name}`' for name in names)} | {default} | {cell(parameter.help or '')} |\n"


def shown(default: Any) -> str:
    """Return a default as a cell."""
    if default is None or default in ((), []):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def cell(text: str) -> str:
    """Return a string on one line for the cell of a table. In code, a pipe needs no escape."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part[:1] == "`" else part.replace("|", "\\|").replace("<", "&lt;") for part in parts)
