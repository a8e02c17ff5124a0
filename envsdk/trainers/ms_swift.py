"""ms-swift (4.6 or newer): a `MultiTurnScheduler` that plays an environment, token-exact.

ms-swift renders messages itself, both to sample and to train. So only the messages up to the first reply are given as
messages; all that follows is one assistant message of token ids, whose mask says what was sampled. That the rendered
messages are our prompt is checked at every step by the ids that the engine returns.
"""

import copy
import dataclasses
import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..authoring.env import Env
from ..contexts.protocol import Action, FinishReason
from ..errors import ConfigError, EpisodeError, InvalidSample, PolicyError
from ..messages import ToolSchema
from ..policies.vocabularies import check_tokenizer
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from .capability import Capability
from .checks import check_sampling, checked
from .packages import load
from .rows import logprobs
from .single import OnBreak, check_on_break, single_sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITY = Capability(
    "ms-swift",
    several_samples=False,
    loss_weight="Not needed: a rollout is one record, whose weight is 1.",
)

MEDIA = ("images", "audios", "videos")
"""What of a turn's `info` overrides the request's, for the engine and for the trainer."""


@dataclass(frozen=True, slots=True)
class Response:
    """What follows the messages, as `RolloutOutput` has it: one turn of token ids."""

    response_token_ids: list[list[int]]
    response_loss_mask: list[list[int]]
    rollout_logprobs: list[list[float]]
    """Only of the tokens whose mask is 1; one more or less, and importance sampling is silently off."""


def to_response(sample: Sample, start: int, *, temperature: float | None = None) -> Response:
    """Write a sample as ms-swift takes it.

    Args:
        sample: The sample.
        start: How many of its tokens are the messages that ms-swift renders itself.
        temperature: The trainer's; None: it is not compared.

    Raises:
        InvalidSample: If the sample is not sound, has no log-probabilities, or trains a token before `start`.
    """
    (sample,) = checked([sample], temperature=temperature)
    if sample.mask[:start].any():
        raise InvalidSample(
            f"mask[{int(np.argmax(sample.mask))}] is True, but the first {start} tokens are messages to ms-swift"
        )
    return Response(
        [sample.tokens[start:].tolist()],
        [sample.mask[start:].astype(np.int32).tolist()],
        [logprobs(sample)[sample.mask].tolist()],
    )


def make_scheduler(make_env: Callable[[], Env], *, name: str = "envsdk", on_break: OnBreak = "raise") -> type[Any]:
    """Make a scheduler for `--multi_turn_scheduler`, and register it by its name: in a file for `--external_plugins`.

    The request's `data_dict`, the other columns of the data set, is the task, but for a column `seed`, which is the
    seed of the episode; its messages are not read. Rewards are in
    `rollout_infos["total_reward"]`, for `--use_gym_env`, and by name in `rollout_infos["rewards"]`. A turn's
    `info={"images": [...]}` replaces the request's images, for the engine and the trainer; so do `audios` and `videos`.

    Args:
        make_env: Makes a new environment, whose limits end the episode.
        name: What it is called in ms-swift's registry.
        on_break: What to do with a rollout of several samples.

    Returns:
        The class. Its `run` raises what the environment raises; `SingleSampleOnly`; `PolicyError` if a prompt is not
        what ms-swift renders; and `EpisodeError` if there is nothing to train and nothing to say so with: no reply at
        all, or no reward.

    Raises:
        ConfigError: If `on_break` is none.
        ImportError: If ms-swift is not installed.
    """
    check_on_break(on_break)
    module: Any = load("swift.rollout.multi_turn", "ms_swift")
    base: Any = module.MultiTurnScheduler

    class EnvsdkScheduler(base):
        """Plays an environment of envsdk."""

        async def run(self, infer_request: Any, request_config: Any, **kwargs: Any) -> Any:
            """Play an episode; see `make_scheduler`."""
            env = make_env()
            limit = env.limits.max_steps
            if self.max_turns and (limit is None or limit > self.max_turns):
                raise ConfigError(
                    f"max_turns is {self.max_turns}, but the environment has max_steps={limit}: its limits end an "
                    f"episode. Make it with limits=Limits(max_steps={self.max_turns})"
                )
            try:
                return await _Rollout(self, env, infer_request, request_config, kwargs).play(on_break)
            finally:
                env.close()

    module.multi_turns[name] = EnvsdkScheduler
    return EnvsdkScheduler


