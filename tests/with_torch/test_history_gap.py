"""What forgetting cost in nats, of models that were fitted to need what is dropped, or to ignore it."""

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_models import logprobs_separate, tiny_qwen3
from typer.testing import CliRunner

import envsdk
from envsdk import Action, Env, Message, Trajectory, Turn
from envsdk.cli import app
from envsdk.credit import add_teacher
from envsdk.diagnostics import history_gap
from envsdk.errors import ConfigError
from envsdk.policies import TransformersPolicy
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer.reporting import report

pytestmark = pytest.mark.filterwarnings("default")

DIGITS = "0123456789"


class Recall(Env):
    """Asks for the digit that the first reply thought of, or for the question's own."""

    def start(self) -> Turn:
        self.asked = 0
        return Turn("Think.")

    def respond(self, reply: Message) -> Turn:
        self.asked += 1
        return Turn(f"Say {self.asked}.", terminated=self.asked == 3)


def played(seed: int, *, needs: bool, history: Any = "strip") -> Trajectory:
    """An episode in which each reply says the digit that the first one thought of, if it is needed and visible."""
    env, rng = Recall(history=history), random.Random(f"{seed} {needs}")
    env.reset(seed=seed)
    thought, said = rng.choice(DIGITS), []
    while env.trajectory is None:
        asked = len(said)
        content = "."
        if asked and needs:
            content = thought if history == "keep" else rng.choice(DIGITS)
        said.append(content)
        reasoning = thought if not asked else None
        tokens = env.renderer.reply(Message(role="assistant", reasoning=reasoning, content=content))
        env.step(Action(tokens, np.full(len(tokens), -0.1, np.float32)))
    return env.trajectory


