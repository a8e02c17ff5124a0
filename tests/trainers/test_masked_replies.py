"""Sampled tokens that an environment left out of training; `test_adapters` shows that no adapter trains them."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from trainers.episodes import HOLES, MASKED_STEPS, Masking, masked

from envsdk import Env, Message, Sample, Turn, rollout
from envsdk.errors import InvalidRecord, InvalidSample
from envsdk.trainers import single_sample
from envsdk.trainers._rows import observation_weights
from envsdk.trainers.atif import from_atif, to_atif
from envsdk.trainers.ms_swift import to_response, to_sft_records
from envsdk.trainers.tinker import CookbookEnvGroupBuilder


@pytest.fixture
def sample() -> Sample:
    (sample,) = masked().samples()
    return replace(sample, advantage=0.5)


def test_the_mask_of_a_sample_has_the_holes_and_so_has_that_of_its_document(sample: Sample) -> None:
    holes = (sample.step_ids >= 0) & ~sample.mask
    assert np.count_nonzero(holes) == MASKED_STEPS * sum(stop - start for start, stop in HOLES)
    (read,) = from_atif(json.loads(json.dumps(to_atif(masked())))).trajectory.samples()
    for name in ("tokens", "mask", "logprobs"):
        assert getattr(read, name).tolist() == getattr(sample, name).tolist()


def test_what_an_environment_left_out_is_not_dropped() -> None:
    assert single_sample(masked(), "a trainer").dropped_share == 0.0


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
    (document,) = to_atif(masked())
    step = next(step for step in document["steps"] if "metrics" in step)
    assert step["extra"]["masked"] == [list(hole) for hole in HOLES]
    step["extra"]["masked"] = ranges
    with pytest.raises(InvalidRecord, match=r"extra\.masked"):
        from_atif(document)


def test_the_cookbook_which_trains_every_sampled_token_is_refused_such_an_episode() -> None:
    async def play(kind: type[Env]) -> Any:
        builder = CookbookEnvGroupBuilder(kind, {"renderer": "qwen3", "tokenizer": "embedded"}, group_size=1)
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


def test_a_trained_token_among_the_messages_that_ms_swift_renders_is_refused(sample: Sample) -> None:
    first = int(np.argmax(sample.mask))
    with pytest.raises(InvalidSample, match=rf"mask\[{first}\] .* is True, but the token is in a message"):
        to_response(sample, first + 1)


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
