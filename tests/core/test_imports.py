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


@pytest.mark.parametrize("statement", ["from envsdk import Env, Turn", "import envsdk_environments, envsdk_renderers"])
def test_what_authors_import_brings_no_model_library_no_command_line_and_no_web_framework(statement):
    assert not imported_by(statement) & HEAVY


@pytest.mark.parametrize("name", ["policies", "rollouts"])
def test_policies_and_rollouts_import_no_model_library(name):
    assert not imported_by(f"import envsdk.{name}") & HEAVY


def test_what_authors_import_brings_no_event_loop_no_images_and_no_metadata_of_packages():
    assert not imported_by("from envsdk import Env, Turn") & {"asyncio", "ssl", "PIL", "zipfile", "email"}
