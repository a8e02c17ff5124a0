"""TRL's AsyncGRPOTrainer trains on our rows: at the first step its own `ratio` is 1 and its `kl` 0, across breaks."""

import asyncio
import queue
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

from envsdk import Env, Limits, Message, Sample, Trajectory, Turn, tree_batch
from envsdk.errors import ConfigError, EpisodeError
from envsdk.policies import TransformersPolicy
from envsdk.trainers.trl import dataset
from envsdk.trainers.trl_async import LocalWeights, RolloutWorker

pytestmark = pytest.mark.filterwarnings("default")

GENERATIONS, TEMPERATURE = 4, 0.7
SCENES: dict[str, tuple[str, Any]] = {
    "strip": ("envsdk/MathChat-v0", "strip"),
    "compact": ("envsdk/MathChat-v0", {"name": "compact", "every": 2}),
    "handoff": ("envsdk/Delegate-v1", "keep"),
    "guess": ("envsdk/GuessNumber-v1", "keep"),
}
REASONS = {"strip": "thinking_stripped", "compact": "compaction", "handoff": "handoff"}


def varlen_attention(
    query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, *_: int, softmax_scale: float, **__: Any
) -> Any:
    """The part of flash attention that TRL asks for, in plain torch: each segment sees its own keys, causally."""
    repeat = query.shape[1] // key.shape[1]
    found = []
    for q0, q1, k0, k1 in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
        q, k, v = query[q0:q1], key[k0:k1].repeat_interleave(repeat, 1), value[k0:k1].repeat_interleave(repeat, 1)
        hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1 + len(k) - len(q))
        scores = torch.einsum("qhd,khd->hqk", q, k) * softmax_scale
        found.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v))
    return torch.cat(found)


class Remembering(RolloutWorker):
    """Keeps what was played and made of it, by group; and the policy's weights, by version."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.groups: dict[int, list[Trajectory]] = {}
        self.made: dict[int, list[Any]] = {}
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in list(self.groups.values()) for trajectory in group]

    def _rows(self, trajectories: Any, samples: Any, group_id: int) -> list[Any]:
        self.groups[group_id] = list(trajectories)
        self.made[group_id] = super()._rows(trajectories, samples, group_id)
        return self.made[group_id]

    def update_model_version(self, model_version: int) -> None:
        super().update_model_version(model_version)
        self.weights[model_version] = {k: v.clone() for k, v in self.policy.model.state_dict().items()}


@pytest.fixture
def make_scene(make_env: Callable[..., Env]) -> Callable[[str], Env]:
    return lambda name: make_env(*SCENES[name])


@pytest.fixture
def policy(model: Any, renderer: Any) -> TransformersPolicy:
    options = {"temperature": TEMPERATURE, "max_tokens": 100, "policy_version": 0}
    return TransformersPolicy(model, renderer.tokenizer, **options)


@pytest.fixture
def worker_of(make_scene: Any, policy: Any) -> Any:
    workers = []

    def make(names: list[str], seeds: Any = range(2), kind: Any = Remembering, **options: Any) -> Remembering:
        rows = concatenate_datasets([dataset(name, [seed]) for seed in seeds for name in names])
        options = {"group_size": GENERATIONS, "temperature": TEMPERATURE, **options}
        workers.append(kind(options.pop("make_env", make_scene), rows, policy, **options))
        return workers[-1]

    yield make
    for worker in workers:
        worker.stop()


@pytest.fixture
def trainer_of(model_folder: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """With the two changes that a CPU needs: another attention kernel, and no question for the speed of a GPU."""
    kernel = SimpleNamespace(flash_attn_varlen_func=varlen_attention)
    monkeypatch.setattr(packing, "_flash_attn", lambda: kernel)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda accelerator, dtype: None)

    def make(worker: RolloutWorker, rows: int, **options: Any) -> AsyncGRPOTrainer:
        """Each step trains so many rows, a few at a time."""
        args = AsyncGRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=min(rows, 16),
            gradient_accumulation_steps=-(-rows // 16),
            token_budget=0,
            temperature=TEMPERATURE,
            logging_steps=1,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **options,
        )
        return AsyncGRPOTrainer(
            model=str(model_folder),
            processing_class=tokenizer,
            args=args,
            train_dataset=dataset("guess", [0]),
            rollout_worker=worker,
            weight_transfer=LocalWeights(worker),
        )

    return make


def play(worker: Remembering, is_enough: Callable[[], bool]) -> None:
    """Play before the trainer is there, until it is enough."""
    worker.start()
    while not is_enough():
        worker.check_health(600)  # raises if it failed or hangs
        time.sleep(0.05)


def samples_of_rows(trajectories: list[Trajectory]) -> list[Sample]:
    """The samples of a group in the order of its rows: in each context the longest first."""
    return [
        sample
        for trajectory in trajectories
        for sample in sorted(trajectory.samples(), key=lambda sample: (sample.context, -len(sample)))
    ]


def broken_episodes(trajectories: list[Trajectory]) -> Counter[str]:
    return Counter(reason for t in trajectories for reason in {broken.reason for broken in t.breaks})


def forward(model: Any, sample: Sample) -> np.ndarray:
    """The log-probability that the model gives to each trained token."""
    positions, tokens = torch.as_tensor(np.flatnonzero(sample.mask)), torch.as_tensor(sample.tokens).long()
    with torch.no_grad():
        logits = model(input_ids=tokens[None], use_cache=False, logits_to_keep=positions - 1).logits[0] / TEMPERATURE
    return logits.log_softmax(-1).gather(1, tokens[positions, None])[:, 0].numpy()


def test_at_the_first_step_the_ratio_is_one_across_every_kind_of_break(
    worker_of: Any, trainer_of: Any, compared: Counter[str]
) -> None:
    worker = worker_of(list(REASONS), max_groups=3)
    play(worker, lambda: min(broken_episodes(worker.trajectories)[reason] for reason in REASONS.values()) >= 10)
    first = first_step(worker, trainer_of)
    assert first["clip_ratio/region_mean"] == 0
    assert np.isfinite(first["loss"])
    compared.update(tokens=int(first["batch/trained_tokens_per_step"]), **broken_episodes(worker.trajectories))


def first_step(worker: Remembering, trainer_of: Any) -> dict[str, float]:
    """What TRL logs of the first step on all that was played: its policy is the sampler's."""
    worker.pause()
    worker.resume()  # what has been played is in the queue then
    rows = worker.rollout_buffer.qsize()
    trainer = trainer_of(worker, rows, max_steps=1)
    trainer.train()
    first = trainer.state.log_history[0]
    assert round(first["batch/samples_per_step"]) >= rows  # TRL multiplies it with a float
    assert abs(first["ratio"] - 1) < 1e-3
    assert abs(first["kl"]) < 1e-3
    assert first["rollout/failed_total"] == 0
    return first


