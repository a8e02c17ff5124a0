"""Creates a package with a new environment, from the templates in this folder."""

import builtins
import keyword
import re
import string
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...errors import ConfigError

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE)  # PEP 503, and it starts with a letter
_MAX_CHARS = 60
_TAKEN = frozenset(
    {"Env", "EnvConfig", "Limits", "Message", "ToolCall", "ToolEnv", "ToolEnvConfig", "Turn", "ClassVar"}
)
"""Names that the templates import."""
_FILES = {
    "pyproject.toml": "pyproject.toml.template",
    "README.md": "README.md.template",
    "{package}/__init__.py": "package.py.template",
    "{package}/environment.py": "environment.py.template",
    "tests/test_{package}.py": "test.py.template",
}
_OPENENV_FILES = {
    "openenv.yaml": "openenv.yaml.template",
    "server/__init__.py": None,
    "server/app.py": "server.py.template",
    "server/Dockerfile": "Dockerfile.template",
}
"""The files that OpenEnv's own tool builds and pushes."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that was created."""

    name: str
    """The name to install: `my-quiz`."""
    package: str
    """The name to import: `my_quiz`."""
    environment: str
    """The name of the environment class: `MyQuiz`."""
    folder: Path
    """The folder of the package."""

    @property
    def env_id(self) -> str:
        """The id of the environment: `my_quiz/MyQuiz-v0`."""
        return f"{self.package}/{self.environment}-v0"


def create(name: str, folder: Path, *, with_tools: bool = False, for_openenv: bool = False) -> Package:
    """Create a package.

    Args:
        name: The name of the package.
        folder: The folder to create. It may exist if it is empty.
        with_tools: Whether the model calls a tool in the new environment.
        for_openenv: Whether the folder is one that OpenEnv's tool builds and pushes.

    Raises:
        ConfigError: If the name is not valid or would hide a module, or if the folder is not empty or not writable.
    """
    made = _named(name, folder)
    values = {"name": made.name, "package": made.package, "environment": made.environment, "id": made.env_id}
    values |= dict.fromkeys(("extra", "scripts", "server"), "")
    sources: dict[str, str | None] = {**_FILES}
    if with_tools:
        sources["{package}/environment.py"] = "tool_environment.py.template"
    if for_openenv:
        sources |= _OPENENV_FILES
        values |= {"extra": '[serve]",\n    "openenv>=0.10,<0.11', "server": ', "server"'}
        values["scripts"] = '[project.scripts]\nserver = "server.app:main"\n\n'
    texts = {
        path.format(package=made.package): ""
        if source is None
        else string.Template((_TEMPLATES / source).read_text("utf-8")).substitute(values)
        for path, source in sources.items()
    }
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{str(folder)!r} exists and is not an empty folder; expected a new or empty folder")
        for path, text in texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"the folder {str(folder)!r} cannot be written: {error}. Choose another one") from error
    return made


def _named(name: str, folder: Path) -> Package:
    """Derive the names of the module and of the class from the name of the package.

    Raises:
        ConfigError: If one of them is not valid or is taken.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_CHARS:
        raise ConfigError(
            f"the package name is {name!r}; expected at most {_MAX_CHARS} letters, digits, '-', '_' and '.', which "
            "start with a letter and end with a letter or a digit, such as my-quiz"
        )
    parts = [part for part in re.split(r"[-_.]+", name) if part]
    package = "_".join(parts).lower()
    environment = "".join(part[:1].upper() + part[1:] for part in parts)
    if keyword.iskeyword(package) or package in ("tests", "test", "server") or hasattr(builtins, package):
        raise ConfigError(f"{name!r} would be imported as {package!r}, a name that Python uses; choose another name")
    if keyword.iskeyword(environment) or environment in _TAKEN or hasattr(builtins, environment):
        raise ConfigError(f"{name!r} would have the class {environment!r}, a name that is taken; choose another name")
    if package in sys.stdlib_module_names or find_spec(package) is not None:
        raise ConfigError(f"{name!r} would hide the installed module {package!r}; choose another name")
    return Package(name, package, environment, folder)
