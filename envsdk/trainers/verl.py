"""verl: samples become what its agent loops return, and any environment runs as one of them."""

import asyncio
import json
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast
from uuid import uuid4

from ..authoring.making import make
from ..contexts.protocol import Action
from ..errors import ConfigError, EpisodeError, InvalidSample
from ..registry import get_renderer
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..rollouts import arollout
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from .capability import Capability
from .checks import check_sampling, checked
from .packages import load, load_if_installed
from .rows import response_start
from .single import OnBreak, check_on_break, single_sample

CAPABILITY = Capability(
    "verl, with its V1 trainer",
    several_samples=True,
    loss_weight="In extra_fields, not applied: with loss_agg_mode=token-mean, tokens count.",
)
_STOPPED: Mapping[str | None, Any] = {"abort": "abort", "aborted": "abort", "length": "length"}
"""What verl's servers may say of a reply that has no end; of others, their length tells whether they were cut."""
_MAX_EMPTY_ABORTS, _ABORT_WAIT_S = 600, 0.1
_GLOBAL_STEPS: Mapping[str, Any] = {"min_global_steps": min, "max_global_steps": max}

_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_LoopBase: Any = getattr(load_if_installed(_AGENT_LOOP), "AgentLoopBase", object)


def to_outputs(
    samples: Iterable[Sample],
    *,
    prompt_length: int,
    response_length: int,
    logprobs: bool = True,
    temperature: float | None = None,
    dropped_share: float = 0.0,
) -> list[dict[str, Any]]:
    """The fields of an `AgentLoopOutput` for each sample of a rollout, all but its `metrics`.

    The prompt ends before the first trained token. What of that is too long for it begins the response, with mask 0.

    Args:
        samples: The samples of a rollout. Their rewards are the same, since verl gives all of them the last one's.
        prompt_length: verl's `rollout.prompt_length`, in tokens.
        response_length: verl's `rollout.response_length`, in tokens.
        logprobs: Whether verl takes log-probabilities: its `rollout.calculate_log_probs`.
        temperature: verl's `rollout.temperature`; None: it is not compared.
        dropped_share: The share of the rollout's sampled tokens that these samples lack.

    Raises:
        InvalidSample: If a sample is not sound, has no log-probabilities or is too long, or if the rewards differ.
    """
    found = checked(samples, logprobs=logprobs, temperature=temperature)
    rewards = {sample.context: sample.reward for sample in found}
    if len(set(rewards.values())) > 1:
        raise InvalidSample(f"verl has one reward for a rollout, but its contexts have their own: {rewards}")
    outputs: list[dict[str, Any]] = []
    for index, sample in enumerate(found):
        start = min(response_start(sample), prompt_length)
        if len(sample) - start > response_length:
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, has a response of {len(sample) - start} "
                f"tokens, and rollout.response_length is {response_length}: raise it, or limit the environment with "
                f"Limits(max_context_tokens={response_length})"
            )
        given = sample.logprobs if logprobs else None
        outputs.append(
            {
                "prompt_ids": sample.tokens[:start].tolist(),
                "response_ids": sample.tokens[start:].tolist(),
                "response_mask": sample.mask[start:].astype(int).tolist(),
                "response_logprobs": None if given is None else given[start:].tolist(),
                "reward_score": sample.reward if sample.is_scored else None,
                "num_turns": 2 * len(sample.step_rewards),
                "extra_fields": _extra_fields(sample, sample.trajectory_id, sample.stop_reason, dropped_share),
            }
        )
    return outputs


def untrained_output(trajectory: Trajectory, *, prompt_length: int, logprobs: bool = True) -> dict[str, Any]:
    """For a rollout that trains nothing, where verl takes no less than one: its first prompt, with mask 0.

    Raises:
        EpisodeError: If there is no prompt.
    """
    first = next(trajectory.prompts(), None)
    if first is None:
        raise EpisodeError(f"{trajectory.id!r} ended ({trajectory.stop_reason}) with no reply: verl needs one")
    tokens = first.prompt[-prompt_length - 1 :].tolist()
    return {
        "prompt_ids": tokens[:-1],
        "response_ids": tokens[-1:],
        "response_mask": [0],
        "response_logprobs": [0.0] if logprobs else None,
        "reward_score": trajectory.reward_of(first.step.context) if trajectory.is_scored(first.step.context) else None,
        "num_turns": 2 * len(trajectory.steps),
        "extra_fields": _extra_fields(None, trajectory.id, trajectory.stop_reason, 1.0),
    }


def _extra_fields(sample: Sample | None, trajectory_id: str, stop_reason: str, dropped_share: float) -> dict[str, Any]:
    """The same keys in all outputs, as verl wants it."""
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


