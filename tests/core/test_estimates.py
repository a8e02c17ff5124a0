"""What training would cost, against counts by hand and against episodes that are played."""

import json
import math
from typing import Any

import pytest
from typer.testing import CliRunner

import envsdk
from envsdk import Env, Limits, Message, Turn, diagnostics, errors
from envsdk.cli import app
from envsdk.diagnostics import CostEstimate, Prices, Sizes, estimate

SIZES = Sizes(first=50, observation=20, reasoning=40, answer=10)


def rows(found: CostEstimate) -> dict[str, diagnostics.HistoryCost]:
    return {row.history.partition(":")[0]: row for row in found.rows}


def test_every_history_policy_is_compared_by_default():
    found = rows(estimate(SIZES, steps=24))
    assert [*found] == ["keep", "strip", "compact", "budget", "summarize"]
    assert [row.cost.steps for row in found.values()][:4] == [24] * 4
    assert found["summarize"].cost.steps > 24  # those that wrote summaries, too
    assert {name: sum(b.breaks for b in row.cost.breaks.values()) > 0 for name, row in found.items()} == {
        "keep": False,
        **dict.fromkeys(["strip", "compact", "budget", "summarize"], True),
    }
    assert all(row.ended is None for row in found.values())


def test_the_counts_are_those_of_a_count_by_hand():
    """ChatML: a message has 5 tokens of scaffold and a generation prompt 3; a reply `<think>`s (4) and ends (1)."""
    found = rows(estimate(SIZES, steps=16, history=["keep", "strip"]))
    observed, sampled = [8 + 50, *[1 + 8 + 20] * 15], [40 + 10 + 4 + 1] * 16
    contexts = [sum(observed[: i + 1]) + sum(sampled[: i + 1]) for i in range(16)]
    keep = found["keep"].cost
    assert keep.sampled == pytest.approx(sum(sampled), abs=3 * 16)
    assert keep.observed == pytest.approx(sum(observed), abs=3 * 16)
    assert keep.prompts == pytest.approx(sum(contexts) - sum(sampled), rel=0.05)
    assert (keep.samples, keep.as_samples, keep.as_tree) == (1, keep.sampled + keep.observed, keep.as_samples)
    strip = found["strip"].cost
    assert strip.sampled == keep.sampled and strip.samples == 16
    assert strip.as_tree == strip.observed + strip.sampled
    bare = 29 + 10 + 1  # a round without its thinking
    assert strip.as_samples == pytest.approx(sum(58 + i * bare + 55 for i in range(16)), rel=0.1)


@pytest.mark.full
def test_costs_grow_with_the_steps_or_with_their_square():
    found = rows(estimate(SIZES, steps=120, history=["keep", "strip"]))
    assert [found[name].growth("prompts") for name in found] == pytest.approx([2, 2], abs=0.1)
    assert [found[name].growth("as_tree") for name in found] == pytest.approx([1, 1], abs=0.05)
    assert [found[name].growth("as_samples") for name in found] == pytest.approx([1, 2], abs=0.1)
    assert math.isnan(rows(estimate(SIZES, steps=1, history="keep"))["keep"].growth("as_tree"))


def test_the_images_of_an_environment_are_counted_and_named():
    found = estimate("envsdk/GridScreen-v1", seeds=2, history="keep")
    played = [envsdk.rollout("envsdk/GridScreen-v1", "reference", seed=seed) for seed in range(2)]
    sizes = [placed.stop - placed.start for one in played for placed in one.contexts["main"].media]
    assert found.sizes.first_images == found.sizes.observation_images == round(sum(sizes) / len(sizes))
    assert found.sizes.observation > found.sizes.observation_images
    (note,) = found.notes()
    assert note.startswith("images: ") and note in str(found)
    assert "estimated as text" in note
    assert "image" not in str(estimate(SIZES, steps=2, history="keep"))


def test_a_tool_loop_keeps_its_thinking_under_strip():
    found = rows(estimate(Sizes(first=50, observation=20, reasoning=40, answer=10, query_every=None), steps=12))
    assert found["strip"].cost == found["keep"].cost
    every_fourth = rows(estimate(Sizes(query_every=4), steps=16, history=["strip"]))["strip"]
    assert every_fourth.cost.samples == 4


