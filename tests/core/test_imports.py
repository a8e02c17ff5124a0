import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "tokenizers", "tiktoken", "openai_harmony"}
HEAVY |= {
    "typer",
    "click",
    "rich",
    "fastapi",
    "starlette",
    "aiohttp",
    "httpx",
    "httpx2",
    "tenacity",
    "openai",
    "anthropic",
}
DEPENDENCIES = {"gymnasium", "numpy", "orjson", "pydantic"}


def imported_by(statement: str) -> set[str]:
    """The top-level modules that a fresh Python has after a statement."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    )


def test_importing_envsdk_imports_nothing_that_it_depends_on():
    assert not imported_by("import envsdk") & (HEAVY | DEPENDENCIES)


NO_LOOPS = {"asyncio", "ssl", "PIL", "zipfile", "email"}  # no event loop, no images, no metadata of packages


@pytest.mark.parametrize(
    ("statement", "more"),
    [("from envsdk import Env, Turn", NO_LOOPS), ("import envsdk_environments, envsdk_renderers", set[str]())],
)
def test_what_authors_import_brings_no_model_library_no_command_line_and_no_web_framework(statement, more):
    assert not imported_by(statement) & (HEAVY | more)


def test_policies_and_rollouts_import_no_model_library():
    assert not imported_by("import envsdk.policies, envsdk.rollouts") & HEAVY
