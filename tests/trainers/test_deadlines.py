"""In each adapter that runs rollouts, what hangs costs its own episode, and a server that failed is asked again."""

import asyncio
import contextlib
import queue
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

import envsdk
from envsdk import Action, Env, Message, Turn
from envsdk.errors import ConfigError, DeadlineExceeded
from envsdk.rendering.tokenizers._files import DATA
from envsdk.rollouts import _player as shared
from envsdk.trainers import verl
from envsdk.trainers.ms_swift import make_scheduler
from envsdk.trainers.trl import RolloutFunc, prompt_of
from envsdk.trainers.trl_async import RolloutWorker

SEEDS = (0, 1, 2)
RENDERER = envsdk.get_renderer("qwen3", envsdk.load_tokenizer("embedded"))
Outcomes: TypeAlias = dict[int, list[int] | None]
"""The tokens that the trainer gets of each seed's episode; None if it gets nothing to train."""


class Asks(Env):
    """Asks twice. It may hang in its second turn."""

    hangs: ClassVar[Collection[int]] = ()

    def start(self) -> Turn:
        return Turn(f"Number {self.episode.seed}?")

    async def respond(self, reply: Message) -> Turn:
        if self.episode.seed in self.hangs:
            await asyncio.sleep(1000)
        return Turn("And now?", reward=0.5, terminated=len(self.messages()) > 3)


def make_env(*_: Any) -> Asks:
    return Asks(renderer=RENDERER)


envsdk.register_env("deadlines/Asks-v0", Asks)


class Model:
    """Replies to each prompt. For some seeds it hangs, or fails at its second reply."""

    def __init__(self, *, hangs: Collection[int] = (), fails: Collection[int] = ()) -> None:
        self.hangs, self.fails = hangs, fails
        self.calls = Counter[int]()

    async def reply(self, prompt: Sequence[int]) -> list[int]:
        named = re.search(r"Number (\d+)\?", RENDERER.tokenizer.decode(np.asarray(prompt, dtype=np.int32)))
        assert named is not None
        seed = int(named[1])
        self.calls[seed] += 1
        if seed in self.hangs:
            await asyncio.sleep(1000)
        if seed in self.fails and self.calls[seed] == 2:
            raise ConnectionError("the server is gone")
        return [50, 51, RENDERER.stop_token_ids[0]]

    def policy(self) -> Any:
        async def sample(prompt: np.ndarray, **_: Any) -> Action:
            tokens = await self.reply(prompt.tolist())
            return Action(tokens, [-0.5] * len(tokens))

        sample.tokenizer = "any"  # type: ignore[attr-defined]
        return sample


def play_trl(model: Model, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch, **deadlines: Any) -> Outcomes:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"), pad_token="<|endoftext|>")
    trainer = SimpleNamespace(temperature=1.0, processing_class=tokenizer)
    rollout_func = RolloutFunc(make_env, model.policy(), **deadlines)
    batch = rollout_func([prompt_of("any", seed) for seed in seeds], trainer)
    rows = zip(batch["prompt_ids"], batch["completion_ids"], batch["reward"], strict=True)
    return dict(zip(seeds, (None if reward is None else [*a, *b] for a, b, reward in rows), strict=True))


def play_trl_async(model: Model, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch, **deadlines: Any) -> Outcomes:
    home = "trl.experimental.async_grpo.async_rollout_worker"
    for name in ("trl", "trl.experimental", "trl.experimental.async_grpo", home):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[home].RolloutSample = SimpleNamespace  # type: ignore[attr-defined]
    rows = [{"prompt": prompt_of("any", seed)} for seed in seeds]
    options = {"group_size": 1, "baseline": "none", "max_groups": len(seeds), "max_failed_groups": 1000}
    worker = RolloutWorker(make_env, rows, model.policy(), queue_maxsize=len(seeds), **options, **deadlines)
    found: Outcomes = {}
    worker.start()
    try:
        expected = len(seeds) - len({*model.hangs, *Asks.hangs})
        deadline = time.monotonic() + 600
        while len(found) < expected and worker.metrics_queue.qsize() < 5 * len(seeds):  # of rows, and of what failed
            worker.check_health(600)
            with contextlib.suppress(queue.Empty):
                row = worker.rollout_buffer.get(timeout=0.1)
                found.setdefault(seeds[row.group_id % len(seeds)], row.input_ids.tolist())
        retried = deadlines.get("max_retries", 0)
        while (
            worker.metrics_queue.qsize() < len(seeds) or any(model.calls[seed] <= retried for seed in model.hangs)
        ) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        worker.stop()
    return {seed: found.get(seed) for seed in seeds}


class Config(dict[str, Any]):
    __getattr__ = dict.__getitem__


def play_verl(model: Model, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch, **deadlines: Any) -> Outcomes:
    module = SimpleNamespace(AgentLoopOutput=SimpleNamespace, RayActorError=InterruptedError)
    monkeypatch.setattr(verl, "load", lambda *_: module)

    async def generate(*, prompt_ids: list[int], **_: Any) -> Any:
        tokens = await model.reply(prompt_ids)
        return SimpleNamespace(
            token_ids=tokens, log_probs=[-0.5] * len(tokens), stop_reason="completed", extra_fields={}
        )

    async def play(seed: int) -> list[int]:
        loop = verl.EnvAgentLoop(env="deadlines/Asks-v0", env_options={"renderer": "qwen3"}, **deadlines)
        loop.server_manager, loop.tokenizer = SimpleNamespace(generate=generate), "embedded"
        loop.rollout_config = Config(prompt_length=500, response_length=500, calculate_log_probs=True)
        loop.config = {"trainer": {"use_v1": True}}
        [output] = await loop.run({"temperature": 1.0}, extra_info={"seed": seed}, session_id=0, uid=str(seed))
        return [*output.prompt_ids, *output.response_ids]

    return gathered(play, seeds)


