"""Sampled tokens that an environment left out of training: no adapter trains them, whatever its format."""

import asyncio
import functools
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trainers.episodes import with_logprobs

from envsdk import Env, Mask, Message, Sample, Trajectory, Turn, rollout, trainers
from envsdk.errors import InvalidRecord, InvalidSample
from envsdk.policies import ReplyPolicy
from envsdk.trainers import single_sample, tables
from envsdk.trainers._rows import observation_weights
from envsdk.trainers.atif import from_atif, to_atif
from envsdk.trainers.ms_swift import to_response, to_sft_records
from envsdk.trainers.plain import collate
from envsdk.trainers.prime_rl import to_training_samples
from envsdk.trainers.skyrl import to_generator_output
from envsdk.trainers.slime import to_slime_samples
from envsdk.trainers.tinker import CookbookEnvGroupBuilder, loss_fn_inputs
from envsdk.trainers.trl import to_row
from envsdk.trainers.trl_async import to_fields
from envsdk.trainers.verl import to_outputs

STEPS, HOLES = 3, [(0, 1), (2, 5)]  # the first token of each reply, and some in its middle
Converted = tuple[list[Any], list[Any] | None]
"""The mask and the log-probabilities of a whole sample, as an adapter gives them; None if it gives none."""


class Masking(Env):
    """Leaves parts of each reply out of training."""

    records_roles = True

    def start(self) -> Turn:
        self.steps = 0
        return Turn("Count.")

    def respond(self, reply: Message) -> Turn:
        self.steps += 1
        return Turn("Go on.", reward=1.0, mask=Mask(tokens=HOLES), terminated=self.steps == STEPS)

    def reference_reply(self) -> str:
        return "One, two, three, four, five."


@functools.cache
def trajectory() -> Trajectory:
    env = Masking(renderer="qwen3", tokenizer="embedded")
    return rollout(
        env, with_logprobs(ReplyPolicy(env, lambda env: env.reference_reply())), seed=0, options={"group_id": "one"}
    )


@pytest.fixture
def sample() -> Sample:
    (sample,) = trajectory().samples()
    return replace(sample, advantage=0.5)


def with_prompt(prompt: list[int], mask: list[Any], logprobs: list[float] | None) -> Converted:
    """As a whole sample, where the adapter gives a mask of the response alone."""
    return [0] * len(prompt) + mask, None if logprobs is None else [0.0] * len(prompt) + logprobs


def tinker(sample: Sample) -> Converted:
    inputs = loss_fn_inputs(sample)
    return with_prompt([0], inputs["mask"].tolist(), inputs["logprobs"].tolist())  # it is shifted by one


def trl(sample: Sample) -> Converted:
    row = to_row(sample)
    return with_prompt(row["prompt_ids"], row["env_mask"], row["logprobs"])


def trl_async(sample: Sample) -> Converted:
    fields = to_fields(sample, group_id=0)
    return fields["completion_mask"].tolist(), fields["old_log_probs"].tolist()


def verl(sample: Sample) -> Converted:
    (output,) = to_outputs([sample], prompt_length=1000, response_length=1000)
    return with_prompt(output["prompt_ids"], output["response_mask"], output["response_logprobs"])


def ms_swift(sample: Sample) -> Converted:
    response = to_response(sample, 0)
    (mask,), (trained,) = response.response_loss_mask, response.rollout_logprobs
    given = iter(trained)  # for the trained tokens alone
    return mask, [next(given) if is_trained else 0.0 for is_trained in mask]


def ms_swift_sft(sample: Sample) -> Converted:
    (record,) = to_sft_records([sample], eos_token_id=int(sample.tokens[-1]))
    return record["messages"][0]["content"]["loss_scale"], None


def prime_rl(sample: Sample) -> Converted:
    (record,) = to_training_samples([sample])
    assert [value != 0 for value in record["advantages"]] == record["mask"]
    return record["mask"], record["logprobs"]


def skyrl(sample: Sample) -> Converted:
    output = to_generator_output([sample])
    return with_prompt(output["prompt_token_ids"][0], output["loss_masks"][0], output["rollout_logprobs"][0])


def slime(sample: Sample) -> Converted:
    (record,) = to_slime_samples([sample], first_rollout_id=0, first_group_index=0)
    prompt = record["tokens"][: -record["response_length"]]
    return with_prompt(prompt, record["loss_mask"], record["rollout_log_probs"])


def plain(sample: Sample) -> Converted:
    batch = collate([sample, sample], layout="packed")
    assert ((batch["labels"][0] >= 0) == batch["mask"][0]).all()
    return batch["mask"][0, : len(sample)].tolist(), batch["logprobs"][0, : len(sample)].tolist()


def table(sample: Sample) -> Converted:
    columns = tables._columns([sample], None)  # writing the file needs pyarrow, and is in tests/peers/datasets
    read = tables.from_row({name: column[0] for name, column in columns.items()})
    return read.mask.tolist(), read.logprobs.tolist()


