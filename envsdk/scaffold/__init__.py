"""Makes a package with an environment of one's own, of the templates in this folder."""

import builtins
import keyword
import re
import string
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..errors import ConfigError

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE)  # PEP 503, and it begins with a letter
_MAX_CHARS = 60
_TAKEN = frozenset(
    {"Env", "EnvConfig", "Limits", "Message", "ToolCall", "ToolEnv", "ToolEnvConfig", "Turn", "ClassVar"}
)
"""Names that the templates use themselves."""
_FILES = {
    "pyproject.toml": "pyproject.toml.template",
    "README.md": "README.md.template",
    "{package}/__init__.py": "package.py.template",
    "{package}/environment.py": "environment.py.template",
    "tests/test_{package}.py": "test.py.template",
}


@dataclass(frozen=True, slots=True)
class Package:
    """A package that was made."""

    name: str
    """As it is installed: `my-quiz`."""
    package: str
    """As it is imported: `my_quiz`."""
    environment: str
    """The class: `MyQuiz`."""
    folder: Path

    @property
    def env_id(self) -> str:
        """The environment's id: `my_quiz/MyQuiz-v0`."""
        return f"{self.package}/{self.environment}-v0"


def create(name: str, folder: Path, *, with_tools: bool = False) -> Package:
    """Make a package.

    Args:
        name: The package's name.
        folder: Where; it may exist if it is empty.
        with_tools: Whether the model calls a tool.

    Raises:
        ConfigError: If the name is none, or would hide a module; if the folder has something in it, or cannot be
            written.
    """
    made = _named(name, folder)
    values = {"name": made.name, "package": made.package, "environment": made.environment, "id": made.env_id}
    sources = {**_FILES, **({"{package}/environment.py": "tool_environment.py.template"} if with_tools else {})}
    texts = {
        path.format(package=made.package): string.Template((_TEMPLATES / source).read_text("utf-8")).substitute(values)
        for path, source in sources.items()
    }
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{str(folder)!r} is there already; name a folder that is not, or an empty one")
        for path, text in texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"the folder {str(folder)!r} cannot be written: {error}. Name another") from error
    return made


def _named(name: str, folder: Path) -> Package:
    """The names that follow from a package's.

    Raises:
        ConfigError: If there is something wrong with them.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_CHARS:
        raise ConfigError(
            f"{name!r} is no name of a package: it has at most {_MAX_CHARS} letters, digits, '-', '_' and '.', begins "
            "with a letter and ends with a letter or a digit, such as my-quiz"
        )
    parts = [part for part in re.split(r"[-_.]+", name) if part]
    package = "_".join(parts).lower()
    environment = "".join(part[:1].upper() + part[1:] for part in parts)
    if keyword.iskeyword(package) or package in ("tests", "test") or hasattr(builtins, package):
        raise ConfigError(f"{name!r} would be imported as {package!r}, which Python itself uses; take another name")
    if keyword.iskeyword(environment) or environment in _TAKEN or hasattr(builtins, environment):
        raise ConfigError(f"{name!r} would give a class {environment!r}, which is taken; take another name")
    if package in sys.stdlib_module_names or find_spec(package) is not None:
        raise ConfigError(f"{name!r} would hide the module {package!r}, which is installed; take another name")
    return Package(name, package, environment, folder)