def packed(rows: list[Any]) -> tuple[dict[str, torch.Tensor], int]:
    """The rows as TRL's own queue, batcher and trie pack them for one device, and the number of tokens of the trie."""
    waiting: queue.Queue[Any] = queue.Queue()
    for row in rows:
        waiting.put(row)
    health = SimpleNamespace(model_version_fn=lambda: 0, check_health_fn=pytest.fail, stale_after_s=1.0)
    source = async_grpo_trainer.RolloutQueueDataset(waiting, metrics=defaultdict(list), **vars(health))
    (trie,) = next(iter(async_grpo_trainer.FixedCountBatcher(source, 1, len(rows))))
    return trie.pack(), len(trie.tokens)


@pytest.mark.parametrize("scene", ["strip", "compact", "handoff"])
def test_its_tries_merge_what_our_tree_merges_and_train_each_token_once_after_its_own_past(
    worker_of: Any, scene: str
) -> None:
    worker = worker_of([scene], max_groups=1)
    play(worker, lambda: any(broken_episodes(group)[REASONS[scene]] for group in worker.groups.values()))
    worker.stop()
    group_id = next(i for i, group in worker.groups.items() if broken_episodes(group)[REASONS[scene]])
    samples, rows = samples_of_rows(worker.groups[group_id]), worker.made[group_id]
    batch, size = packed(rows)
    # A trie of TRL forks one token before two rows differ, so each row adds at most one token to our tree.
    tree = tree_batch(samples)
    assert size <= len(tree) + len(samples) - 1 < tree.tokens_separate
    assert len(batch["token_index"]) == sum(int(sample.mask.sum()) for sample in samples)
    starts, path_starts = batch["tree_cu_seqlens_q"].numpy(), batch["tree_cu_seqlens_k"].numpy()
    for index, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        own = batch["segment_id"] == index
        np.testing.assert_array_equal(batch["old_log_probs"][own], sample.logprobs[sample.mask])
        assert set(batch["advantages"][own].tolist()) == {np.float32(row.advantage)}
        for place, position in zip(batch["token_index"][own].tolist(), np.flatnonzero(sample.mask), strict=True):
            segment = int(np.searchsorted(starts, place, "right")) - 1
            path = batch["tree_kv_index"][path_starts[segment] : path_starts[segment + 1]]
            past = batch["input_ids"][path[: len(path) - (starts[segment + 1] - 1 - place)]]
            np.testing.assert_array_equal(past, sample.tokens[:position])
            assert (batch["shift_labels"][place], batch["position_ids"][place]) == (
                sample.tokens[position],
                position - 1,
            )


