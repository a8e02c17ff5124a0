"""The adapter for verl: samples as the outputs of agent loops, and an agent loop that runs any environment."""

import asyncio
import json
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self, cast
from uuid import uuid4

import numpy as np

from .._arguments import explain_arguments
from .._registry import get_renderer
from .._visible import brief
from ..authoring._env import Env
from ..contexts._protocol import Action
from ..errors import ConfigError, EpisodeError, InvalidSample, PolicyUnavailable
from ..images import PlacedImage
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..rollouts._jobs import EpisodeJob
from ..rollouts._player import Deadlines, PlaySettings, check_deadlines, play_one
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory
from ._capability import Capability
from ._checks import check_samples, check_sampling, refusal_of
from ._packages import load, load_if_installed
from ._rows import check_one_reward, split_response
from ._rows import routed_experts as experts_of
from ._single import OnBreak, check_on_break, single_sample

__all__ = [
    "EnvAgentLoop",
    "to_outputs",
]

CAPABILITY = Capability(
    "verl, with its V1 trainer",
    several_samples=True,
    loss_weight="In extra_fields, not applied: loss_agg_mode=token-mean averages over tokens.",
    images='`multi_modal_data["images"]`, images of Pillow in RGB, also in requests to the server (`image_data`).',
)
_UNFINISHED: Mapping[str | None, Any] = {"abort": "abort", "aborted": "abort", "length": "length"}
"""The finish reasons of unfinished replies, by the stop reasons of verl's servers. For any other stop reason, the
length of the reply shows whether it was cut."""
_ABORT_WAIT_S = 0.1
_GLOBAL_STEPS: Mapping[str, Any] = {"min_global_steps": min, "max_global_steps": max}

_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_LoopBase: Any = getattr(load_if_installed(_AGENT_LOOP), "AgentLoopBase", object)


def _multi_modal(images: Iterable[PlacedImage]) -> dict[str, Any]:
    """Return the field of an output for its images; none without images."""
    pixels = [placed.image.pixels for placed in images]
    return {"multi_modal_data": {"images": pixels}} if pixels else {}


def to_outputs(
    samples: Iterable[Sample],
    *,
    prompt_length: int,
    response_length: int,
    logprobs: bool = True,
    temperature: float | None = None,
    dropped_share: float = 0.0,
    routed_experts: bool = False,
) -> list[dict[str, Any]]:
    """Return the fields of an `AgentLoopOutput`, except `metrics`, for each sample of a rollout.

    The prompt ends before the first trained token. If it is longer than `prompt_length`, the rest of it is at the
    beginning of the response, with mask 0. A sample with images has `multi_modal_data`, to which verl applies the
    model's processor.

    Args:
        samples: The samples of a rollout. They must have the same reward, because verl assigns that of the last sample
            to all of them.
        prompt_length: verl's `rollout.prompt_length`, in tokens.
        response_length: verl's `rollout.response_length`, in tokens.
        logprobs: Whether verl uses log-probabilities, `rollout.calculate_log_probs`.
        temperature: verl's `rollout.temperature`, which must be that of the samples. None skips the check.
        dropped_share: The share of the rollout's sampled tokens that these samples do not have, from 0 to 1.
        routed_experts: Whether to add the experts of the sampler, `extra["routed_experts"]`, for router replay
            (`rollout.enable_rollout_routing_replay`): `routed_experts`, int16 of shape (L - 1, layers, top_k).

    Raises:
        InvalidSample: If a sample is invalid, has no log-probabilities, was sampled at another temperature or is too
            long, if the rewards differ, or if experts are requested and a token has none.
    """
    valid = check_samples(samples, logprobs=logprobs, temperature=temperature, no_images=None)
    check_one_reward(valid)
    outputs: list[dict[str, Any]] = []
    for index, sample in enumerate(valid):
        response = split_response(sample, prompt_length)
        count = len(response.response_ids)
        if count > response_length:
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, has a response of {count} "
                f"tokens, but rollout.response_length is {response_length}: raise it, or limit the environment with "
                f"Limits(max_context_tokens={response_length})"
            )
        outputs.append(
            {
                "prompt_ids": response.prompt_ids,
                "response_ids": response.response_ids,
                "response_mask": response.mask,
                "response_logprobs": response.logprobs if logprobs else None,
                "reward_score": sample.reward if sample.is_scored else None,
                "num_turns": 2 * len(sample.step_rewards),
                "extra_fields": _extra_fields(sample, sample.trajectory_id, sample.stop_reason, dropped_share),
                **({"routed_experts": experts_of(sample, np.int16)} if routed_experts else {}),
                **_multi_modal(sample.media),
            }
        )
    return outputs


