"""Fresh installations, and the import of envsdk and of what it is built on."""

from benchmarks import CHECKOUT
from benchmarks.contender import Repetition, contender
from benchmarks.imports import importing
from benchmarks.installing import installed

INSTALLED = {
    "envsdk": str(CHECKOUT),
    "gymnasium and pydantic": "gymnasium pydantic",
    "verifiers": "verifiers==0.4.0",
    "tinker-cookbook": "tinker-cookbook==0.6.1",
}


@contender("import-time", "envsdk", note="`from envsdk import Env, Turn`")
def import_envsdk(_: str) -> Repetition:
    """Import what an author imports."""
    return importing("from envsdk import Env, Turn")


@contender(
    "import-time", "gymnasium and pydantic", packages=("gymnasium", "pydantic"), note="`import gymnasium, pydantic`"
)
def import_base(_: str) -> Repetition:
    """Import what it is built on."""
    return importing("import gymnasium, pydantic")


@contender(
    "import-time",
    "gymnasium and a model's base",
    packages=("gymnasium", "pydantic"),
    note="`import gymnasium`, then `from pydantic import BaseModel`: `import pydantic` alone loads little of it",
)
def import_loaded_base(_: str) -> Repetition:
    """Import what it is built on, as it is used."""
    return importing("import gymnasium; from pydantic import BaseModel")


@contender("import-time", "python", note="`pass`: the start of Python alone")
def import_nothing(_: str) -> Repetition:
    """Import nothing."""
    return importing("pass")


def register(name: str, requirements: list[str]) -> None:
    """Register a package of both rows about installations."""

    @contender("install-time", name)
    def took(_: str) -> Repetition:
        cpu_s = installed(*requirements).cpu_s
        return lambda: cpu_s

    @contender("install-size", name)
    def added(_: str) -> Repetition:
        size = float(installed(*requirements).size)
        return lambda: size


for each, text in INSTALLED.items():
    register(each, [text] if each == "envsdk" else text.split())
