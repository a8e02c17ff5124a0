"""The adapter for ms-swift (4.6 or newer): a `MultiTurnScheduler` that runs the episodes of an environment.

ms-swift renders messages itself, both to sample and to train. So only the messages before the first reply are passed as
messages. Everything after them is one assistant message of token ids, whose mask marks the sampled tokens. At each
step, the prompt ids that the engine returns are compared with the prompt of the environment.

If there are images, ms-swift's template has to render the messages that have them, because only a tag in a string is an
image for it. Then each reply is an assistant message of token ids, and the messages between them are strings.
"""

import copy
import dataclasses
import hashlib
import importlib.metadata
import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, Unpack
from uuid import uuid4

import numpy as np

from .._arguments import explain_arguments
from .._describing import around_difference
from .._visible import brief
from ..authoring._env import Env
from ..contexts._context import Context
from ..contexts._protocol import Action, FinishReason
from ..episodes._turn import Turn
from ..errors import ConfigError, EpisodeError, PolicyError
from ..images import PlacedImage, rgb_image
from ..limits import Limits
from ..messages import Message, TextPart, ToolSchema
from ..rollouts._jobs import EpisodeJob
from ..rollouts._player import Deadlines, PlaySettings, check_deadlines, play_one
from ..trajectories._samples import Sample
from ..trajectories._tally import sum_by_name
from ..trajectories._trajectory import Trajectory
from ._capability import Capability
from ._checks import check_sampling, refusal_of
from ._conversations import to_conversations
from ._ms_swift_records import ResponseFields as ResponseFields
from ._ms_swift_records import to_response as to_response
from ._ms_swift_records import to_sft_records as to_sft_records
from ._ms_swift_records import to_turns
from ._packages import load
from ._rows import check_one_reward, response_start
from ._single import OnBreak, check_on_break, single_sample