def test_sizes_are_the_means_of_reference_episodes():
    def played(history: str) -> list[envsdk.Trajectory]:
        env = envsdk.make("envsdk/MathChat-v0", history=history)
        return [envsdk.rollout(env, "reference", seed=seed) for seed in range(4)]

    found = rows(estimate("envsdk/MathChat-v0", history=["keep", "strip"]))
    for name, row in found.items():
        real = diagnostics.cost(played(name))
        steps = row.steps[-1]
        assert steps == max(len(trajectory.steps) for trajectory in played(name))
        for field in ("sampled", "observed", "as_samples", "as_tree"):
            mean = getattr(real, field) / 4
            assert getattr(row.cost, field) == pytest.approx(mean, rel=0.25), (name, field)


class Once(Env):
    """Asks one question."""

    default_limits = Limits(max_steps=3)

    def start(self) -> Turn:
        return Turn("Q?")

    def respond(self, reply: Message) -> Turn:
        return Turn("Good.", reward=1.0, terminated=True)

    def reference_reply(self) -> Message | str:
        return "yes"


class Mute(Once):
    """As `Once`, without a reference policy."""

    reference_reply = Env.reference_reply


def test_an_environment_object_is_estimated_with_its_own_family():
    found = estimate(Once(renderer={"name": "qwen3", "enable_thinking": False}), history="keep", steps=5)
    assert found.sizes.reasoning == 0 and found.sizes.query_every is None
    assert found.rows[0].cost.steps == 5


def test_prices_are_per_million_tokens():
    prices = Prices(input=3, cached=0.3, output=15, training=2)
    found = estimate(SIZES, steps=8, history="strip", prices=prices)
    cost = found.rows[0].cost
    by_hand = 3e-6 * cost.observed + 3e-7 * cost.kept + 15e-6 * cost.sampled + 2e-6 * cost.as_tree
    assert found.to_dict()["rows"][0]["price"] == pytest.approx(by_hand)
    assert str(found).endswith(f"{prices.of(cost):.4g}")


def test_a_budget_that_is_too_small_is_said():
    found = estimate(SIZES, steps=8, history="budget:max_tokens=60")
    assert found.rows[0].ended == "context_full"
    assert "budget:max_tokens=60: the episode ended before step" in str(found)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Sizes(first=-1), "Sizes.first is -1"),
        (lambda: Sizes(query_every=0), "Sizes.query_every is 0"),
        (lambda: Sizes(answer=None), "Sizes.answer is None"),
        (lambda: Sizes(answer=1.5), "Sizes.answer is 1.5"),
        (lambda: Prices(input=-1), "the price input is -1"),
        (lambda: Prices(output=math.nan), "the price output is nan"),
        (lambda: estimate(SIZES, steps=0), "steps is 0"),
        (lambda: estimate(Mute()), "Mute has no reference_reply"),
        (lambda: estimate(3), "estimate\\(\\) got 3"),
        (lambda: estimate("envsdk/MathChat-v0", renderer="qwen3"), "has its own renderer"),
        (lambda: Sizes.of([], envsdk.get_renderer("qwen3")), "no episode has a step"),
    ],
)
def test_what_cannot_be_estimated_is_refused(make: Any, error: str):
    with pytest.raises(errors.ConfigError, match=error):
        make()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["cost", *arguments])


def test_the_command_prints_a_table_or_json():
    options = ["--sizes", "first=50,reasoning=20", "--steps", "6", "--history", "keep", "--history", "strip"]
    printed = run(*options, "--price", "input=1,output=2").stdout
    assert [line.split()[0] for line in printed.splitlines()] == ["history", "keep", "strip"]
    assert printed.splitlines()[0].split()[-1] == "price"
    found = json.loads(run(*options, "--json").stdout)
    assert found["sizes"]["reasoning"] == 20 and [row["history"] for row in found["rows"]] == ["keep", "strip"]
    assert found["rows"][0]["price"] is None
    assert json.loads(run("envsdk/GuessNumber-v1", "--history", "keep", "--json").stdout)["rows"][0]["breaks"] == {}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "needs an environment or --sizes"),
        (["envsdk/MathChat-v0", "--sizes", "first=3"], "and not both"),
        (["--sizes", "first=3,size=4"], "expected some of first"),
        (["--sizes", "first"], "expected key=value"),
        (["--sizes", "first=3", "--price", "output=cheap"], "the price output is 'cheap'"),
    ],
)
def test_the_command_refuses_what_it_cannot_read(arguments: list[str], error: str):
    failed = run(*arguments)
    assert isinstance(failed.exception, errors.ConfigError) and error in str(failed.exception)
