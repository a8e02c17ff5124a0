"""What needs no ms-swift; the rest is in tests/peers/ms_swift."""

import numpy as np
import pytest
from trainers.episodes import all_kinds, copy_of, kept, refuses_every_defect

from envsdk import Trajectory
from envsdk.errors import InvalidSample
from envsdk.trainers.ms_swift import to_response


@pytest.mark.parametrize("trajectory", all_kinds(), ids=lambda trajectory: trajectory.env)
def test_the_response_is_one_turn_whose_logprobs_are_of_the_trained_tokens_alone(trajectory: Trajectory):
    for sample in trajectory.samples():
        for start in (0, int(np.argmax(sample.mask))):
            response = to_response(sample, start)
            (ids,), (mask,), (logprobs,) = (
                response.response_token_ids,
                response.response_loss_mask,
                response.rollout_logprobs,
            )
            assert ids == sample.tokens[start:].tolist()
            assert mask == [int(trained) for trained in sample.mask[start:]]
            assert len(logprobs) == sum(mask)
            assert logprobs == sample.logprobs[sample.mask].tolist()


def test_a_trained_token_among_the_messages_is_refused():
    (sample,) = kept().samples()
    first = int(np.argmax(sample.mask))
    with pytest.raises(
        InvalidSample, match=rf"mask\[{first}\] .* is True, but the token is in a message that ms-swift renders"
    ):
        to_response(sample, first + 1)


def test_what_is_not_sound_is_refused():
    refuses_every_defect(lambda samples: [to_response(sample, 0) for sample in samples], names_index=False)
    sample = copy_of(kept().samples()[0])
    sample.logprobs = None
    with pytest.raises(InvalidSample, match="no log-probabilities"):
        to_response(sample, 0)
