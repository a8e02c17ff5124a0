"""docs/builtin-environments.md lists the environments as they are."""

import runpy
from pathlib import Path

import pytest

from envsdk.errors import SandboxUnavailable
from envsdk.sandbox import check_isolation

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.full
def test_the_list_of_environments_is_what_the_registry_gives() -> None:
    try:
        check_isolation("auto")
    except SandboxUnavailable as error:
        pytest.skip(f"not every environment can be made here: {error}")
    script = runpy.run_path(str(CHECKOUT / "scripts" / "environment_table.py"))
    text = (CHECKOUT / "docs" / "builtin-environments.md").read_text(encoding="utf-8")
    assert script["replaced"](text) == text, "run `python scripts/environment_table.py --write`"