@dataclass(frozen=True, slots=True)
class _Opening:
    """The messages that ms-swift renders in front of a context, and their tokens."""

    messages: list[dict[str, Any]]
    tools: list[ToolSchema] | None
    tokens: "NDArray[np.int32]"
    prefix: list[int]
    """What ms-swift puts in front of a reply (an empty think block, say)."""

    def begins(self, tokens: "NDArray[np.int32]", *, with_prefix: bool = False) -> bool:
        beginning = [*self.tokens.tolist(), *(self.prefix if with_prefix else ())]
        return tokens[: len(beginning)].tolist() == beginning


class _Rollout:
    """One episode, sampled by the scheduler's engine."""

    def __init__(self, scheduler: Any, env: Env, request: Any, config: Any, kwargs: dict[str, Any]) -> None:
        self._scheduler, self._env, self._request, self._kwargs = scheduler, env, request, kwargs
        self._config = dataclasses.replace(config, logprobs=True, return_details=True)
        self._temperature = 1.0 if config.temperature is None else float(config.temperature)
        self._openings: dict[str, _Opening] = {}  # of each context, the one that it goes on from
        self._first: _Opening | None = None
        self._responses: dict[str, Any] = {}  # the last one of each context
        self._media: dict[str, Any] = {}

    async def play(self, on_break: OnBreak) -> Any:
        seed, options = _reset_of(self._request.data_dict)
        _, info = await self._env.areset(seed=seed, options=options)
        while True:
            self._media |= {kind: list(info[kind]) for kind in MEDIA if kind in info}
            if self._env.trajectory is not None:
                return self._output(self._env.trajectory, on_break)
            *_, info = await self._env.astep(await self._sample(self._env.prompt(), info))

    async def _sample(self, prompt: "NDArray[np.int32]", info: dict[str, Any]) -> Action:
        """Let the engine go on with a prompt, which has to be the one that it renders."""
        check_tokenizer(self._scheduler, self._env.episode.agent.context.renderer)
        opening = self._openings.get(info["context"])
        if opening is None or not opening.begins(prompt):
            opening = self._open(prompt)
            sent = opening.messages
        else:
            sent = [*opening.messages, {"role": "assistant", "content": prompt[len(opening.tokens) :].tolist()}]
        shown = copy.deepcopy({"messages": sent, "tools": opening.tools, **self._media})  # engines change them in place
        request = dataclasses.replace(self._request, **shown)
        response = await self._scheduler.infer_engine.infer_async(request, self._asked(info), **self._kwargs)
        _check_prompt(prompt, response.prompt_token_ids)
        self._openings[info["context"]], self._responses[info["context"]] = opening, response
        self._first = self._first or opening
        choice = response.choices[0]
        content: list[dict[str, Any]] = choice.logprobs["content"] if choice.logprobs else []
        logprobs = [float(item["logprob"]) for item in content]
        finish_reason: FinishReason = choice.finish_reason if choice.finish_reason in ("length", "abort") else "stop"
        return Action(choice.token_ids or (), logprobs, finish_reason, self._temperature)

    def _open(self, prompt: "NDArray[np.int32]") -> _Opening:
        context = self._env.episode.agent.context
        prefix, _ = self._scheduler.get_response_token_data(self._request, SimpleNamespace(token_ids=[]))
        messages, tools = [message.to_openai() for message in context.view], list(context.tools) or None
        return _Opening(messages, tools, prompt[: len(prompt) - len(prefix)], prefix)

    def _asked(self, info: dict[str, Any]) -> Any:
        """The request's configuration, with what the environment asks for."""
        check_sampling(info["sampling"], self._temperature)
        limits = [limit for limit in (info["max_tokens"], self._config.max_tokens or None) if limit is not None]
        stop = [*self._config.stop, *info["stop"]]
        asked = {**info["sampling"], "max_tokens": min(limits, default=None), "stop": stop}
        return dataclasses.replace(self._config, **asked)

    def _output(self, trajectory: Trajectory, on_break: OnBreak) -> Any:
        main, opening = next(iter(trajectory.contexts)), self._first
        if opening is None or not trajectory.is_scored(main):
            what = "no reply" if opening is None else "no reward in any turn"
            raise EpisodeError(f"{trajectory.id!r} ended ({trajectory.stop_reason}) with {what}: ms-swift needs one")
        single = single_sample(trajectory, CAPABILITY.trainer, on_break)
        if single.sample is None:  # a record is due, so the first reply is there, and not trained
            first = trajectory.steps[0]
            tokens = trajectory.contexts[first.context].tokens[: first.stop]
            ids = tokens[len(opening.tokens) :].tolist()
            response = Response([ids], [[0] * len(ids)], [[]])
        elif opening.begins(single.sample.tokens, with_prefix=True):
            response = to_response(single.sample, len(opening.tokens), temperature=self._temperature)
        else:
            raise PolicyError(
                "the last segment does not begin as the episode began, and ms-swift can train nothing else: choose "
                "on_break='drop', or a history policy that keeps the first messages and what opens the first reply"
            )
        text = self._env.renderer.tokenizer.decode(response.response_token_ids[0])
        output: Any = load("swift.infer_engine.protocol", "ms_swift").RolloutOutput
        return output(
            response=self._responses[trajectory.steps[0].context],
            messages=[*opening.messages, {"role": "assistant", "content": text}],
            rollout_infos={**_infos(trajectory), "dropped_share": single.dropped_share, **self._media},
            **dataclasses.asdict(response),
        )