def test_log_probabilities_that_are_not_the_samplers_show_in_the_ratio(worker_of: Any, trainer_of: Any) -> None:
    class Wrong(Remembering):
        def _rows(self, *args: Any) -> list[Any]:
            rows = super()._rows(*args)
            return [replace(row, old_log_probs=row.old_log_probs - 0.5 * row.completion_mask) for row in rows]

    worker = worker_of(["strip"], kind=Wrong)
    trainer = trainer_of(worker, 16, max_steps=1)
    trainer.train()
    first = trainer.state.log_history[0]
    assert first["kl"] > 0.1
    assert first["ratio"] > 1.1


def test_every_sampled_token_is_in_one_row_and_roles_have_baselines_of_their_own(worker_of: Any) -> None:
    worker = worker_of(["handoff"])
    play(worker, lambda: any(broken_episodes(group)["handoff"] for group in worker.groups.values()))
    worker.stop()
    group_id = next(i for i, group in worker.groups.items() if broken_episodes(group)["handoff"])
    trajectories, rows = worker.groups[group_id], worker.made[group_id]
    samples = samples_of_rows(trajectories)
    assert len(rows) == len(samples) > len(trajectories)
    trained = sum(int(row.completion_mask.sum()) for row in rows)
    assert trained == sum(trajectory.sampled_tokens for trajectory in trajectories)
    for row, sample in zip(rows, samples, strict=True):
        np.testing.assert_array_equal(row.input_ids, sample.tokens)
        assert row.completion[0]["role"] == "assistant"
        assert row.group_id == group_id
    for role in ("main", "researcher"):
        advantages = [row.advantage for row, sample in zip(rows, samples, strict=True) if sample.role == role]
        assert abs(sum(advantages)) < 1e-4


def test_each_part_of_a_reply_has_the_probabilities_of_its_version_while_weights_are_sent(
    worker_of: Any, trainer_of: Any, model: Any, compared: Counter[str]
) -> None:
    worker = worker_of(["guess"], range(100, 110), group_size=2, max_groups=2, queue_maxsize=2)
    trainer = trainer_of(worker, 4, max_steps=3, learning_rate=1e-3)
    trainer.train()
    assert worker.policy.policy_version == trainer.model_version == 4
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(worker.weights[4][name], value)
    samples = [sample for trajectory in worker.trajectories for sample in trajectory.samples()]
    for version, weights in worker.weights.items():
        model.load_state_dict(weights)
        for sample in samples:
            versions = sample.policy_version[sample.part_ids[sample.mask]]
            if version in versions:
                is_its = versions == version
                sampled = sample.logprobs[sample.mask][is_its]
                np.testing.assert_allclose(sampled, forward(model, sample)[is_its], 1e-4, 1e-4)
                compared[f"tokens of version {version}"] += int(is_its.sum())
    compared["samples of several versions"] = sum(len(set(sample.policy_version.tolist())) > 1 for sample in samples)
    for group_id, rows in worker.made.items():
        own = [sample for trajectory in worker.groups[group_id] for sample in trajectory.samples()]
        assert [row.model_version for row in rows] == [sample.policy_version.min() for sample in own]


class Fragile(Env):
    """Breaks in some episodes."""

    default_limits = Limits(end_on_cut=False)
    played, fails_always = 0, False

    def start(self) -> Turn:
        Fragile.played += 1
        self.fails = self.fails_always or Fragile.played % 2 == 0
        return Turn("Hello.")

    def respond(self, reply: Message) -> Turn:
        if self.fails:
            raise OSError("the disk is full")
        return Turn(reward=1.0, terminated=True)