def untrained_output(trajectory: Trajectory, *, prompt_length: int, logprobs: bool = True) -> dict[str, Any]:
    """Return the output of a rollout that trains nothing: its first prompt, with mask 0, because verl needs an output.

    Args:
        trajectory: The rollout.
        prompt_length: verl's `rollout.prompt_length`, in tokens.
        logprobs: Whether verl uses log-probabilities, `rollout.calculate_log_probs`.

    Raises:
        EpisodeError: If the rollout has no step.
    """
    first = next(trajectory.prompts(), None)
    if first is None:
        raise _no_reply(trajectory)
    media = next(trajectory.prompt_images())
    begin = max(0, len(first.prompt) - prompt_length - 1)
    begin = max([begin, *(placed.stop for placed in media if placed.start < begin < placed.stop)])
    tokens = first.prompt[begin:].tolist()
    return {
        "prompt_ids": tokens[:-1],
        "response_ids": tokens[-1:],
        "response_mask": [0],
        "response_logprobs": [0.0] if logprobs else None,
        "reward_score": trajectory.reward_of(first.step.context) if trajectory.is_scored(first.step.context) else None,
        "num_turns": 2 * len(trajectory.steps),
        "extra_fields": _extra_fields(None, trajectory.id, trajectory.stop_reason, 1.0),
        **_multi_modal(placed for placed in media if placed.start >= begin),
    }


def _extra_fields(sample: Sample | None, trajectory_id: str, stop_reason: str, dropped_share: float) -> dict[str, Any]:
    """Return `extra_fields`, which must have the same keys in all outputs."""
    extra: Mapping[str, Any] = {} if sample is None else sample.extra
    steps = {name: [step for step in extra.get(name, ()) if step is not None] for name in _GLOBAL_STEPS}
    return {
        "turn_scores": [] if sample is None else sample.step_rewards.tolist(),
        "tool_rewards": [],
        "reward_extra_info": {},
        "context": None if sample is None else sample.context,
        "loss_weight": 0.0 if sample is None else sample.loss_weight,
        "trajectory_id": trajectory_id,
        "stop_reason": stop_reason,
        "dropped_share": dropped_share,
        **{name: function(steps[name], default=None) for name, function in _GLOBAL_STEPS.items()},
    }


def _no_reply(trajectory: Trajectory) -> EpisodeError:
    return EpisodeError(f"trajectory {trajectory.id!r} ended ({trajectory.stop_reason}) with no reply: verl needs one")


