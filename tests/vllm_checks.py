"""What rollouts on a real vLLM are compared with: what the server sampled, and what a trainer computes of it."""

import copy
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from example_programs import example

from envsdk import Action, Renderer, Sample, Trajectory
from envsdk.diagnostics import forward_logprobs, kl, token_match
from envsdk.policies import VLLM

TOLERANCE = 1e-5


class RecordingVLLM(VLLM):
    """Also writes down, for each context, every prompt with the reply to it: what the server really sampled."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.log: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)

    async def sample(self, prompt: Any, *args: Any, **request: Any) -> Action:
        action = await super().sample(prompt, *args, **request)
        self.log[request["episode_id"], request["context"]].append(np.concatenate([prompt, action.tokens]))
        return action


def samples_of(trajectories: Sequence[Trajectory]) -> list[Sample]:
    """Return the validated samples of episodes that all ended without an error."""
    assert [one.error for one in trajectories if one.status == "error"] == []
    return [sample.validate() for one in trajectories for sample in one.samples()]


def check_logprobs(
    samples: Sequence[Sample],
    models: Mapping[int, Any],
    compared: Counter[str],
    at_least: int = 600,
    renderer: Renderer | None = None,
) -> None:
    """Compare log-probabilities with those of the weights that sampled each token, in transformers, in float32.

    Args:
        samples: The samples. Of many, random ones are compared that have `at_least` tokens together.
        models: The model of each version of the weights; -1 is the version of parts without one.
        compared: Counts the tokens.
        at_least: How many tokens to compare.
        renderer: The renderer, if a program may require a call: such a reply is sampled under a grammar.
    """
    chosen: list[Sample] = []
    for index in np.random.default_rng(0).permutation(len(samples)):
        if sum(int(sample.mask.sum()) for sample in chosen) < at_least:
            chosen.append(samples[index])
    values = [np.zeros(len(sample)) for sample in chosen]
    for version, model in models.items():
        all_computed = (
            logprobs(model, chosen) if renderer is None else forward_logprobs(model, chosen, renderer=renderer)
        )
        for sample, value, computed in zip(chosen, values, all_computed, strict=True):
            is_its_own = sample.mask & (sample.policy_version[sample.part_ids] == version)
            value[is_its_own] = computed[is_its_own]
    found = kl(chosen, values)
    differences = [
        abs(value - sample.logprobs)[sample.mask].max() for sample, value in zip(chosen, values, strict=True)
    ]
    print(f"{found.all}; largest difference {max(differences):.2g} nats")
    assert max(abs(found.all.k1), found.all.k2, found.all.k3) < TOLERANCE
    compared["log-probabilities"] += found.all.tokens


@torch.no_grad()
def logprobs(model: Any, samples: Sequence[Sample]) -> list[np.ndarray]:
    """Return a model's log-probability of each trained token of each sample, at its temperature: shape (L,).

    What all samples begin with, such as the tools, is computed once.
    """
    shared = min(int(np.flatnonzero(sample.mask)[0]) for sample in samples) - 1
    while any((sample.tokens[:shared] != samples[0].tokens[:shared]).any() for sample in samples):
        shared -= 1
    prefix = transformers.DynamicCache()
    model(input_ids=torch.as_tensor(samples[0].tokens[:shared]).long()[None], past_key_values=prefix)
    found: list[np.ndarray] = []
    for sample in samples:
        positions, tokens = np.flatnonzero(sample.mask), torch.as_tensor(sample.tokens).long()
        logits = model(input_ids=tokens[None, shared:], past_key_values=copy.deepcopy(prefix)).logits[0]
        logits = (
            logits[positions - 1 - shared] / torch.as_tensor(sample.temperature[sample.part_ids[positions]])[:, None]
        )
        values = np.zeros(len(sample))
        values[positions] = logits.log_softmax(-1).gather(1, tokens[positions, None])[:, 0].numpy()
        found.append(values)
    return found


def check_tokens(policy: RecordingVLLM, samples: Sequence[Sample], compared: Counter[str]) -> None:
    """Compare every prompt and every reply of the server with what a trainer reads, token by token."""
    trained = example("onpolicy_check").trained_log(samples)
    match = token_match(
        [tokens for key in trained for tokens in policy.log[key]],
        [tokens for key in trained for tokens in trained[key]],
    )
    assert match.share == 1.0, match
    assert sum(map(len, policy.log.values())) == match.records  # no reply is missing
    compared["prompts with replies"] += match.records
    compared["their tokens"] += match.sampled
