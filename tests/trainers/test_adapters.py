"""What holds for every adapter: it passes on tokens, masks and log-probabilities, and refuses unsound samples.

The tests of each trainer show what is different there.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from trainers.episodes import (
    all_kinds,
    copy_of,
    delegated,
    grouped,
    kept,
    masked,
    played,
    refuses_every_defect,
    run_page,
    stripped,
)

from envsdk import Sample, Trajectory, trainers
from envsdk._visible import type_of
from envsdk.errors import InvalidSample
from envsdk.trainers import check_samples, tables
from envsdk.trainers.ms_swift import to_response, to_sft_records
from envsdk.trainers.plain import collate
from envsdk.trainers.prime_rl import to_training_samples
from envsdk.trainers.skyrl import to_generator_output
from envsdk.trainers.slime import to_slime_samples
from envsdk.trainers.tinker import loss_fn_inputs
from envsdk.trainers.trl import to_row
from envsdk.trainers.trl_async import to_fields
from envsdk.trainers.verl import to_outputs

END = int(kept().samples()[0].tokens[-1])
Row = tuple[list[int], list[Any], list[float] | None]
"""The tokens, the mask and the log-probabilities of a whole sample, as an adapter gives them; None if it gives none."""


def whole(prompt: list[int], response: list[int], mask: list[Any], logprobs: list[float] | None) -> Row:
    """A row whose mask and log-probabilities cover the response alone."""
    known = None if logprobs is None else [0.0] * len(prompt) + logprobs
    return [*prompt, *response], [0] * len(prompt) + mask, known


def tinker(samples: list[Sample], **_: Any) -> list[Row]:
    found = [(sample.tokens[:1].tolist(), loss_fn_inputs(sample)) for sample in samples]
    names = ("target_tokens", "mask", "logprobs")
    return [whole(first, *(inputs[name].tolist() for name in names)) for first, inputs in found]


def trl(samples: list[Sample], **options: Any) -> list[Row]:
    rows = [to_row(sample, **options) for sample in samples]
    assert all(row["env_mask"][0] == 1 for row in rows)
    return [whole(*(row[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs"))) for row in rows]


def trl_async(samples: list[Sample], **options: Any) -> list[Row]:
    rows = [to_fields(sample, group_id=0, **options) for sample in samples]
    return [tuple(row[name].tolist() for name in ("input_ids", "completion_mask", "old_log_probs")) for row in rows]


def verl(samples: list[Sample], **options: Any) -> list[Row]:
    rows = to_outputs(samples, prompt_length=1000, response_length=5000, **options)
    names = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")
    return [whole(*(row[name] for name in names)) for row in rows]


def ms_swift(samples: list[Sample], **options: Any) -> list[Row]:
    rows: list[Row] = []
    for sample in samples:
        response = to_response(sample, 0, **options)
        (ids,), (mask,), (trained,) = (
            response.response_token_ids,
            response.response_loss_mask,
            response.rollout_logprobs,
        )
        given = iter(trained)  # for the trained tokens alone
        rows.append((ids, mask, [next(given) if is_trained else 0.0 for is_trained in mask]))
        assert len(trained) == sum(mask)
    return rows


def ms_swift_sft(samples: list[Sample]) -> list[Row]:
    records = [to_sft_records([sample], eos_token_id=END)[0] for sample in samples]
    contents = [record["messages"][0]["content"] for record in records]
    return [(content["token_ids"], content["loss_scale"], None) for content in contents]


def prime_rl(samples: list[Sample]) -> list[Row]:
    return [(row["token_ids"], row["mask"], row["logprobs"]) for row in to_training_samples(samples)]


def skyrl(samples: list[Sample], **options: Any) -> list[Row]:
    output = to_generator_output(samples, **options)
    columns = (output["prompt_token_ids"], output["response_ids"], output["loss_masks"], output["rollout_logprobs"])
    return [whole(*row) for row in zip(*columns, strict=True)]


def slime(samples: list[Sample], **options: Any) -> list[Row]:
    records = to_slime_samples(samples, first_rollout_id=0, first_group_index=0, **options)
    found: list[Row] = []
    for record in records:
        start = len(record["tokens"]) - record["response_length"]
        prompt, response = record["tokens"][:start], record["tokens"][start:]
        found.append(whole(prompt, response, record["loss_mask"], record["rollout_log_probs"]))
    return found


def plain(samples: list[Sample]) -> list[Row]:
    batch = collate(samples, layout="packed")
    assert (batch["labels"] == np.where(batch["mask"], batch["tokens"], -100)).all()
    names = ("tokens", "mask", "logprobs")
    parts = [np.split(batch[name][0], batch["cu_seqlens"][1:-1]) for name in names]
    return [(a.tolist(), b.tolist(), c.tolist()) for a, b, c in zip(*parts, strict=True)]


def table(samples: list[Sample]) -> list[Row]:
    columns = tables._columns(check_samples(samples, logprobs=False), None)  # files need pyarrow: tests/peers/datasets
    rows = [{name: column[at] for name, column in columns.items()} for at in range(len(samples))]
    read = [tables.from_row(row) for row in rows]
    return [(one.tokens.tolist(), one.mask.tolist(), one.logprobs.tolist()) for one in read]  # type: ignore[union-attr]


ADAPTERS: Mapping[str, Callable[..., list[Row]]] = {
    **{function.__name__: function for function in (tinker, trl, trl_async, verl, ms_swift, ms_swift_sft, prime_rl)},
    **{function.__name__: function for function in (skyrl, slime, plain)},
    "tables": table,
}
CHECKED = {**{name: convert for name, convert in ADAPTERS.items() if name != "tinker"}, "check_samples": check_samples}
"""`loss_fn_inputs` takes valid samples; `to_datums` checks them, in test_tinker."""


def credited(trajectory: Trajectory) -> list[Sample]:
    return [replace(copy_of(sample), advantage=0.5) for sample in trajectory.samples()]


def test_every_adapter_is_here() -> None:
    names = [found.name for found in pkgutil.iter_modules(trainers.__path__)]
    having = {name for name in names if hasattr(importlib.import_module(f"envsdk.trainers.{name}"), "CAPABILITY")}
    assert having | {"ms_swift_sft"} == {*ADAPTERS, "atif"}  # test_atif and test_masked_replies


@pytest.mark.parametrize("name", ADAPTERS)
def test_tokens_masks_and_log_probabilities_are_those_of_the_samples(name: str) -> None:
    for trajectory in (*all_kinds(), masked()):
        if trajectory is played() and name in ("verl", "skyrl", "slime"):
            continue  # they have one reward for a rollout
        samples = credited(trajectory)
        for (tokens, mask, logprobs), sample in zip(ADAPTERS[name](samples), samples, strict=True):
            assert tokens == sample.tokens.tolist()
            assert [bool(value) for value in mask] == sample.mask.tolist()
            assert logprobs is None or logprobs == pytest.approx(sample.logprobs.tolist())  # type: ignore[union-attr]


def test_samples_with_any_defect_are_refused() -> None:
    refuses_every_defect(check_samples)


@pytest.mark.parametrize("name", CHECKED)
def test_an_adapter_checks_the_samples(name: str) -> None:
    (sample,) = credited(kept())
    for spoiled, message in ((replace(sample, mask=sample.mask[1:]), "mask has shape"), ({}, "sample 0 is a dict")):
        with pytest.raises(InvalidSample, match=message):
            CHECKED[name]([spoiled])


@pytest.mark.parametrize("name", ["trl", "trl_async", "verl", "ms_swift", "prime_rl", "skyrl", "slime"])
def test_an_adapter_refuses_samples_without_log_probabilities(name: str) -> None:
    (sample,) = credited(kept())
    with pytest.raises(InvalidSample, match=r"sample 0, .* has no log-probabilities"):
        ADAPTERS[name]([replace(sample, logprobs=None)])


@pytest.mark.parametrize("name", ["trl", "trl_async", "verl", "ms_swift", "skyrl", "slime"])
def test_an_adapter_refuses_samples_of_another_temperature_than_the_trainer_s(name: str) -> None:
    samples = credited(kept())
    assert ADAPTERS[name](samples, temperature=0.5)
    with pytest.raises(InvalidSample, match=r"sample 0, .* sampled at temperature 0\.5, but the trainer's is 1"):
        ADAPTERS[name](samples, temperature=1.0)


@pytest.mark.parametrize("name", ["trl_async", "prime_rl"])
def test_an_adapter_refuses_samples_without_an_advantage(name: str) -> None:
    with pytest.raises(InvalidSample, match=r"sample 0, .* has no advantage"):
        ADAPTERS[name](kept().samples())


@pytest.mark.parametrize("name", ["verl", "skyrl", "slime"])
def test_players_with_their_own_rewards_are_refused_together(name: str) -> None:
    with pytest.raises(InvalidSample, match=r"different rewards .*player0.*convert the samples of each context"):
        ADAPTERS[name](played().samples())
    assert len(ADAPTERS[name](played().samples()[:1])) == 1


@pytest.mark.parametrize("name", ["verl", "prime_rl", "skyrl", "slime", "check_samples"])
def test_a_list_of_samples_is_expected_which_may_be_empty(name: str) -> None:
    assert CHECKED[name]([]) == []
    for value in (None, kept().samples()[0], kept()):
        with pytest.raises(InvalidSample, match=f"samples is {type_of(value)}; expected a list of samples"):
            CHECKED[name](value)


@pytest.mark.parametrize("page", ["plain", "prime_rl", "skyrl", "slime"])
def test_the_code_of_a_page_runs(page: str) -> None:
    run_page(page)


# Trainers that group the samples of a rollout.


@pytest.fixture(params=["skyrl", "slime"])
def by_rollout(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "skyrl":
        return to_generator_output
    return partial(to_slime_samples, first_rollout_id=0, first_group_index=0)


def test_two_rollouts_of_one_id_are_refused(by_rollout: Callable[..., Any]) -> None:
    with pytest.raises(InvalidSample, match=r"sample 1 is segment 0 of context 'main' of .* for the second time"):
        by_rollout([*kept().samples(), *kept().samples()])


@pytest.mark.parametrize("missing", [0, 5])
def test_a_rollout_that_lacks_a_sample_is_refused(by_rollout: Callable[..., Any], missing: int) -> None:
    samples = [*stripped().samples(), *delegated().samples()]
    assert samples[0].n_segments == 6
    del samples[missing]
    with pytest.raises(InvalidSample, match=r"context 'main' of trajectory 'strip.*' has 6 segments, but .*: convert"):
        by_rollout(samples)


def test_a_rollout_whose_samples_are_in_several_groups_is_refused(by_rollout: Callable[..., Any]) -> None:
    samples = grouped(stripped())
    samples[2].group_id = "another"
    with pytest.raises(InvalidSample, match=r"are in several groups: .*'another', .*'task'"):
        by_rollout(samples)


def test_a_rollout_that_was_not_scored_is_refused(by_rollout: Callable[..., Any]) -> None:
    (sample,) = map(copy_of, kept().samples())
    sample.metadata["is_scored"] = False
    with pytest.raises(InvalidSample, match=r"sample 0, .* it was not scored"):
        by_rollout([sample])
