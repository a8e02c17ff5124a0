"""The plot of what training would cost, drawn by matplotlib."""

from pathlib import Path

import pytest

from envsdk.diagnostics import Sizes, estimate


@pytest.mark.parametrize(("name", "start"), [("cost.png", b"\x89PNG"), ("cost.svg", b"<?xml")])
def test_the_costs_are_drawn(name: str, start: bytes, tmp_path: Path):
    estimate(Sizes(reasoning=20), steps=4, history=["keep", "strip"]).plot(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
