"""The tables about installs in docs/trainers/index.md: versions are those of the files, and each stack has a row."""

import runpy

from real_models import CHECKOUT

SCRIPT = runpy.run_path(str(CHECKOUT / "scripts" / "shared_installs.py"))
PAGE = (CHECKOUT / "docs" / "trainers" / "index.md").read_text(encoding="utf-8")


def test_the_versions_are_those_that_the_environments_of_peers_pin() -> None:
    assert SCRIPT["replaced"](PAGE, "versions", SCRIPT["versions"]()) == PAGE, "scripts/shared_installs.py --versions"


def test_each_stack_has_a_row_with_its_extras_and_a_way_out_where_one_is_left_out() -> None:
    block = PAGE.partition("<!-- installs: begin -->\n")[2].partition("<!-- installs: end -->")[0]
    lines = [line for line in block.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]
    assert [name for name, *_ in rows] == [stack.name for stack in SCRIPT["STACKS"]]
    known = {f"`{extra}`" for extra in SCRIPT["EXTRAS"]}
    for _, fits, _, _, instead in rows:
        left_out = fits.removeprefix("all but ").split(", ") if fits.startswith("all but ") else []
        assert known.issuperset(left_out)
        assert (fits == "all") == (not instead)
