"""What each adapter declares is in the table of docs/trainers/index.md, and has a page."""

import importlib
import pkgutil
from pathlib import Path

from envsdk import trainers
from envsdk.trainers import Capability

CHECKOUT = Path(__file__).parents[2]
PAGE_OF = {"trl_async": "trl"}


def test_the_table_lists_every_adapter_with_its_page():
    images = (CHECKOUT / "docs" / "images.md").read_text(encoding="utf-8")
    table, pages = (CHECKOUT / "docs" / "trainers" / "index.md").read_text(encoding="utf-8"), set[str]()
    for found in pkgutil.iter_modules(trainers.__path__):
        capability = getattr(importlib.import_module(f"envsdk.trainers.{found.name}"), "CAPABILITY", None)
        if capability is None:
            continue
        assert isinstance(capability, Capability)
        page = PAGE_OF.get(found.name, found.name)
        pages.add(page)
        assert (CHECKOUT / "docs" / "trainers" / f"{page}.md").is_file()
        name, several = (
            f"[{capability.trainer}]({page}.md)",
            ["one", "several"][capability.several_samples],
        )
        row = f"| {name} | `{found.name}` | {several} | {capability.loss_weight} |"
        assert row in table, f"docs/trainers/index.md lacks the row {row}"
        row = f"| [{capability.trainer}](trainers/{page}.md) | {capability.images} |"
        assert row in images, f"docs/images.md lacks the row {row}"
    assert {page.stem for page in (CHECKOUT / "docs" / "trainers").glob("*.md")} == {*pages, "foreign", "index"}