def test_failed_episodes_are_counted_and_give_no_rows(worker_of: Any, renderer: Any) -> None:
    worker = worker_of(["any"], make_env=lambda env_id: Fragile(renderer=renderer), max_groups=1)
    play(worker, lambda: worker.metrics_queue.qsize() >= 3)
    worker.stop()
    logged = [worker.metrics_queue.get() for _ in range(3)]
    assert [metrics["rollout/failed_total"] for metrics in logged] == [2.0] * 3
    assert [metrics["reward"] for metrics in logged] == [(2.0, 2)] * 3
    assert [len(worker.made[group_id]) for group_id in range(3)] == [2] * 3


def test_when_all_fails_the_trainer_is_told(worker_of: Any, renderer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "fails_always", True)
    worker = worker_of(["any"], make_env=lambda env_id: Fragile(renderer=renderer), max_groups=1, max_failed_groups=3)
    with pytest.raises(EpisodeError, match=r"all of 4 episodes failed, the last one with: .*the disk is full"):
        play(worker, lambda: False)
    assert sum(metrics["rollout/failed_total"] for metrics in list(worker.metrics_queue.queue)) == 12


def test_who_is_alone_has_no_leave_one_out_baseline_and_ends_nothing(worker_of: Any, renderer: Any) -> None:
    class MostlyFragile(Fragile):
        def start(self) -> Turn:
            turn = super().start()
            self.fails = Fragile.played % 4 != 0
            return turn

    def make_env(env_id: str) -> Env:
        return MostlyFragile(renderer=renderer)

    worker = worker_of(["any"], make_env=make_env, max_groups=1, baseline="leave_one_out")
    play(worker, lambda: worker.metrics_queue.qsize() >= 3)
    worker.stop()
    logged = [worker.metrics_queue.get() for _ in range(3)]
    assert [metrics["rollout/incomparable_total"] for metrics in logged] == [1.0] * 3
    assert [len(worker.made[group_id]) for group_id in range(3)] == [0] * 3


def test_a_call_of_the_policy_that_is_cancelled_fails_its_episode_alone(worker_of: Any) -> None:
    worker = worker_of(["guess"], max_groups=1)
    asked, policy = [], worker.policy

    async def cancelled_once(*args: Any, **request: Any) -> Any:
        asked.append(request["episode_id"])
        if len(asked) == 2:
            raise asyncio.CancelledError
        return await policy(*args, **request)

    worker.policy = cancelled_once
    play(worker, lambda: worker.metrics_queue.qsize() >= 2)
    worker.stop()
    assert sum(worker.metrics_queue.get()["rollout/failed_total"] for _ in range(2)) == 1.0


def test_a_worker_that_has_ended_can_begin_anew(worker_of: Any, renderer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "fails_always", True)
    worker = worker_of(["any"], make_env=lambda env_id: Fragile(renderer=renderer), max_groups=1, max_failed_groups=1)
    with pytest.raises(EpisodeError, match="all of 4 episodes failed"):
        play(worker, lambda: False)
    monkeypatch.setattr(Fragile, "fails_always", False)
    played = worker.metrics_queue.qsize()
    play(worker, lambda: worker.metrics_queue.qsize() >= played + 2)
    worker.check_health(60)


def test_samples_of_another_temperature_end_the_rollouts(worker_of: Any) -> None:
    worker = worker_of(["guess"], temperature=1.0)
    with pytest.raises(EpisodeError, match=r"InvalidSample: .* was sampled at temperature 0.7, but"):
        play(worker, lambda: False)
    assert worker.rollout_buffer.empty()


def test_a_policy_that_does_not_reply_is_noticed(worker_of: Any) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(3600)

    worker = worker_of(["guess"])
    worker.policy = never
    worker.start()
    worker.check_health(60)
    time.sleep(0.2)
    with pytest.raises(EpisodeError, match="the last reply was"):
        worker.check_health(0.1)
    worker.stop()
    with pytest.raises(EpisodeError, match="not running"):
        worker.check_health(60)


def test_a_full_queue_makes_the_rollouts_wait_and_that_is_healthy(worker_of: Any) -> None:
    worker = worker_of(["guess"], queue_maxsize=3)
    play(worker, worker.rollout_buffer.full)
    time.sleep(0.5)
    worker.check_health(0.4)
    assert worker.rollout_buffer.qsize() == 3
    worker.rollout_buffer.get()
    play(worker, worker.rollout_buffer.full)


def test_weights_of_another_model_are_refused(worker_of: Any) -> None:
    weights = LocalWeights(worker_of(["guess"]))
    with pytest.raises(ConfigError, match="has no parameters"):
        weights.send_weights(iter([("model.layers.7.mlp.up_proj.weight", torch.zeros(1))]))