def fitted(*, needs: bool) -> Any:
    """A small model that was fitted to episodes with and without the dropped digit."""
    by_length: dict[tuple[int, ...], list[Any]] = {}
    for seed in range(100, 400):
        for history in ("keep", "strip"):
            for sample in played(seed, needs=needs, history=history).samples():
                by_length.setdefault((len(sample), *np.flatnonzero(sample.mask).tolist()), []).append(sample.tokens)
    batches = [
        (torch.as_tensor(np.stack(tokens)).long(), torch.as_tensor(trained))
        for (_, *trained), tokens in by_length.items()
    ]
    model = tiny_qwen3(layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rng = random.Random(0)
    for _ in range(400):
        loss = torch.zeros(())
        for tokens, trained in batches:
            chosen = tokens[rng.sample(range(len(tokens)), min(32, len(tokens)))]
            logits = model(input_ids=chosen, use_cache=False, logits_to_keep=trained - 1).logits
            loss = loss + torch.nn.functional.cross_entropy(logits.flatten(0, 1), chosen[:, trained].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def needing() -> Any:
    return fitted(needs=True)


@pytest.mark.full  # the next test has the same figure where nothing was dropped
def test_a_model_that_ignores_what_was_dropped_has_no_gap() -> None:
    gap = history_gap([played(seed, needs=False) for seed in range(20)], fitted(needs=False))
    assert abs(gap.all.mean) < 1e-3
    assert gap.left_out == []


def test_a_model_that_needs_what_was_dropped_has_a_large_one_after_the_break(needing: Any, tmp_path: Path) -> None:
    episodes = [played(seed, needs=True) for seed in range(20)]
    gap = history_gap(episodes, needing)
    assert set(gap.by_reason) == {"", "thinking_stripped"} and set(gap.by_step) == {1, 2, 3}
    assert gap.by_reason["thinking_stripped"].low > 0.3
    assert abs(gap.by_reason[""].mean) < 1e-6
    assert gap.all.tokens == sum(one.tokens for one in gap.by_step.values())
    assert gap.a == "keep" and gap.b == "as played" and "thinking_stripped" in str(gap)
    same = history_gap(episodes, needing, a="strip")
    assert abs(same.all.mean) < 1e-6
    other = history_gap(episodes[0], needing, a="strip", b="keep")
    assert other.all.mean == pytest.approx(-history_gap(episodes[0], needing).all.mean, abs=1e-5)
    gap.plot(tmp_path / "gap.svg")
    assert (tmp_path / "gap.svg").stat().st_size > 1000


def told(model: Any, seeds: Sequence[int]) -> list[Trajectory]:
    """Episodes in which the digit is always 7, and the model samples all replies after the first."""
    policy, episodes = TransformersPolicy(model, "embedded", seed=seeds[0], max_tokens=6), list[Trajectory]()
    for seed in seeds:
        env = Recall(history="strip", renderer="qwen3", tokenizer="embedded", limits={"end_on_cut": False})
        env.reset(seed=seed)
        first = env.renderer.reply(Message(role="assistant", reasoning="7", content="."))
        env.step(Action(first, np.full(len(first), -0.1, np.float32)))
        episodes.append(envsdk.rollout(env, policy, seed=seed, reset=False))
    return episodes


def test_a_student_learns_from_a_teacher_with_the_whole_past_what_was_dropped(needing: Any) -> None:
    student, gaps = copy.deepcopy(needing), list[float]()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for update in range(40):
        episodes = told(student, range(8 * update, 8 * update + 8))
        samples = [one for each in episodes for one in each.samples() if one.segment_index]
        samples = add_teacher(samples, needing, episodes)
        difference = [(one.logprobs - one.reference_logprobs)[one.mask] for one in samples]  # pyright: ignore
        gaps.append(float(np.concatenate(difference).mean()))
        weights = torch.as_tensor(np.concatenate(difference)).clamp(-5, 5)  # the gradient of the reverse KL
        loss = (weights * torch.cat(logprobs_separate(student, samples))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert np.mean(gaps[-10:]) < np.mean(gaps[:5]) / 4


def test_the_report_of_a_run_has_the_gap(needing: Any, tmp_path: Path) -> None:
    run, model, plots = tmp_path / "run", tmp_path / "model", tmp_path / "plots"
    needing.save_pretrained(model)
    run.mkdir()
    write_jsonl(run / "trajectories.jsonl", [played(seed, needs=True) for seed in range(4)])
    options = ["--history-gap", str(model), "--plots", str(plots), "--html", str(tmp_path / "a")]
    printed = CliRunner().invoke(app, ["report", str(run), *options], catch_exceptions=False).stdout
    assert "What forgetting cost" in printed and "thinking_stripped" in printed
    assert (plots / "history-gap.svg").is_file() and "thinking_stripped" in (tmp_path / "a").read_text()
    expected = history_gap([played(seed, needs=True) for seed in range(4)], needing).all.mean
    figures = report(run, model=needing).to_dict()["runs"][0]["history_gap"]
    assert figures["all"][0] == pytest.approx(expected, abs=1e-6)


def test_a_teacher_gives_each_token_what_it_says_with_the_whole_past(needing: Any) -> None:
    trajectory = played(0, needs=True)
    samples = add_teacher(trajectory.samples(), needing, trajectory)
    assert {sample.metadata["teacher"] for sample in samples} == {"keep"}
    (kept,) = trajectory.under("keep").samples()
    with torch.no_grad():
        expected = torch.cat(logprobs_separate(needing, [kept])).numpy()
    given = np.concatenate([sample.reference_logprobs[sample.mask] for sample in samples])  # pyright: ignore[reportOptionalSubscript]
    np.testing.assert_allclose(given, expected, atol=1e-5)
    own = add_teacher(samples, needing, [trajectory], history="strip")
    with torch.no_grad():
        separate = torch.cat(logprobs_separate(needing, samples)).numpy()
    np.testing.assert_allclose(
        np.concatenate([sample.reference_logprobs[sample.mask] for sample in own]),  # pyright: ignore[reportOptionalSubscript]
        separate,
        atol=1e-5,
    )
    with pytest.raises(ConfigError, match="trajectories lacks"):
        add_teacher(samples, needing, [played(1, needs=True)])
    for wrong in (None, [], [None], "a"):
        with pytest.raises(ConfigError, match="expected one episode, or a list of them"):
            history_gap(wrong, needing)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="model is None"):
        history_gap(trajectory, None)