__all__ = ["make_scheduler", "to_response", "to_sft_records"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITY = Capability(
    "ms-swift",
    several_samples=True,
    loss_weight="Left out: choose a loss_type that averages over tokens (bnpo, dapo) for on_break='split'.",
    images="`images` of requests and of `rollout_infos`, as `data:` URLs, and a tag `<image>` in a message for each.",
)

OnBreakOrSplit: TypeAlias = OnBreak | Literal["split"]
"""`OnBreak`, and `"split"`: each sample is a separate record, with the reward of the rollout."""

MEDIA = ("images", "audios", "videos")
"""The keys of a turn's `info` that replace the fields of the request, for the engine and for the trainer."""


def make_scheduler(
    make_env: Callable[[], Env],
    *,
    name: str = "envsdk",
    on_break: OnBreakOrSplit = "raise",
    **deadlines: Unpack[Deadlines],
) -> type[Any]:
    """Make a scheduler class for `--multi_turn_scheduler`, and register it. Call this in an `--external_plugins` file.

    The task of an episode (`options["task"]`) is the `data_dict` of the request, which holds the columns of the dataset
    besides the messages, with the messages as `"messages"` if the environment's `Task` has such a field. Without a
    `Task`, they are added to any other columns. A column `seed` is the seed of the episode. Rewards are in
    `rollout_infos["total_reward"]`, for `--use_gym_env`, and by name in `rollout_infos["rewards"]`.
    `rollout_infos["trajectory"]` has all messages; see `to_conversations`. A turn with `info={"images": [...]}`
    replaces the images of the request, for the engine and the trainer; so do `audios` and `videos`. Images in messages
    need no such entry: the request has those of the prompt, and `rollout_infos["images"]` those of the sample.

    Args:
        make_env: A function that makes a new environment. Its limits end the episode, and so does `--max_turns`, as
            `Limits(max_steps=)`.
        name: The name of the scheduler in ms-swift's registry.
        on_break: What to do with a rollout of several samples; see `OnBreakOrSplit`. With `"split"`, `run` returns a
            list of records.
        **deadlines: `policy_timeout_s`, `method_timeout_s`, `episode_timeout_s` and `max_retries`; see `Rollouts`.

    Returns:
        The class, which raises `ConfigError` if it is made without an engine, as in a trainer (colocate mode). Its
        `run` raises what failed in the episode, after the retries; `SingleSampleOnly` if the rollout has several
        samples and `on_break` is `"raise"`; `PolicyError` if ms-swift renders another prompt than the environment;
        `ConfigError` if the row names no task, or its tools differ from the environment's; `InvalidSample` if ms-swift
        would train tokens that differ from the sample's; and `EpisodeError` if the episode ended without a reply or a
        reward.

    Raises:
        ConfigError: If `on_break` or a deadline is invalid, or `on_break` is `"split"` and this version of ms-swift
            takes one record for each request.
        MissingPackage: If ms-swift is not installed.
    """
    if on_break != "split":
        check_on_break(on_break, "split")
    elif not hasattr(load("swift.rl_core.advantage", "ms_swift"), "compute_advantages_dynamic"):
        version = importlib.metadata.version("ms-swift")
        raise ConfigError(
            f"on_break is 'split', but ms-swift {version} takes one record for each request: install ms-swift==4.6.0, "
            "or choose 'last_segment' or 'drop'"
        )
    settings = PlaySettings(make_env, {}, "random", **check_deadlines(deadlines))
    module: Any = load("swift.rollout.multi_turn", "ms_swift")
    base: Any = module.MultiTurnScheduler

    class EnvsdkScheduler(base):
        """A scheduler that runs the episodes of an environment of envsdk."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
            if self.infer_engine is None:
                raise ConfigError(
                    f"the scheduler {name!r} was made without an engine, in a trainer of ms-swift, which would sample "
                    f"(colocate mode) without the environment: pass --multi_turn_scheduler {name} to `swift rollout` "
                    "alone, and start the trainer with --use_vllm true --vllm_mode server"
                )
            self._settings = dataclasses.replace(settings, env=partial(_limited, make_env, self.max_turns))

        async def run(self, infer_request: Any, request_config: Any, **kwargs: Any) -> Any:
            """Run one episode; see `make_scheduler`."""
            rollout = _Rollout(self, infer_request, request_config, kwargs, on_break)
            trajectory = await play_one(self._settings, rollout.job(name), rollout)
            return rollout.output(trajectory)

    module.multi_turns[name] = EnvsdkScheduler
    return EnvsdkScheduler


def _limited(make_env: Callable[[], Env], max_turns: int | None) -> Env:
    """Make an environment whose episodes have at most `max_turns` steps."""
    env = make_env()
    if max_turns and isinstance(env, Env):  # pyright: ignore[reportUnnecessaryIsInstance]
        steps = min(env.limits.max_steps or max_turns, max_turns)
        env._envsdk.limits = Limits.of({"max_steps": steps}, env.limits)  # pyright: ignore[reportPrivateUsage]
    return env


@dataclass(frozen=True, slots=True)
class _Opening:
    """The messages at the beginning of a context that ms-swift renders, and their tokens."""

    messages: list[dict[str, Any]]
    tools: list[ToolSchema] | None
    tokens: "NDArray[np.int32]"
    prefix: list[int]
    """The tokens that ms-swift inserts before a reply, such as an empty think block."""

    def begins(self, tokens: "NDArray[np.int32]", *, with_prefix: bool = False) -> bool:
        """Return whether the tokens begin with those of the messages (and the prefix of a reply)."""
        beginning = [*self.tokens.tolist(), *(self.prefix if with_prefix else ())]
        return tokens[: len(beginning)].tolist() == beginning


class _EngineRequest(NamedTuple):
    """A request to the engine."""

    opening: _Opening
    messages: list[dict[str, Any]]
    turns: list[tuple[int, int]]
    """The bounds of the replies after the opening in the prompt, and then in the sample."""


class _Rollout:
    """One episode whose replies the scheduler's engine samples: its policy, and what ms-swift gets of it."""

    def __init__(
        self, scheduler: Any, request: Any, config: Any, kwargs: dict[str, Any], on_break: OnBreakOrSplit
    ) -> None:
        self.tokenizer: Any = getattr(scheduler, "tokenizer", None)
        self._scheduler, self._request, self._kwargs, self._on_break = scheduler, request, kwargs, on_break
        self._config = dataclasses.replace(config, logprobs=True, return_details=True)
        self._temperature = 1.0 if config.temperature is None else float(config.temperature)
        self.refuses_sampling = refusal_of(self._temperature)
        self._row: dict[str, Any] = request.data_dict or {}
        self._chosen: dict[str, Any] = {}  # the option of `reset` that chooses the task

    def job(self, name: str) -> EpisodeJob:
        """Return the episode of the row. Its seed and its task are the same for all rollouts of the row."""
        seed = self._row.get("seed")
        if seed is None:
            text = json.dumps([self._request.messages, self._row], sort_keys=True, default=repr)
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
        try:
            number = operator.index(seed)
        except TypeError as error:
            raise ConfigError(f"the column 'seed' has {brief(seed)}; expected an integer") from error
        return EpisodeJob(0, name, uuid4().hex, f"{name}/{number}", number, self._chosen)

    def for_episode(self, env: Env, seed: int | None) -> Self:
        """Choose the task, and begin the episode, or begin it again."""
        columns = {name: value for name, value in self._row.items() if name != "seed"}
        takes_messages = bool(columns) if env.Task is None else "messages" in env.Task.model_fields
        if not self._row and not takes_messages:
            raise ConfigError(
                "the row has no columns besides its messages, so nothing specifies the task, and the rollouts of a "
                "group would have different ones: add a column 'seed', or the columns of a task, to the dataset, and "
                "start the trainer with --vllm_server_pass_dataset true, which passes them; or give the environment a "
                "`Task` with a field `messages`"
            )
        if takes_messages:
            columns = {"messages": self._request.messages, **columns}
        if columns:
            self._chosen["task"] = columns
        self._env = env
        self._openings: dict[str, list[_Opening]] = {}  # the openings of each context, the current one last
        self._responses: dict[str, Any] = {}  # the last response of each context
        self._media: dict[str, Any] = {}
        self._calls: dict[str, list[_EngineRequest]] = {}  # of each context
        return self

    async def __call__(
        self, prompt: "NDArray[np.int32]", *, context: str, media: Sequence[PlacedImage] = (), **request: Any
    ) -> Action:
        """Sample a reply with the engine, and check that the engine renders this prompt."""
        self._episode = self._env.episode
        pending = self._episode.pending_reply(context)
        shown = pending.context
        self._take_media(pending.turn)
        calls = self._calls.setdefault(context, [])
        openings = self._openings.setdefault(context, [])
        opening = openings[-1] if openings else None
        if opening is None or not opening.begins(prompt, with_prefix=self._on_break in ("split", "last_segment")):
            prefix, _ = self._scheduler.get_response_token_data(self._request, SimpleNamespace(token_ids=[]))
            messages, tools = [_tagged(message) for message in shown.view], list(shown.tools) or None
            opening = _Opening(messages, tools, prompt[: len(prompt) - len(prefix)], prefix)
            openings.append(opening)
            call = _EngineRequest(opening, opening.messages, [])
        elif media:
            call = self._continue(calls[-1], shown, prompt)
        else:
            reply = {"role": "assistant", "content": prompt[len(opening.tokens) :].tolist()}
            call = _EngineRequest(opening, [*opening.messages, reply], [])
        calls.append(call)
        images = {"images": self._images(media)} if media else {}
        given = {"messages": call.messages, "tools": opening.tools, **self._media, **images}
        fields = copy.deepcopy(given)  # engines change them
        own = dataclasses.replace(self._request, **fields, uuid=uuid4().hex)  # vLLM runs each id once at a time
        check_sampling(request["sampling"], self._temperature)
        limits = [limit for limit in (request["max_tokens"], self._config.max_tokens or None) if limit is not None]
        stop = [*self._config.stop, *request["stop"]]
        requested = {**request["sampling"], "max_tokens": min(limits, default=None), "stop": stop}
        config = dataclasses.replace(self._config, **requested)
        response = await self._scheduler.infer_engine.infer_async(own, config, **self._kwargs)
        _check_prompt(prompt, response.prompt_token_ids)
        self._responses[context] = response
        choice = response.choices[0]
        content: list[dict[str, Any]] = choice.logprobs["content"] if choice.logprobs else []
        logprobs = [float(item["logprob"]) for item in content]
        finish_reason: FinishReason = choice.finish_reason if choice.finish_reason in ("length", "abort") else "stop"
        tokens = choice.token_ids or ()
        call.turns.append((len(prompt) - len(opening.prefix), len(prompt) + len(tokens)))
        return Action(tokens, logprobs, finish_reason, self._temperature)

    def _images(self, media: Sequence[PlacedImage]) -> list[str]:
        """Return images for ms-swift, which expands a tag to the tokens of an image."""
        if "images" in self._media:
            raise ConfigError(
                "the messages have images, and a turn has info={'images': [...]}, too: ms-swift has one list of "
                "images, so give them in the messages only"
            )
        return [rgb_image(placed.image).url for placed in media]

    def _continue(self, last: _EngineRequest, context: Context, prompt: "NDArray[np.int32]") -> _EngineRequest:
        """Return a request whose replies are token ids, with the messages between them as strings."""
        messages, turns = list(last.opening.messages), iter(last.turns)
        for message in context.view[len(messages) :]:
            if message.role != "assistant":
                messages.append(_tagged(message))
            elif turn := next(turns, None):
                messages.append({"role": "assistant", "content": prompt[slice(*turn)].tolist()})
            else:
                raise PolicyError(
                    "the prompt has a reply that the engine did not sample in this segment, next to images: ms-swift "
                    "renders messages with images itself, so use a history policy that keeps replies"
                )
        return _EngineRequest(last.opening, messages, list(last.turns))

    def _take_media(self, turn: Turn) -> None:
        info = turn.info
        self._media |= {kind: list(info[kind]) for kind in MEDIA if kind in info}

    def output(self, trajectory: Trajectory) -> Any:
        """Return the record of the finished episode; with `on_break="split"`, a list of the records of its samples."""
        main = next(iter(trajectory.contexts))
        if not trajectory.steps or not trajectory.is_scored(main):
            what = "no reply" if not trajectory.steps else "no reward in any turn"
            raise EpisodeError(
                f"trajectory {trajectory.id!r} ended ({trajectory.stop_reason}) with {what}: ms-swift needs one"
            )
        self._take_media(self._episode.root.turn)  # of the last turn
        infos = {
            "num_turns": len(trajectory.steps),
            "total_reward": trajectory.reward_of(main),
            "step_rewards": [step.reward or 0.0 for step in trajectory.steps],
            "rewards": sum_by_name(step.rewards for step in trajectory.steps),
            "stop_reason": trajectory.stop_reason,
            "trajectory_id": trajectory.id,
            "trajectory": to_conversations(trajectory),
            "dropped_share": 0.0,
            **self._media,
        }
        if self._on_break == "split":
            samples = trajectory.samples()
            check_one_reward(samples)
            return [self._record(trajectory, sample, infos) for sample in samples or [None]]
        single = single_sample(trajectory, CAPABILITY.trainer, check_on_break(self._on_break))
        return self._record(trajectory, single.sample, {**infos, "dropped_share": single.dropped_share})

    def _record(self, trajectory: Trajectory, sample: Sample | None, infos: dict[str, Any]) -> Any:
        """Return the record of a sample. Without one, it is the first reply with mask 0, as ms-swift needs a record."""
        images: Sequence[PlacedImage] = () if sample is None else sample.media
        if sample is None:
            images = next(trajectory.prompt_images())
            last = trajectory.steps[0]
            opening = self._openings[last.context][0]
            ids = trajectory.contexts[last.context].tokens[len(opening.tokens) : last.stop].tolist()
            response = ResponseFields([ids], [[0] * len(ids)], [[]])
            messages = opening.messages
        else:
            numbers: list[int] = sample.metadata["steps"]
            last = trajectory.steps[numbers[-1]]
            template = self._scheduler.infer_engine.template
            suffix: list[int] = []  # what ends a reply in ms-swift's template
            for part in template.template_meta.suffix:
                suffix += template.tokenizer.encode(part, add_special_tokens=False) if isinstance(part, str) else part
            if images:
                own = [number for number, step in enumerate(trajectory.steps) if step.context == last.context]
                call = self._calls[last.context][own.index(numbers[-1])]
                opening, messages = call.opening, call.messages
                response = to_turns(sample, call.turns, temperature=self._temperature, suffix=suffix)
            else:
                opening = self._opening_of(sample)
                messages = opening.messages
                response = to_response(sample, len(opening.tokens), temperature=self._temperature, suffix=suffix)
            _check_tools(opening.tools, self._request.tools)
        decode = self._env.renderer.tokenizer.decode
        texts = iter([decode(ids) for ids in response.response_token_ids])
        begun = len(opening.messages)
        messages = [*messages, {"role": "assistant"}]
        replies = [{**m, "content": next(texts)} if m["role"] == "assistant" else m for m in messages[begun:]]
        if images:
            infos = {**infos, "images": self._images(images)}
        # The engine's last response in the context, as if it were the one to that step: ms-swift finds the sample of a
        # record by the id of the request, and masks records that were cut if requested.
        given = self._responses[last.context]
        finish_reason = "length" if last.finish_reason == "length" else "stop"
        choice = dataclasses.replace(given.choices[0], finish_reason=finish_reason)
        output: Any = load("swift.infer_engine.protocol", "ms_swift").RolloutOutput
        return output(
            response=dataclasses.replace(given, id=self._request.uuid or given.id, choices=[choice]),
            messages=[*opening.messages, *replies],
            rollout_infos=copy.deepcopy(infos),  # ms-swift changes it
            **dataclasses.asdict(response),
        )

    def _opening_of(self, sample: Sample) -> _Opening:
        """Return the shortest opening that the sample begins with, and that it does not train."""
        openings = self._openings[sample.context]
        first = response_start(sample)
        fitting = [o for o in openings if len(o.tokens) <= first and o.begins(sample.tokens, with_prefix=True)]
        if not fitting:
            raise PolicyError(
                "a segment does not begin with messages that ms-swift rendered, but ms-swift trains only segments that "
                "do: choose on_break='drop', or a history policy that keeps the first messages and the beginning of "
                "the first reply"
            )
        return min(fitting, key=lambda opening: len(opening.tokens))


def _tagged(message: Message) -> dict[str, Any]:
    """Return a message in the OpenAI form, with a tag for each image."""
    fields = message.to_openai()
    if message.images:
        fields["content"] = "".join(
            part.text if isinstance(part, TextPart) else "<image>" for part in message.parts or ()
        )
    return fields


def _check_prompt(prompt: "NDArray[np.int32]", rendered: list[int] | None) -> None:
    """Check that ms-swift rendered the prompt of the environment.

    Raises:
        PolicyError: If not; the message has the first difference.
    """
    if rendered is None:
        raise PolicyError(
            "the engine returned no prompt_token_ids, so the prompt cannot be checked: use an engine that returns them "
            "with return_details=True"
        )
    if prompt.tolist() == list(rendered):
        return
    pairs = zip(prompt.tolist(), rendered, strict=False)
    at = next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(prompt), len(rendered)))
    raise PolicyError(
        f"ms-swift rendered another prompt: {len(rendered)} tokens instead of {len(prompt)}, the first difference at "
        f"position {at}: {rendered[at : at + 8]} instead of {prompt[at : at + 8].tolist()}. Its template and the "
        "environment's renderer must be of the same model, with the same options, and a first reply cannot have a "
        "prefill"
    )


def _check_tools(own: Sequence[ToolSchema] | None, given: Any) -> None:
    """Check that the row has the tools of the environment: ms-swift renders those of the row for training.

    Raises:
        ConfigError: If it has others.
    """
    given = json.loads(given) if isinstance(given, str) else given
    one, two = (json.dumps(list(tools or ()), default=dict) for tools in (own, given))
    if one != two:
        shown, other = around_difference(one, two, 200)
        raise ConfigError(
            f"the context has the tools {shown}, but the row of the dataset has {other}, which "
            "ms-swift renders for training: add a column `tools` with the tools of the environment, "
            "trajectory.contexts['main'].tools; a sub-agent whose tools differ from its parent's cannot be trained"
        )


explain_arguments(globals())
