"""Our scheduler under ms-swift's own request classes, template and encoding for training; only vLLM is played."""

import asyncio
import base64
import contextlib
import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_models
import torch
from envsdk_environments.delegate import Delegate
from envsdk_environments.guess_number import GuessNumber
from PIL import Image
from program_environments import Continuing, Trimming
from swift.infer_engine.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
    RequestConfig,
    RolloutInferRequest,
    RolloutOutput,
    UsageInfo,
)
from swift.model import get_processor
from swift.rl_core.data import OnPolicySample
from swift.rlhf_trainers.utils import build_rollout_logps, encode_sample
from swift.rollout.multi_turn import multi_turns
from swift.template import get_template
from trainers.episodes import run_page
from transformers import Qwen3Config

from envsdk import Env, Limits, Message, Turn
from envsdk.errors import ConfigError, EpisodeError, PolicyError, SingleSampleOnly
from envsdk.policies import ReplyPolicy
from envsdk.trainers.ms_swift import make_scheduler

pytestmark = pytest.mark.filterwarnings("ignore:::swift", "ignore:::transformers")

SECRET = 37  # the reference guesses 50, 25, 37
TASK = {"secret": SECRET}


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("qwen3")
    for file in real_models.qwen3_folder().iterdir():
        shutil.copy(file, folder)
    Qwen3Config(num_hidden_layers=1, hidden_size=64).save_pretrained(folder)
    return get_processor(str(folder), model_type="qwen3")