def atif(sample: Sample) -> Converted:
    imported = from_atif(json.loads(json.dumps(to_atif(trajectory()))))
    (read,) = imported.trajectory.samples()
    assert read.tokens.tolist() == sample.tokens.tolist()
    return read.mask.tolist(), read.logprobs.tolist()


ADAPTERS: Mapping[str, Callable[[Sample], Converted]] = {
    **{function.__name__: function for function in (tinker, trl, trl_async, verl, ms_swift, ms_swift_sft, prime_rl)},
    **{function.__name__: function for function in (skyrl, slime, plain, atif)},
    "tables": table,
}


def test_every_adapter_is_here() -> None:
    names = [found.name for found in pkgutil.iter_modules(trainers.__path__)]
    having = {name for name in names if hasattr(importlib.import_module(f"envsdk.trainers.{name}"), "CAPABILITY")}
    assert having | {"ms_swift_sft"} == set(ADAPTERS)


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_mask_of_an_adapter_has_the_holes_and_log_probabilities_outside_of_them(name: str, sample: Sample) -> None:
    holes = (sample.step_ids >= 0) & ~sample.mask
    assert np.count_nonzero(holes) == STEPS * sum(stop - start for start, stop in HOLES)
    if name == "tinker":
        sample.temperature[:] = 1.0
    mask, logprobs = ADAPTERS[name](sample)
    assert [bool(value) for value in mask] == sample.mask.tolist()
    assert logprobs is None or logprobs == pytest.approx(sample.logprobs.tolist())


def test_what_an_environment_left_out_is_not_dropped() -> None:
    assert single_sample(trajectory(), "a trainer").dropped_share == 0.0


def test_an_observation_counts_if_the_reply_to_it_is_trained_even_if_its_first_token_is_not(sample: Sample) -> None:
    assert sample.roles is not None
    weights = observation_weights(sample, {"user": 1.0})
    assert (weights > 0).tolist() == (sample.roles.are("user") & (sample.step_ids < 0)).tolist()
    sample.mask[sample.step_ids == 1] = False
    after = np.flatnonzero(sample.step_ids == 0)[-1]
    before = np.flatnonzero(sample.step_ids == 1)[0]
    assert weights[after:before].any()
    assert not observation_weights(sample, {"user": 1.0})[after:before].any()


@pytest.mark.parametrize("ranges", [[[0, 1], [0, 2]], [[3, 3]], [[0, 10**6]], [[1]], [["0", 1]], [5], {"a": 1}])
def test_a_document_with_other_ranges_than_of_sampled_tokens_is_refused(ranges: Any) -> None:
    (document,) = to_atif(trajectory())
    step = next(step for step in document["steps"] if "metrics" in step)
    assert step["extra"]["masked"] == [list(hole) for hole in HOLES]
    step["extra"]["masked"] = ranges
    with pytest.raises(InvalidRecord, match=r"extra\.masked"):
        from_atif(document)


def test_the_cookbook_which_trains_every_sampled_token_is_refused_such_an_episode() -> None:
    async def play(kind: type[Env]) -> Any:
        builder = CookbookEnvGroupBuilder(kind, {"renderer": "qwen3", "tokenizer": "embedded"}, size=1)
        (env,) = await builder.make_envs()
        rollout(env.env, "reference", seed=0)
        env._is_used = True  # the loop of the cookbook needs its package
        return await builder.compute_group_rewards([None], [env])

    class Unmasked(Masking):
        def respond(self, reply: Message) -> Turn:
            turn = super().respond(reply)
            turn.mask = None
            return turn

    with pytest.raises(InvalidSample, match=r"out of training.*trains every sampled token: .*to_datums"):
        asyncio.run(play(Masking))
    assert len(asyncio.run(play(Unmasked))) == 1


def test_a_row_for_supervised_training_ends_with_the_token_that_ms_swift_would_append(sample: Sample) -> None:
    with pytest.raises(InvalidSample, match=r"sample 0, .* ends with the token \d+, not with eos_token_id=7"):
        to_sft_records([sample], eos_token_id=7)


@pytest.mark.parametrize("convert", [to_response, to_sft_records])
def test_the_end_of_a_reply_that_ms_swift_would_train_on_its_own_is_refused(
    convert: Callable[..., Any], sample: Sample
) -> None:
    ends = np.flatnonzero((sample.step_ids >= 0) & (sample.tokens == sample.tokens[-1]))
    first = int(ends[0])
    suffix = sample.tokens[first : first + 2].tolist()
    options = {"start": 0, "suffix": suffix} if convert is to_response else {"eos_token_id": suffix[0]}
    given: Any = sample if convert is to_response else [sample]
    convert(given, **options)
    sample.mask[first] = False
    sample.logprobs[first] = 0.0  # type: ignore[index]
    with pytest.raises(
        InvalidSample, match=rf"tokens\[{first}:{first + (2 if 'start' in options else 1)}\] of a sample"
    ):
        convert(given, **options)