def _reset_of(row: Mapping[str, Any] | None) -> tuple[int | None, dict[str, Any]]:
    """The seed of a row's episode, and the options of its reset; the same for all rollouts of the row."""
    task = dict(row or {})
    if not task:
        raise ConfigError(
            "the row has no columns beside its messages, so nothing says which task it is, and the rollouts of a group "
            "would play different ones: give the data set a column 'seed', or those of a task"
        )
    seed = task.pop("seed", None)
    if seed is None:
        text = json.dumps(task, sort_keys=True, default=repr)
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
    try:
        return operator.index(seed), {"task": task} if task else {}
    except TypeError as error:
        raise ConfigError(f"the column 'seed' has {seed!r:.80}; expected an integer") from error


def _infos(trajectory: Trajectory) -> dict[str, Any]:
    named: dict[str, float] = {}
    for step in trajectory.steps:
        for name, reward in step.rewards.items():
            named[name] = named.get(name, 0.0) + reward
    return {
        "num_turns": len(trajectory.steps),
        "total_reward": trajectory.reward_of(next(iter(trajectory.contexts))),
        "step_rewards": [step.reward or 0.0 for step in trajectory.steps],
        "rewards": named,
        "stop_reason": trajectory.stop_reason,
        "trajectory_id": trajectory.id,
    }


def _check_prompt(prompt: "NDArray[np.int32]", rendered: list[int] | None) -> None:
    if rendered is None:
        raise PolicyError("the engine returned no prompt_token_ids, so that nobody knows what it sampled from")
    if prompt.tolist() == list(rendered):
        return
    pairs = zip(prompt.tolist(), rendered, strict=False)
    at = next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(prompt), len(rendered)))
    raise PolicyError(
        f"ms-swift rendered another prompt: {len(rendered)} tokens instead of {len(prompt)}, the first difference at "
        f"{at}: {rendered[at : at + 8]} instead of {prompt[at : at + 8].tolist()}. Its template and the environment's "
        "renderer have to be of one model, with the same options; a first reply cannot be prefilled"
    )