@pytest.fixture(params=[True, False], ids=["thinking", "direct"])
def enable_thinking(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def template(processor: Any, enable_thinking: bool) -> Any:
    template = get_template(
        processor,
        template_type="qwen3",
        enable_thinking=enable_thinking,
        agent_template="hermes",
        loss_scale="last_round",
    )
    template.set_mode("vllm")
    return template


class Engine:
    """What a scheduler asks of `GRPOVllmEngine`: ms-swift's template renders a request, and a policy answers."""

    def __init__(self, template: Any, answer: Callable[[list[int]], list[int]]) -> None:
        self.template, self.tokenizer, self.answer = template, template.tokenizer, answer
        self.requests: list[RolloutInferRequest] = []
        self.prompts: list[list[int]] = []
        self.configs: list[RequestConfig] = []

    async def infer_async(self, request: RolloutInferRequest, config: RequestConfig) -> ChatCompletionResponse:
        shown = dataclasses.replace(request, images=[], audios=[], videos=[])  # this is a model of text
        prompt = self.template.encode(shown, return_template_inputs=True)["input_ids"]
        self.requests.append(request)
        self.prompts.append(list(prompt))
        self.configs.append(config)
        tokens = self.answer(prompt)[: config.max_tokens]
        logprobs = {"content": [{"logprob": -0.001 * (len(self.prompts) + i)} for i in range(len(tokens))]}
        finish = "stop" if tokens[-1:] == [self.tokenizer.eos_token_id] else "length"
        message = ChatMessage(role="assistant", content=self.tokenizer.decode(tokens))
        choice = ChatCompletionResponseChoice(0, message, finish, logprobs, tokens)
        return ChatCompletionResponse("qwen3", [choice], UsageInfo(len(prompt), 0, 0), prompt_token_ids=prompt)


class OtherPromptError(Exception):
    """The engine was asked to go on with another prompt than the environment's."""


class Run:
    """One request through the scheduler."""

    def __init__(
        self,
        template: Any,
        env: Env,
        *,
        reply: Callable[[Any], Message | str] = lambda env: env.reference_reply(),
        data: dict[str, Any] | None = None,
        on_break: Any = "raise",
        config: RequestConfig | None = None,
        **request: Any,
    ) -> None:
        policy = ReplyPolicy(env, reply)

        def answer(prompt: list[int]) -> list[int]:
            if env.prompt().tolist() != prompt:  # what is sampled from is the environment's prompt
                raise OtherPromptError
            context = env.episode.agent.context.name
            return policy(np.array(prompt), context=context, max_tokens=10**6, stop=()).tokens.tolist()

        self.template, self.env, self.engine = template, env, Engine(template, answer)
        scheduler = make_scheduler(lambda: env, on_break=on_break)(infer_engine=self.engine, max_turns=None)
        assert multi_turns["envsdk"] is type(scheduler)
        request = RolloutInferRequest([{"role": "user", "content": "not read"}], data_dict=data or {}, **request)
        self.output: RolloutOutput = asyncio.run(scheduler.run(request, config or RequestConfig(temperature=0.5)))

    def trained(self) -> tuple[list[int], list[bool], list[float]]:
        """What ms-swift's trainer makes of it: tokens, what it trains, and the sampler's log-probabilities."""
        sample = OnPolicySample.from_row({"messages": [{"role": "user", "content": "not read"}]})
        sample.apply_rollout_output(rollout_output=RolloutOutput.model_validate(self.output.model_dump()))
        sample.tools = self.engine.requests[0].tools
        self.template.set_mode("train")
        try:
            encoded = encode_sample(sample, self.template)
        finally:
            self.template.set_mode("vllm")
        is_trained = [label != -100 for label in encoded["labels"]]
        logps = build_rollout_logps([sample.rollout_logprobs], torch.tensor([is_trained]), torch.device("cpu"))
        assert logps is not None
        return encoded["input_ids"], is_trained, logps[0].tolist()


def options(enable_thinking: bool, **more: Any) -> dict[str, Any]:
    renderer = {"name": "qwen3", "enable_thinking": enable_thinking}
    return {"renderer": renderer, "tokenizer": real_models.qwen3_folder(), **more}


def thinks(env: Any) -> Message:
    return Message(role="assistant", content=env.reference_reply(), reasoning="Half of it.")


def test_its_trainer_trains_our_tokens_under_our_mask(template: Any, enable_thinking: bool, compared: Counter[str]):
    reply = thinks if enable_thinking else lambda env: env.reference_reply()
    run = Run(template, GuessNumber(**options(enable_thinking)), data=TASK, reply=reply)
    (sample,) = run.env.trajectory.samples()
    tokens, is_trained, logprobs = run.trained()
    assert tokens == sample.tokens.tolist()
    assert is_trained == sample.mask.tolist()
    assert logprobs == pytest.approx(sample.logprobs.tolist())
    compared.update(tokens=len(tokens), trained=sum(is_trained), prompts=len(run.engine.prompts))
    assert len(run.engine.prompts) == 3


def test_the_rollout_output_is_what_its_rules_ask_for(template: Any, enable_thinking: bool):
    output = Run(template, GuessNumber(**options(enable_thinking)), data=TASK).output
    (ids,), (mask,), (logprobs,) = output.response_token_ids, output.response_loss_mask, output.rollout_logprobs
    assert len(ids) == len(mask) and sum(mask) == len(logprobs) < len(mask)
    assert {*mask} == {0, 1}
    infos = output.rollout_infos
    assert (infos["num_turns"], infos["total_reward"], infos["stop_reason"], infos["dropped_share"]) == (
        3,
        1.0,
        "terminated",
        0,
    )
    assert infos["step_rewards"] == [0.0, 0.0, 1.0]
    assert [message["role"] for message in output.messages] == ["system", "user", "assistant"]
    assert output.messages[-1]["content"].count("<|im_start|>user") == 2


def test_tools_are_rendered_as_ours_and_a_parent_is_one_record(template: Any, enable_thinking: bool):
    run = Run(template, Delegate(**options(enable_thinking)), data={"seed": 7}, on_break="last_segment")
    main = run.env.trajectory.samples()[0]
    tokens, is_trained, _ = run.trained()
    assert (tokens, is_trained) == (main.tokens.tolist(), main.mask.tolist())
    assert 0 < run.output.rollout_infos["dropped_share"] < 1


def test_a_rewritten_rollout_raises_or_gives_its_last_segment_or_nothing(template: Any, enable_thinking: bool):
    def run(on_break: str) -> Run:
        env = GuessNumber(**options(enable_thinking, history={"name": "compact", "every": 2}))
        return Run(template, env, data=TASK, reply=thinks, on_break=on_break)

    with pytest.raises(SingleSampleOnly, match="compaction in 'main'"):
        run("raise")
    if enable_thinking:
        last = run("last_segment")
        sample = last.env.trajectory.samples()[-1]
        assert last.trained()[:2] == (sample.tokens.tolist(), sample.mask.tolist())
    else:  # the policy dropped the empty think block, which ms-swift would put there again, without a word
        with pytest.raises(PolicyError, match="does not begin as the episode began"):
            run("last_segment")
    dropped = run("drop")
    assert dropped.output.rollout_infos["dropped_share"] == 1
    tokens, is_trained, logprobs = dropped.trained()
    assert not any(is_trained) and not any(logprobs) and len(tokens) > 20


def counts(env: Any) -> Message:
    return Message(role="assistant", content=f"There are {len(env.messages())}.")


def counts_and_thinks(env: Any) -> Message:
    return counts(env).with_reasoning("I count.")


def test_its_trainer_trains_the_conversation_of_an_agent_program(
    template: Any, enable_thinking: bool, compared: Counter[str]
):
    reply = counts_and_thinks if enable_thinking else counts
    with contextlib.closing(Continuing(**options(enable_thinking))) as env:
        run = Run(template, env, data={"seed": 7}, reply=reply)
    (sample,) = env.trajectory.samples()
    tokens, is_trained, logprobs = run.trained()
    assert (tokens, is_trained) == (sample.tokens.tolist(), sample.mask.tolist())
    assert sum(is_trained) == env.trajectory.sampled_tokens
    assert logprobs == pytest.approx(sample.logprobs.tolist())
    assert run.output.rollout_infos["total_reward"] == env.trajectory.reward > 0
    compared.update(tokens=len(tokens), trained=sum(is_trained), prompts=len(run.engine.prompts))
    assert len(run.engine.prompts) == 3


@pytest.mark.parametrize("enable_thinking", [True], indirect=True)
def test_an_agent_program_that_drops_messages_is_refused_at_its_end(template: Any):
    def run(on_break: str) -> Run:
        with contextlib.closing(Trimming(**options(True))) as env:
            return Run(template, env, data={"seed": 7}, reply=counts, on_break=on_break)

    with pytest.raises(SingleSampleOnly, match="edit in 'main'"):
        run("raise")
    with pytest.raises(PolicyError, match="does not begin as the episode began"):
        run("last_segment")
    dropped = run("drop")
    assert dropped.output.rollout_infos["dropped_share"] == 1
    assert not any(dropped.trained()[1])


def test_an_agent_program_that_drops_messages_is_refused_where_a_reply_would_not_be_rendered_as_sampled(
    template: Any, enable_thinking: bool
):
    with contextlib.closing(Trimming(**options(enable_thinking))) as env:
        reply = Message(role="assistant", content="Many.", reasoning="I count." if enable_thinking else None)
        engine = Engine(template, lambda prompt: env.renderer.reply(reply).tolist())
        scheduler = make_scheduler(lambda: env)(infer_engine=engine, max_turns=None)
        request = RolloutInferRequest([], data_dict={"seed": 7})
        with pytest.raises(PolicyError, match=r"ms-swift rendered another prompt: \d+ tokens instead of \d+"):
            asyncio.run(scheduler.run(request, RequestConfig(temperature=0.5)))
    assert len(engine.prompts) == 4


class Draws(Env):
    """Shows more images at each turn."""

    images: list[str]

    def start(self) -> Turn:
        return Turn("What is it?", info={"images": self.images[:1]})

    def respond(self, reply: Message) -> Turn:
        media = {
            "images": self.images,
            "audios": ["https://example.org/a.wav"],
            "videos": ["https://example.org/b.mp4"],
        }
        return Turn("And now?", info=media, reward=0.5)

    def reference_reply(self) -> str:
        return "A cat."


def test_images_of_a_turn_override_the_request_s(template: Any, enable_thinking: bool, tmp_path: Path):
    env = Draws(**options(enable_thinking, limits=Limits(max_steps=2)))
    env.images = [str(tmp_path / name) for name in ("one.png", "two.png")]
    for file in env.images:
        Image.new("RGB", (28, 28)).save(file)
    run = Run(template, env, data={"seed": 7}, images=["theirs.png"], audios=["kept.wav"])
    assert [request.images for request in run.engine.requests] == [env.images[:1], env.images]
    assert [request.audios for request in run.engine.requests] == [["kept.wav"], ["https://example.org/a.wav"]]
    shown = [base64.b64encode(Path(file).read_bytes()).decode() for file in env.images]
    assert run.output.rollout_infos["images"] == shown
    assert run.output.rollout_infos["videos"] == ["https://example.org/b.mp4"]
    assert run.output.rollout_infos["total_reward"] == 1.0


def test_the_request_s_configuration_and_the_environment_s_limits_reach_the_engine(
    template: Any, enable_thinking: bool
):
    env = GuessNumber(**options(enable_thinking, limits=Limits(max_context_tokens=400)))
    run = Run(template, env, data=TASK, config=RequestConfig(max_tokens=30, temperature=0.5, top_k=7, stop=["x"]))
    for config in run.engine.configs:
        assert (config.max_tokens, config.temperature, config.top_k, config.stop) == (30, 0.5, 7, ["x"])
        assert config.logprobs and config.return_details
    assert run.env.trajectory.samples()[0].temperature.tolist() == [0.5] * 3


def test_a_reply_that_is_cut_ends_the_rollout(template: Any, enable_thinking: bool):
    run = Run(template, GuessNumber(**options(enable_thinking)), data=TASK, config=RequestConfig(max_tokens=1))
    assert run.output.rollout_infos["stop_reason"] == "cut"
    assert run.output.response.choices[0].finish_reason == "length"
    assert run.trained()[1].count(True) == 1


@pytest.mark.parametrize("row", [{"seed": 7}, {"question": "What is it?"}])
def test_the_rollouts_of_a_row_play_the_same_task_and_those_of_another_row_another(template: Any, row: dict[str, Any]):
    class Drawn(Env):
        def start(self) -> Turn:
            return Turn(f"{self.task} {self.np_random.integers(10**9)}")

        def respond(self, reply: Message) -> Turn:
            return Turn(reward=1.0, terminated=True)

        def reference_reply(self) -> str:
            return "Yes."

    other = {**row, **({"seed": 8} if "seed" in row else {"question": "And what is that?"})}
    first, second, third = (
        Run(template, Drawn(**options(template.enable_thinking)), data=data).engine.prompts
        for data in (row, row, other)
    )
    assert first == second != third


def test_a_row_that_names_no_task_is_refused(template: Any, enable_thinking: bool):
    for data, says in (({}, "add a column 'seed'"), ({"seed": "x"}, "expected an integer")):
        with pytest.raises(ConfigError, match=says):
            Run(template, GuessNumber(**options(enable_thinking)), data=data)


class Changes(Env):
    """Says something else in its second turn."""

    second: Turn

    def start(self) -> Turn:
        return Turn("One?", system="A.", reward=None)

    def respond(self, reply: Message) -> Turn:
        if len(self.messages()) > 3:
            return Turn(reward=1.0, terminated=True)
        return self.second

    def reference_reply(self) -> str:
        return "Yes."


@pytest.mark.parametrize("asked", [{"temperature": 0.1}, {"max_tokens": 10**5}, {"logprobs": False}, {"top_k": 2}])
def test_what_an_environment_may_not_ask_of_the_engine_is_refused(
    template: Any, enable_thinking: bool, asked: dict[str, Any]
):
    env = Changes(**options(enable_thinking))
    env.second = Turn("Two?", sampling=asked)
    with pytest.raises(ConfigError, match=f"requests {next(iter(asked))}="):
        Run(template, env, data={"seed": 0})


def test_an_opening_that_was_rewritten_is_rendered_as_it_is_now(template: Any, enable_thinking: bool):
    def run(on_break: str) -> Run:
        env = Changes(**options(enable_thinking))
        env.second = Turn("Two?", system="B.")
        return Run(template, env, data={"seed": 0}, on_break=on_break)

    if not enable_thinking:  # the first reply keeps its empty think block, which ms-swift does not render there
        with pytest.raises(OtherPromptError):
            run("drop")
        return
    dropped = run("drop")
    assert len(dropped.engine.prompts) == 2
    tokens, is_trained, _ = dropped.trained()
    first = next(dropped.env.trajectory.prompts())
    assert tokens == [*first.prompt.tolist(), *first.action.tolist()]
    assert not any(is_trained)
    with pytest.raises(PolicyError, match="does not begin as the episode began"):
        run("last_segment")


def test_what_has_no_reply_or_no_reward_is_refused(template: Any, enable_thinking: bool):
    with pytest.raises(EpisodeError, match=r"with no reply: ms-swift needs one"):
        Run(template, GuessNumber(**options(enable_thinking, limits=Limits(max_context_tokens=3))), data=TASK)
    env = Changes(**options(enable_thinking))
    env.second = Turn("Bye.", reward=None, terminated=True)
    with pytest.raises(EpisodeError, match=r"with no reward in any turn: ms-swift needs one"):
        Run(template, env, data={"seed": 0})


def test_a_template_that_renders_another_prompt_is_refused(template: Any, enable_thinking: bool):
    env = GuessNumber(**options(not enable_thinking))
    scheduler = make_scheduler(lambda: env)(infer_engine=Engine(template, lambda prompt: [5]), max_turns=None)
    with pytest.raises(PolicyError, match=r"ms-swift rendered another prompt: \d+ tokens instead of \d+, the first"):
        asyncio.run(scheduler.run(RolloutInferRequest([], data_dict=TASK), RequestConfig()))


def test_its_limit_of_turns_has_to_be_the_environment_s(template: Any, enable_thinking: bool):
    scheduler = make_scheduler(lambda: GuessNumber(**options(enable_thinking)))(infer_engine=None, max_turns=3)
    with pytest.raises(ConfigError, match=r"max_turns is 3, but the environment has max_steps=10"):
        asyncio.run(scheduler.run(RolloutInferRequest([], data_dict=TASK), RequestConfig()))


def test_the_file_of_its_page_registers_a_scheduler():
    page = run_page("ms_swift")
    assert multi_turns["guess"] is page["Scheduler"]