@dataclass
class Request:
    data_dict: dict[str, Any]
    messages: list[Any] = field(default_factory=list)
    tools: Any = None
    uuid: str | None = None


@dataclass
class Choice:
    token_ids: list[int]
    logprobs: dict[str, Any]
    finish_reason: str


@dataclass
class Response:
    prompt_token_ids: list[int]
    choices: list[Choice]
    id: str = "one"


@dataclass
class RequestConfig:
    temperature: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    return_details: bool = False


class Scheduler:
    """ms-swift's class, as far as ours uses it."""

    tokenizer, max_turns = "embedded", None

    def __init__(self, infer_engine: Any) -> None:
        self.infer_engine = infer_engine

    def get_response_token_data(self, *_: Any) -> tuple[list[int], list[int]]:
        return [], []


def play_ms_swift(model: Model, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch, **deadlines: Any) -> Outcomes:
    for name in ("swift", "swift.rollout", "swift.rollout.multi_turn", "swift.infer_engine.protocol"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["swift.rollout.multi_turn"].__dict__.update(MultiTurnScheduler=Scheduler, multi_turns={})
    sys.modules["swift.infer_engine.protocol"].__dict__.update(RolloutOutput=SimpleNamespace)

    async def infer(request: Request, config: RequestConfig) -> Any:
        env = make_env()
        await env.areset(seed=request.data_dict["seed"])
        said = request.messages[-1]["content"] if request.messages[-1]["role"] == "assistant" else []
        prompt = [*env.prompt().tolist(), *said]
        tokens = await model.reply(prompt)
        logprobs = {"content": [{"logprob": -0.5} for _ in tokens]}
        return Response(prompt, [Choice(tokens, logprobs, "stop")])

    template = SimpleNamespace(template_meta=SimpleNamespace(suffix=[]))
    scheduler = make_scheduler(make_env, **deadlines)(SimpleNamespace(infer_async=infer, template=template))

    async def play(seed: int) -> list[int]:
        output = await scheduler.run(Request({"seed": seed}), RequestConfig())
        return output.response_token_ids[0]

    return gathered(play, seeds)


def gathered(play: Callable[[int], Any], seeds: Sequence[int]) -> Outcomes:
    """Play all episodes in one event loop, as servers of rollouts do; one that raises has nothing to train."""

    async def play_all() -> list[Any]:
        found = await asyncio.gather(*(play(seed) for seed in seeds), return_exceptions=True)
        assert not shared._open.get(asyncio.get_running_loop())
        return found

    found = asyncio.run(play_all())
    for one in found:
        if isinstance(one, Exception) and not isinstance(one, DeadlineExceeded):
            raise one
    return {seed: one if isinstance(one, list) else None for seed, one in zip(seeds, found, strict=True)}


ADAPTERS = {"trl": play_trl, "trl_async": play_trl_async, "verl": play_verl, "ms_swift": play_ms_swift}
adapters = pytest.mark.parametrize("play", ADAPTERS.values(), ids=ADAPTERS)
# All adapters play with the same deadlines, so a short run tries what is rarer with one of them.
one_adapter = pytest.mark.parametrize(
    "play",
    [pytest.param(play, id=name, marks=[pytest.mark.full] * (name != "trl_async")) for name, play in ADAPTERS.items()],
)


def play_with_time(
    play: Any, monkeypatch: pytest.MonkeyPatch, expected: Outcomes, deadline: str, model: Model, **deadlines: Any
) -> None:
    """Play with a deadline that only what hangs exceeds, also on a machine that is slow now."""
    found: Outcomes = {}
    for seconds in (0.5, 2.0, 10.0, 50.0, 250.0):
        if found != expected:
            found = play(model, SEEDS, monkeypatch, **{deadline: seconds}, **deadlines)
    assert found == expected


@pytest.mark.matrix(every=2)
@adapters
def test_an_environment_that_hangs_costs_its_own_episode(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = play(Model(), SEEDS, monkeypatch)
    assert None not in expected.values()
    monkeypatch.setattr(Asks, "hangs", {1})
    play_with_time(play, monkeypatch, {**expected, 1: None}, "method_timeout_s", Model())


@one_adapter
def test_a_policy_that_hangs_costs_its_own_episode_after_the_retries(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, model = play(Model(), SEEDS, monkeypatch), Model(hangs={1})
    play_with_time(play, monkeypatch, {**expected, 1: None}, "policy_timeout_s", model, max_retries=1)
    assert model.calls[1] >= 2


@one_adapter
def test_an_episode_begins_again_with_its_seed_if_the_server_fails(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = play(Model(), SEEDS, monkeypatch)
    model = Model(fails={1})
    assert play(model, SEEDS, monkeypatch) == expected
    assert model.calls[1] >= 4  # a reply and a failure, and two replies


@one_adapter
def test_an_episode_that_takes_too_long_is_ended(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    expected = play(Model(), SEEDS, monkeypatch)
    monkeypatch.setattr(Asks, "hangs", {0, 2})
    expected |= {0: None, 2: None}
    play_with_time(play, monkeypatch, expected, "episode_timeout_s", Model(), method_timeout_s=None)
    deadline = time.monotonic() + 600
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before


@adapters
def test_deadlines_that_are_none_are_refused_before_anything_is_played(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="policy_timeout_s is 0"):
        play(Model(), SEEDS, monkeypatch, policy_timeout_s=0)
    with pytest.raises((ConfigError, TypeError), match=r"option 'timeout_s'; expected one of policy|takes exactly one"):
        play(Model(), SEEDS, monkeypatch, timeout_s=3)