class EnvAgentLoop(_LoopBase):
    """An agent loop over any environment. verl makes it for each rollout, by `rollout.agent.agent_loop_config_path`.

    The `extra_info` of a row says which task it is: `task` (an index, or the task itself), `seed`, or else `index`.

    Args:
        *args: What verl gives.
        env: The environment's id.
        env_options: What it is made with; the renderer is `auto` by default, the tokenizer is verl's.
        on_break: What to do with a rollout of several samples where verl takes one: in all trainers but V1.
        **others: What verl gives.
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
        base: Any = super()
        base.__init__(*args, **others)
        self._env = env
        self._on_break: OnBreak = check_on_break(on_break)
        self._options: dict[str, Any] = {"renderer": "auto", **json.loads(_json(env_options or {}))}

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Roll out the episode of a row: a list of `AgentLoopOutput` for the V1 trainer, one for others."""
        seed, options = _reset_of(row)
        renderer = _renderer(_json(self._options["renderer"]), self.tokenizer)
        server = _Server(self.server_manager, sampling_params, self.rollout_config, renderer.tokenizer)
        env = make(self._env, **{**self._options, "renderer": renderer})
        try:
            trajectory = await arollout(env, server, seed=seed, options=options)
        finally:
            env.close()
        # Only V1's worker says which of a row's rollouts this is; some others run with its setting on, too.
        is_v1 = "session_id" in row and bool(self.config.get("trainer", {}).get("use_v1", False))
        outputs = self._outputs(trajectory, server.temperature, takes_several=is_v1)
        made = [load(_AGENT_LOOP, "verl").AgentLoopOutput(**output, metrics=server.metrics) for output in outputs]
        return made if is_v1 else made[0]

    def _outputs(self, trajectory: Trajectory, temperature: float, *, takes_several: bool) -> list[dict[str, Any]]:
        config = self.rollout_config
        common = {"prompt_length": config.prompt_length, "logprobs": bool(config.calculate_log_probs)}
        if not trajectory.steps:
            raise EpisodeError(f"{trajectory.id!r} ended ({trajectory.stop_reason}) with no reply: verl needs one")
        asked: dict[str, Any] = {"response_length": config.response_length, "temperature": temperature, **common}
        if takes_several:
            return to_outputs(trajectory.samples(), **asked)
        single = single_sample(trajectory, "verl without its V1 trainer", self._on_break)
        if single.sample is None:
            return [untrained_output(trajectory, **common)]
        return to_outputs([single.sample], dropped_share=single.dropped_share, **asked)


class _Server:
    """The policy: verl's server, which finds what it has cached of an episode by the id of the request.

    A segment gets no longer than verl takes: a reply that there is no room for is cut, to nothing if need be. That ends
    the episode, as any cut does.
    """

    def __init__(self, manager: Any, sampling_params: Mapping[str, Any], config: Any, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.metrics = {"generate_sequences": 0.0}
        self._manager, self._params, self._config = manager, sampling_params, config
        self.temperature = float(sampling_params["temperature"])
        self._request_id = uuid4().hex
        self._segments: dict[str, tuple[int, int]] = {}
        """For each context where its segment begins to be trained, and how long it is by now."""

    async def __call__(
        self,
        prompt: Any,
        *,
        context: str,
        base: str,
        keep: int,
        max_tokens: int | None,
        stop_token_ids: Sequence[int],
        **asked: Any,
    ) -> Action:
        check_sampling(asked["sampling"], self.temperature)
        params = {**self._params, **asked["sampling"]}
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
        params |= {"stop": list(asked["stop"])} if asked["stop"] else {}
        output = await self._generate(prompt.tolist(), params)
        tokens = output.token_ids
        self._segments[context] = (start, len(prompt) + len(tokens))
        ends = "length" if len(tokens) >= limit and tokens[-1] not in stop_token_ids else "stop"
        steps = {name: output.extra_fields.get(name) for name in _GLOBAL_STEPS}
        finish_reason = _STOPPED.get(output.stop_reason, ends)
        return Action(tokens, output.log_probs, finish_reason, self.temperature, steps["max_global_steps"], steps)

    async def _generate(self, prompt_ids: list[int], params: dict[str, Any]) -> Any:
        """Generate a reply. A server that takes new weights aborts replies: it is asked again, but not for ever."""
        for _ in range(_MAX_EMPTY_ABORTS):
            begin = time.perf_counter()
            output = await self._manager.generate(
                request_id=self._request_id, prompt_ids=prompt_ids, sampling_params=params
            )
            self.metrics["generate_sequences"] += time.perf_counter() - begin
            if len(output.token_ids) or _STOPPED.get(output.stop_reason) != "abort":
                return output
            await asyncio.sleep(_ABORT_WAIT_S)
        raise EpisodeError(f"the server aborted {_MAX_EMPTY_ABORTS} replies in a row before their first token")


def _reset_of(row: Mapping[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """The seed of a row's episode, and the options of its reset."""
    about: Mapping[str, Any] = row.get("extra_info") or {}
    found = {name: about[name] for name in ("task", "seed", "index") if about.get(name) is not None}
    if not found:
        raise ConfigError("a row's extra_info says which task it is: it needs a 'task', a 'seed' or an 'index'")
    options = {"episode_id": uuid4().hex, "group_id": row.get("uid")}
    seed = found.get("seed", found.get("index"))
    try:
        number = None if seed is None else operator.index(seed)
    except TypeError as error:
        raise ConfigError(f"the seed in a row's extra_info is {seed!r:.80}; expected an integer") from error
    return number, options | ({"task": found["task"]} if "task" in found else {})


@lru_cache(maxsize=8)
def _renderer(specification: str, tokenizer: Any) -> Renderer:
    """Made once in a process, since reading a vocabulary takes seconds."""
    given: Any = json.loads(specification)
    options: dict[str, Any] = {"name": given} if isinstance(given, str) else given
    return get_renderer(tokenizer=load_tokenizer(tokenizer), **options)


def _json(options: Any) -> str:
    return json.dumps(options, default=_native)


def _native(value: Any) -> dict[str, Any] | list[Any]:
    """What hydra hands on may be of its own types, which are mappings and sequences, but no JSON."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else list(value)
