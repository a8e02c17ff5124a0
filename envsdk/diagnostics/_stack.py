"""The on-policy check of a whole stack: episodes on a sampler, read by a trainer's forward pass of the same weights."""

import inspect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..authoring._env import Env
from ..authoring._making import make
from ..contexts._protocol import Action
from ..errors import ConfigError, RunFailed
from ..policies._vocabularies import PolicyWrapper
from ..rollouts import Rollouts
from ._alignment import TokenMatch, token_match
from ._divergence import Verdict
from ._forward import forward_logprobs
from ._on_policy import KL, kl

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StackReport:
    """The agreement of a trainer's log-probabilities with what was sampled.

    Attributes:
        episodes: The number of episodes that were compared.
        failed: The number of episodes that failed, and were not.
        sampled: The number of sampled tokens in the episodes that were compared.
        breaks: The number of declared breaks by reason.
        tokens: The comparison of the prompts and replies at the policy with the samples.
        kl: The divergence between sampler and trainer.
        verdict: That of `kl`; `"critical"` if a token differs.
    """

    episodes: int
    failed: int
    sampled: int
    breaks: dict[str, int]
    tokens: TokenMatch
    kl: KL

    @property
    def verdict(self) -> Verdict:
        """The verdict: `"healthy"`, `"warning"` or `"critical"`."""
        return self.kl.verdict if self.tokens.share == 1 else "critical"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict and the fields as plain values for JSON."""
        counts = {"episodes": self.episodes, "failed": self.failed, "sampled": self.sampled, "breaks": self.breaks}
        return {"verdict": self.verdict, **counts, "tokens": self.tokens.to_dict(), "kl": self.kl.to_dict()}

    def __str__(self) -> str:
        breaks = ", ".join(f"{count} {reason}" for reason, count in self.breaks.items()) or "none"
        return "\n".join(
            [
                f"{self.episodes} episodes ({self.failed} failed), {self.sampled:,} sampled tokens, of which "
                f"{self.kl.all.tokens:,} are trained; breaks: {breaks}",
                f"tokens: {self.tokens}",
                str(self.kl),
                f"verdict: {self.verdict}",
            ]
        )


def check_stack(
    env: str | type[Env],
    policy: Any,
    model: Any,
    *,
    seeds: int | str | Sequence[int] = 16,
    env_options: Mapping[str, Any] | None = None,
    max_concurrency: int = 64,
) -> StackReport:
    """Play episodes, and compare the sampled tokens and log-probabilities with a trainer's.

    Args:
        env: The id of an environment, or its class.
        policy: A policy that returns the tokens that it samples, with log-probabilities: `VLLM`, `SGLang`,
            `TransformersPolicy` or your own.
        model: The same weights: a causal language model of transformers, in evaluation mode.
        seeds: The seed of each episode; see `Rollouts`.
        env_options: The options of the environment.
        max_concurrency: The maximum number of episodes at the same time.

    Raises:
        ConfigError: If the policy exchanges text or is the name of a built-in one, or the model is in training mode or
            does not fit the tokenizer.
        InvalidSample: If the policy returns no log-probabilities, or samples at temperature 0.
        MissingPackage: If torch is not installed.
        RunFailed: If no episode gave a sample; the error has the first cause.
        ServerMismatch: If a server does not fit the environment, or its log-probabilities are not those of the
            distribution that it samples from; the error names the flag to change.
    """
    check_is_comparable(policy)
    if getattr(model, "training", False):
        raise ConfigError("the model is in training mode, where dropout changes its output: call model.eval()")
    recorder = _SamplingLog()
    # An episode that begins again would be in the log twice.
    options: dict[str, Any] = {"env_options": dict(env_options or {}), "max_retries": 0}
    rollouts = Rollouts(
        env, PolicyWrapper(recorder, policy), seeds=seeds, max_concurrency=max_concurrency, progress=False, **options
    )
    played = rollouts.run()
    trajectories = [trajectory for trajectory in played if trajectory.error is None and trajectory.is_trainable]
    pairs = [(trajectory, sample) for trajectory in trajectories for sample in trajectory.samples()]
    if not pairs:
        causes = [str(trajectory.error) for trajectory in played if trajectory.error is not None]
        raise RunFailed(
            f"none of the {len(played)} episodes gave a sample, so there is nothing to compare: "
            f"{causes[0] if causes else 'no reply had a trained token'}"
        )
    samples = [sample for _, sample in pairs]
    stops = [int(np.flatnonzero(sample.mask)[-1]) + 1 for sample in samples]
    sampled: list[NDArray[np.int32]] = []
    for (trajectory, sample), stop in zip(pairs, stops, strict=True):
        steps = trajectory.steps[: sample.metadata["steps"][-1] + 1]
        calls = sum(len(step.parts) for step in steps if step.context == sample.context)  # one for each part
        sampled.append(recorder.log[trajectory.id, sample.context][calls - 1][:stop])
    trained = [sample.tokens[:stop] for sample, stop in zip(samples, stops, strict=True)]
    with closing(make(env, **(env_options or {})) if isinstance(env, str) else env(**(env_options or {}))) as made:
        renderer = made.renderer
    return StackReport(
        episodes=len(trajectories),
        failed=len(played) - len(trajectories),
        sampled=sum(trajectory.sampled_tokens for trajectory in trajectories),
        breaks=dict(Counter(break_.reason for trajectory in trajectories for break_ in trajectory.breaks)),
        tokens=token_match(sampled, trained),
        kl=kl(samples, forward_logprobs(model, samples, vision=renderer.vision, renderer=renderer), renderer=renderer),
    )


def check_is_comparable(policy: Any) -> None:
    """Check that a policy returns the tokens that a model sampled.

    Raises:
        ConfigError: If it exchanges text, or is the name of a built-in policy.
    """
    expected = (
        "expected one that returns tokens with log-probabilities, such as vllm:URL, sglang:URL or transformers:FOLDER"
    )
    if isinstance(policy, str):
        raise ConfigError(f"the policy {policy!r} has no model to compare a trainer with; {expected}")
    if not getattr(policy, "trainable", True):
        raise ConfigError(
            f"the policy {type(policy).__name__} exchanges text, so the tokens that its model sampled are not known; "
            f"{expected}"
        )


@dataclass(eq=False, repr=False)
class _SamplingLog:
    """A log of every prompt of each context with the reply to it, as they were sampled."""

    log: "dict[tuple[str, str], list[NDArray[np.int32]]]" = field(default_factory=lambda: defaultdict(list))

    async def __call__(self, policy: Any, prompt: "NDArray[np.int32]", **request: Any) -> Action:
        answer: Any = policy(prompt, **request)
        action: Action = await answer if inspect.isawaitable(answer) else answer
        tokens = np.concatenate([prompt, np.asarray(action.tokens, dtype=np.int32)])
        self.log[request["episode_id"], request["context"]].append(tokens)
        return action
