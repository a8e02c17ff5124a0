"""A run on a Ray cluster whose program is killed at any moment continues where it was."""

import random
import time
from pathlib import Path

import pytest
from killed_runs import PROGRAM, play, stored


@pytest.mark.usefixtures("cluster")
def test_a_run_on_a_cluster_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    here, out = tmp_path / "here", tmp_path / "there"
    assert len(play(program, here, 16)) == 128
    begun = time.monotonic()
    play(program, tmp_path / "undisturbed", 16, "ray")
    took = time.monotonic() - begun
    rng, reported = random.Random(0), set[str]()
    for _ in range(2):
        now = play(program, out, 16, "ray", kill_after_s=rng.uniform(0.0, 0.7) * took)
        assert reported.isdisjoint(now)
        reported |= set(now)
        if (out / "run.json").exists():
            assert reported <= stored(out).keys()
    now = play(program, out, 16, "ray")
    assert reported.isdisjoint(now)
    assert stored(out) == stored(tmp_path / "undisturbed") == stored(here)