class EnvAgentLoop(_LoopBase):
    """An agent loop that runs an episode of any environment.

    verl makes one for each rollout, from the file of `rollout.agent.agent_loop_config_path`. The `extra_info` of a row
    specifies the task: `task` (an index, or the task itself), `seed`, or else `index`, which is used as the seed.

    Args:
        *args: The arguments of verl's base class.
        env: The id of the environment.
        env_options: The options of the environment. By default, the renderer is `auto`. The tokenizer is verl's.
        on_break: What to do with a rollout of several samples if the trainer takes one, which all trainers except V1
            do; see `OnBreak`.
        **others: `policy_timeout_s`, `method_timeout_s`, `episode_timeout_s` and `max_retries`, see `Rollouts`; and the
            keyword arguments of verl's base class.
    """

    def __init__(
        self,
        *args: Any,
        env: str,
        env_options: Mapping[str, Any] | None = None,
        on_break: OnBreak = "raise",
        **others: Any,
    ) -> None:
        load(_AGENT_LOOP, "verl")
        deadlines = {name: others.pop(name) for name in Deadlines.__annotations__ if name in others}
        base: Any = super()
        base.__init__(*args, **others)
        self._deadlines = check_deadlines(deadlines)
        self._env = env
        self._on_break: OnBreak = check_on_break(on_break)
        self._options: dict[str, Any] = {"renderer": "auto", **json.loads(_json(env_options or {}))}

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Run the episode of a row. Return a list of `AgentLoopOutput` for the V1 trainer, and one for the others.

        Raises:
            ConfigError: If the V1 trainer would train rows with the advantages of other rows.
            Exception: What failed in the episode. The V1 trainer then leaves out the group of the row.
        """
        # Only V1's worker passes a session_id. Other trainers may have the setting use_v1, too.
        is_v1 = "session_id" in row and bool(self.config.get("trainer", {}).get("use_v1", False))
        algorithm = self.config.get("algorithm", {})
        if is_v1 and algorithm.get("use_pf_ppo", False) and algorithm.get("adv_estimator") == "gae":
            raise ConfigError(
                "algorithm.use_pf_ppo draws rows anew, and verl's V1 trainer then trains rows with the advantages of "
                "other rows (verl issue 7956): set algorithm.use_pf_ppo=false, or trainer.use_v1=false"
            )
        job = _job_of(row, self._env)
        renderer = _renderer(_json(self._options["renderer"]), self.tokenizer)
        server = _ServerPolicy(self.server_manager, sampling_params, self.rollout_config, renderer.tokenizer)
        settings = PlaySettings(self._env, {**self._options, "renderer": renderer}, "random", **self._deadlines)
        trajectory = await play_one(settings, job, server)
        if not trajectory.steps:
            raise _no_reply(trajectory)
        config = self.rollout_config
        common: dict[str, Any] = {
            "prompt_length": config.prompt_length,
            "logprobs": bool(config.calculate_log_probs),
        }
        options: dict[str, Any] = {
            "response_length": config.response_length,
            "temperature": server.temperature,
            **common,
        }
        if is_v1:
            outputs = to_outputs(trajectory.samples(), **options)
        else:
            single = single_sample(trajectory, "verl without its V1 trainer", self._on_break)
            if single.sample is None:
                outputs = [untrained_output(trajectory, **common)]
            else:
                outputs = to_outputs([single.sample], dropped_share=single.dropped_share, **options)
        made = [load(_AGENT_LOOP, "verl").AgentLoopOutput(**output, metrics=server.metrics) for output in outputs]
        return made if is_v1 else made[0]


class _ServerPolicy:
    """A policy that samples from verl's server. The server finds its cache of an episode by the request id.

    The length of a segment is limited to what verl accepts: a reply that does not fit is cut, possibly to zero tokens,
    which ends the episode like any other cut.
    """

    def __init__(self, manager: Any, sampling_params: Mapping[str, Any], config: Any, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.metrics = {"generate_sequences": 0.0}
        self.temperature = float(sampling_params["temperature"])
        self.refuses_sampling = refusal_of(self.temperature)
        self._manager, self._params, self._config = manager, sampling_params, config

    def for_episode(self, env: Env, seed: int | None) -> Self:
        """Begin an episode; one that begins again may get another server."""
        self._request_id = uuid4().hex
        self._segments: dict[str, tuple[int, int]] = {}
        """For each context, the position of the first trained token of its segment, and the length of the segment."""
        return self

    async def __call__(
        self,
        prompt: Any,
        *,
        context: str,
        base: str,
        keep: int,
        max_tokens: int | None,
        stop_token_ids: Sequence[int],
        media: Sequence[PlacedImage] = (),
        **request: Any,
    ) -> Action:
        check_sampling(request["sampling"], self.temperature)
        params = {**self._params, **request["sampling"]}
        start, length = self._segments.get(context, (0, -1))
        start = start if base == context and keep == length else len(prompt)
        longest = min(start, self._config.prompt_length) + self._config.response_length
        longest = min(longest, self._config.get("max_model_len") or longest)
        room = longest - len(prompt)
        limit = room if max_tokens is None else min(max_tokens, room)
        self._segments[context] = (start, len(prompt))
        if limit <= 0:
            return Action((), (), "length", self.temperature)
        params |= {"max_tokens": limit, "stop_token_ids": list(stop_token_ids)}
        params |= {"stop": list(request["stop"])} if request["stop"] else {}
        images = {"image_data": [placed.image.pixels for placed in media]} if media else {}
        output = await self._generate(prompt.tolist(), params, images)
        tokens = output.token_ids
        self._segments[context] = (start, len(prompt) + len(tokens))
        ends = "length" if len(tokens) >= limit and tokens[-1] not in stop_token_ids else "stop"
        steps = {name: output.extra_fields.get(name) for name in _GLOBAL_STEPS}
        finish_reason = _UNFINISHED.get(output.stop_reason, ends)
        return Action(tokens, output.log_probs, finish_reason, self.temperature, steps["max_global_steps"], steps)

    async def _generate(self, prompt_ids: list[int], params: dict[str, Any], images: dict[str, Any]) -> Any:
        """Generate a reply. A server that receives new weights aborts replies, so an empty reply is requested again."""
        while True:
            begin = time.perf_counter()
            try:
                output = await self._manager.generate(
                    request_id=self._request_id, prompt_ids=prompt_ids, sampling_params=params, **images
                )
            except load("ray.exceptions", "verl").RayActorError as error:
                raise PolicyUnavailable(f"verl's server has ended: {error}") from error
            self.metrics["generate_sequences"] += time.perf_counter() - begin
            if len(output.token_ids) or _UNFINISHED.get(output.stop_reason) != "abort":
                return output
            await asyncio.sleep(_ABORT_WAIT_S)


def _job_of(row: Mapping[str, Any], env: str) -> EpisodeJob:
    """Return the episode of a row."""
    extra_info: Mapping[str, Any] = row.get("extra_info") or {}
    found = {name: extra_info[name] for name in ("task", "seed", "index") if extra_info.get(name) is not None}
    if not found:
        raise ConfigError(
            f"the extra_info of a row is {brief(extra_info)}, which does not specify the task; expected a 'task', a "
            "'seed' or an 'index'"
        )
    name = uuid4().hex
    seed = found.get("seed", found.get("index"))
    try:
        number = None if seed is None else operator.index(seed)
    except TypeError as error:
        raise ConfigError(f"the seed in a row's extra_info is {brief(seed)}; expected an integer") from error
    task = {"task": found["task"]} if "task" in found else {}
    return EpisodeJob(0, env, name, row.get("uid") or name, number, task)


@lru_cache(maxsize=8)
def _renderer(specification: str, tokenizer: Any) -> Renderer:
    """Return the renderer, which is made once in a process, because loading a vocabulary takes seconds."""
    given: Any = json.loads(specification)
    options: dict[str, Any] = {"name": given} if isinstance(given, str) else given
    return get_renderer(tokenizer=load_tokenizer(tokenizer), **options)


def _json(options: Any) -> str:
    def native(value: Any) -> dict[str, Any] | list[Any]:  # of hydra's own types
        return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else list(value)

    return json.dumps(options, default=native)


explain_arguments(globals())
