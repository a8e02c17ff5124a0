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


STEPS = (
    "import envsdk",
    "from envsdk import Env, Turn",
    "import envsdk_environments, envsdk_renderers",
    "import envsdk.policies, envsdk.rollouts",
    "from envsdk.adapters import Dataset, MCPServer, ReasoningGym",
)


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """The modules that a fresh Python has after each statement, each of which follows those before it."""
    each = "\n".join(f"{step}\nprint(*sys.modules)" for step in STEPS)
    printed = subprocess.run([sys.executable, "-c", f"import sys\n{each}"], check=True, capture_output=True, text=True)
    return dict(zip(STEPS, map(set, map(str.split, printed.stdout.splitlines())), strict=True))


def test_importing_envsdk_imports_nothing_that_it_depends_on(imported: dict[str, set[str]]) -> None:
    assert not imported[STEPS[0]] & (HEAVY | DEPENDENCIES)


def test_what_authors_import_brings_no_model_library_no_command_line_and_no_web_framework(
    imported: dict[str, set[str]],
) -> None:
    no_loops = {"asyncio", "ssl", "PIL", "zipfile", "email"}  # no event loop, no images, no metadata of packages
    assert not imported[STEPS[1]] & (HEAVY | no_loops)
    assert not imported[STEPS[2]] & HEAVY


def test_policies_and_rollouts_import_no_model_library(imported: dict[str, set[str]]) -> None:
    assert not imported[STEPS[3]] & HEAVY


def test_an_adapter_imports_no_package_that_it_adapts(imported: dict[str, set[str]]) -> None:
    assert not any(name.startswith("envsdk.authoring.adapters") for name in imported[STEPS[0]])
    assert not imported[STEPS[4]] & {"reasoning_gym", "mcp", "anyio", "sympy", "datasets"}
