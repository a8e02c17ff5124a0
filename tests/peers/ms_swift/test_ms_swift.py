"""Our scheduler under ms-swift's own request classes, template and encoding for training; only vLLM is played."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import real_models
import torch
from envsdk_environments._calculator import Calculator
from envsdk_environments._delegate import Delegate
from envsdk_environments._guess_number import GuessNumber
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from program_environments import Trimming
from pydantic import BaseModel
from swift.dataset import load_dataset
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
from swift.rl_core import advantage
from swift.rl_core.advantage import compute_advantages_dynamic
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import compute_rewards_per_func
from swift.rlhf_trainers.rollout_mixin import RolloutTrainerMixin
from swift.rlhf_trainers.utils import build_rollout_logps, encode_sample
from swift.rollout.multi_turn import multi_turns
from swift.template import Template, get_template
from trainers.episodes import run_page
from transformers import Qwen3Config

from envsdk import Env, Limits, Mask, Message, Sample, Turn, get_renderer, load_tokenizer, rollout, sft_samples
from envsdk.errors import ConfigError, EpisodeError, InvalidSample, PolicyError, SingleSampleOnly
from envsdk.policies import ReplyPolicy
from envsdk.trainers._conversations import to_conversations
from envsdk.trainers.ms_swift import make_scheduler, to_response, to_sft_records

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
        max_turns: int | None = None,
        **request: Any,
    ) -> None:
        policy = ReplyPolicy(env, reply)

        def answer(prompt: list[int]) -> list[int]:
            due = [agent.context for agent in env.episode.root.agents() if agent.due is not None]
            context = next((context.name for context in due if context.prompt().tolist() == prompt), None)
            if context is None:  # what is sampled from is the prompt of one of the agents that act at the same time
                raise OtherPromptError
            return policy(np.array(prompt), context=context, max_tokens=10**6, stop=()).tokens.tolist()

        self.template, self.env, self.engine = template, env, Engine(template, answer)
        scheduler = make_scheduler(lambda: env, on_break=on_break)(infer_engine=self.engine, max_turns=max_turns)
        assert multi_turns["envsdk"] is type(scheduler)
        row = {"messages": [{"role": "user", "content": "not read"}], **request}
        self.request = RolloutInferRequest(**row, data_dict=data or {}, uuid=uuid4().hex)
        output = asyncio.run(scheduler.run(self.request, config or RequestConfig(temperature=0.5)))
        self.outputs: list[RolloutOutput] = output if isinstance(output, list) else [output]
        self.output = self.outputs[0]

    def samples(self) -> list[GRPOSample]:
        """What ms-swift's trainer gets: for each record, the row of the dataset with the record of the server."""
        samples: list[GRPOSample] = []
        for output in self.outputs:
            row = {"messages": [{"role": "user", "content": "not read"}], "tools": self.request.tools, "prompt_id": "p"}
            samples.append(GRPOSample.from_row({**row, "request_id": self.request.uuid}))
            samples[-1].apply_rollout_output(rollout_output=RolloutOutput.model_validate(output.model_dump()))
            assert output.response.id == self.request.uuid  # by which the trainer finds the row
        return samples

    def trained(self, index: int = 0) -> tuple[list[int], list[bool], list[float]]:
        """What ms-swift's trainer makes of a record: tokens, what it trains, and the sampler's log-probabilities."""
        sample = self.samples()[index]
        encoded = encode(self.template, sample)
        is_trained = [label != -100 for label in encoded["labels"]]
        logps = build_rollout_logps([sample.rollout_logprobs], torch.tensor([is_trained]), torch.device("cpu"))
        assert logps is not None
        return encoded["input_ids"], is_trained, logps[0].tolist()


def encode(template: Any, sample: GRPOSample) -> dict[str, Any]:
    """As its trainer does."""
    template.set_mode("train")
    try:
        return encode_sample(sample, template)
    finally:
        template.set_mode("vllm")


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


def tools_of(env: Env) -> list[Any]:
    """The column of tools that the dataset needs."""
    return rollout(env, "reference", seed=7).contexts["main"].tools


def test_tools_are_rendered_as_ours_and_a_parent_is_one_record(template: Any, enable_thinking: bool):
    env = Delegate(**options(enable_thinking))
    run = Run(template, env, data={"seed": 7}, on_break="last_segment", tools=tools_of(env))
    main = run.env.trajectory.samples()[0]
    tokens, is_trained, _ = run.trained()
    assert (tokens, is_trained) == (main.tokens.tolist(), main.mask.tolist())
    assert 0 < run.output.rollout_infos["dropped_share"] < 1
    ids = [request.uuid for request in run.engine.requests]  # sub-agents may run at the same time
    assert len({*ids, run.request.uuid}) == len(ids) + 1


@pytest.mark.parametrize("on_break", ["last_segment", "split"])
def test_tools_that_ms_swift_would_not_render_for_training_are_refused(
    template: Any, enable_thinking: bool, on_break: str
):
    env = Delegate(**options(enable_thinking))
    given = tools_of(env) if on_break == "split" else None  # the sub-agent has others
    with pytest.raises(ConfigError, match=r"the context has the tools .*but the row of the dataset has"):
        Run(template, env, data={"seed": 7}, on_break=on_break, tools=given)


def test_a_rewritten_rollout_raises_or_gives_its_last_segment_or_nothing(template: Any, enable_thinking: bool):
    def run(on_break: str) -> Run:
        env = GuessNumber(**options(enable_thinking, history={"name": "compact", "every": 2}))
        return Run(template, env, data=TASK, reply=thinks, on_break=on_break)

    with pytest.raises(SingleSampleOnly, match="compaction in 'main'"):
        run("raise")
    last = run("last_segment")
    sample = last.env.trajectory.samples()[-1]
    assert last.trained()[:2] == (sample.tokens.tolist(), sample.mask.tolist())
    dropped = run("drop")
    assert dropped.output.rollout_infos["dropped_share"] == 1
    tokens, is_trained, logprobs = dropped.trained()
    assert not any(is_trained) and not any(logprobs) and len(tokens) > 20


def counts(env: Any) -> Message:
    return Message(role="assistant", content=f"There are {len(env.messages())}.")


HISTORIES = {
    "compact": {"name": "compact", "every": 2},
    "strip": "strip",
    "keep_last": {"name": "compact", "every": 1, "keep_last": 1},
}


@pytest.mark.parametrize("history", HISTORIES)
def test_a_rollout_is_split_into_records_of_its_samples(
    template: Any, enable_thinking: bool, history: str, compared: Counter[str]
):
    env = GuessNumber(**options(enable_thinking, history=HISTORIES[history]))
    if history == "keep_last" and not enable_thinking:  # ms-swift does not render the empty think block that stays
        with pytest.raises(OtherPromptError):
            Run(template, env, data=TASK, reply=thinks, on_break="split")
        return
    run = Run(template, env, data=TASK, reply=thinks, on_break="split")
    samples = env.trajectory.samples()
    assert len(run.outputs) == len(samples) > 1
    for index, sample in enumerate(samples):
        tokens, is_trained, logprobs = run.trained(index)
        assert (tokens, is_trained) == (sample.tokens.tolist(), sample.mask.tolist())
        assert logprobs == pytest.approx(sample.logprobs.tolist())
        compared.update(records=1, tokens=len(tokens), trained=sum(is_trained))
    assert {output.rollout_infos["total_reward"] for output in run.outputs} == {env.trajectory.reward}
    assert {output.rollout_infos["dropped_share"] for output in run.outputs} == {0.0}


@pytest.mark.parametrize("enable_thinking", [True], indirect=True)
def test_all_records_of_a_rollout_get_its_advantage_and_count_once(template: Any):
    def run(secret: int, **limits: Any) -> Run:
        env = GuessNumber(**options(True, history=HISTORIES["strip"], limits=Limits(**limits)))
        return Run(template, env, data={"secret": secret}, reply=thinks, on_break="split")

    runs = [run(SECRET), run(99), run(SECRET, max_steps=2)]
    samples = [sample for one in runs for sample in one.samples()]
    rewards = torch.tensor([[sample.rollout_infos["total_reward"]] for sample in samples])
    prompts, requests = [sample.prompt_id for sample in samples], [sample.request_id for sample in samples]
    found, _ = compute_advantages_dynamic(rewards, torch.ones(1), prompts, requests, scale_rewards="none")
    sizes = [len(one.outputs) for one in runs]
    assert len(set(sizes)) == 3 and min(sizes) > 1
    once = np.array([one.env.trajectory.reward for one in runs])
    np.testing.assert_allclose(found.numpy(), np.repeat(once - once.mean(), sizes), atol=1e-6)


def test_a_version_that_takes_one_record_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(advantage, "compute_advantages_dynamic")
    with pytest.raises(ConfigError, match=r"ms-swift 4\.6\.0 takes one record for each request"):
        make_scheduler(lambda: GuessNumber(**options(True)), on_break="split")
    with pytest.raises(ConfigError, match=r"'raise', 'last_segment', 'drop', 'split'"):
        make_scheduler(lambda: GuessNumber(**options(True)), on_break="splits")  # type: ignore[arg-type]


def test_a_reward_function_gets_every_message_of_the_trajectory(template: Any, enable_thinking: bool):
    env = Calculator(**options(enable_thinking))
    run = Run(template, env, data={"seed": 7}, tools=tools_of(env), on_break="split")
    samples, seen = run.samples(), list[dict[str, Any]]()

    def reward(completions: list[str], *, trajectory_inputs: Any, rollout_infos: Any, **_: Any) -> list[float]:
        for infos, request in zip(rollout_infos, [run.request.uuid] * len(completions), strict=True):
            assert trajectory_inputs[request][0]["rollout_infos"]["trajectory"] == infos["trajectory"]
            seen.append(infos["trajectory"])
        return [infos["trajectory"]["reward"] for infos in rollout_infos]

    inputs = {run.request.uuid: [sample.to_reward_row() for sample in samples]}  # as `_get_trajectory_inputs` does
    given = {"trajectory_inputs": inputs}
    rewards = compute_rewards_per_func(samples, [reward], None, torch.device("cpu"), extra_reward_kwargs=given)
    assert rewards.tolist() == [[env.trajectory.reward]]
    (trajectory,) = seen
    assert trajectory == to_conversations(env.trajectory)
    messages = [Message.from_openai(message) for message in trajectory["contexts"]["main"]["messages"]]
    called = next(index for index, message in enumerate(messages) if message.tool_calls)
    assert messages[called].tool_calls[0].arguments
    assert messages[called + 1].role == "tool"


class Masking(GuessNumber):
    """Leaves parts of each reply out of training."""

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        turn.mask = Mask(tokens=[(0, 1), (2, 4)])
        return turn


def test_tokens_that_the_environment_left_out_are_not_trained(template: Any, enable_thinking: bool):
    reply = thinks if enable_thinking else lambda env: f"My guess is: {env.reference_reply()}"
    run = Run(template, Masking(**options(enable_thinking)), data={"secret": 99}, reply=reply)
    (sample,) = run.env.trajectory.samples()
    holes = (sample.step_ids >= 0) & ~sample.mask
    assert np.count_nonzero(holes) == 3 * len(run.env.trajectory.steps)
    tokens, is_trained, logprobs = run.trained()
    assert (tokens, is_trained) == (sample.tokens.tolist(), sample.mask.tolist())
    assert logprobs == pytest.approx(sample.logprobs.tolist())


class Asks(Env):
    """Goes on after a reply that was cut."""

    def start(self) -> Turn:
        self.steps = 0
        return Turn("Talk.", max_tokens=3)

    def respond(self, reply: Message) -> Turn:
        self.steps += 1
        return Turn("Go on.", reward=1.0, terminated=self.steps == 2)

    def reference_reply(self) -> str:
        return "One, two, three, four."


def test_a_reply_that_was_cut_and_closed_is_refused_as_ms_swift_would_train_its_end(
    template: Any, enable_thinking: bool, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InvalidSample, match="because its template ends a reply with them"):
        Run(template, Asks(**options(enable_thinking)), data={"seed": 0})
    monkeypatch.setattr("envsdk.trainers._ms_swift_records._check_suffix", lambda sample, suffix: None)
    run = Run(template, Asks(**options(enable_thinking)), data={"seed": 0})
    (sample,) = run.env.trajectory.samples()
    encoded = encode(template, run.samples()[0])
    trained = np.array(encoded["labels"]) != -100
    assert encoded["input_ids"] == sample.tokens.tolist()
    assert template.tokenizer.decode(sample.tokens[trained & ~sample.mask]) == "<|im_end|>\n"


@pytest.fixture(scope="module")
def sample() -> Sample:
    (sample,) = rollout(GuessNumber(**options(True)), "reference", seed=0).samples()
    return sample


TOKENS = st.lists(st.tuples(st.sampled_from([5, 6, 7]), st.booleans()), min_size=1, max_size=12)


@given(tokens=TOKENS, suffix=st.sampled_from([[5], [5, 6], [5, 5]]))
def test_exactly_the_masks_that_its_template_changes_are_refused(
    tokens: list[tuple[int, bool]], suffix: list[int], sample: Sample
):
    ids, mask = (np.array(values) for values in zip((7, False), *tokens, (7, True), strict=True))
    labels = np.where(mask, ids, -100).tolist()
    Template._add_dynamic_eos(ids.tolist(), labels, None, suffix)
    is_changed = [label != -100 for label in labels] != mask.tolist()
    steps, logprobs = np.where(mask, 0, -1).astype(np.int32), np.where(mask, -0.5, 0).astype(np.float32)
    arrays = {"tokens": ids.astype(np.int32), "mask": mask, "step_ids": steps, "part_ids": steps, "logprobs": logprobs}
    given = dataclasses.replace(sample, **arrays, extra={}, roles=None)
    with pytest.raises(InvalidSample, match="would train them") if is_changed else contextlib.nullcontext():
        to_response(given, 0, suffix=suffix)


CONVERSATION = [
    {"role": "user", "content": "Two plus two?"},
    {"role": "assistant", "content": "Four.", "reasoning": "2 + 2"},
    {"role": "user", "content": "Twice that?"},
    {"role": "assistant", "content": "Eight.", "reasoning": "4 + 4"},
]


@pytest.fixture
def plain_template(processor: Any) -> Any:
    """As `swift sft --use_chat_template false` makes it."""
    template = get_template(processor, template_type="qwen3", use_chat_template=False)
    template.set_mode("train")
    return template


def test_supervised_records_give_its_sft_our_tokens_under_our_mask(
    plain_template: Any, tmp_path: Path, compared: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    renderer = get_renderer("qwen3", load_tokenizer(real_models.qwen3_folder()))
    samples = [sample for only in (False, True) for sample in sft_samples(renderer, CONVERSATION, content_only=only)]
    env = Masking(**options(True))
    samples += rollout(env, ReplyPolicy(env, thinks), options={"task": TASK}).samples()
    eos = plain_template.tokenizer.eos_token_id
    for sample in samples[2:4]:  # content alone: the stop tokens after it are not trained
        with pytest.raises(InvalidSample, match="ends with the token"):
            to_sft_records([sample], eos_token_id=eos)
    samples = [sample for sample in samples if sample.tokens[-1] == eos]
    assert len(samples) == 3
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in to_sft_records(samples, eos_token_id=eos)))
    dataset, _ = load_dataset(str(file), load_from_cache_file=False)
    assert len(dataset) == len(samples)
    for row, sample in zip(dataset, samples, strict=True):
        encoded = plain_template.encode(row)
        assert encoded["input_ids"] == sample.tokens.tolist()
        assert [label != -100 for label in encoded["labels"]] == sample.mask.tolist()
        compared.update(rows=1, tokens=len(sample), trained=int(sample.mask.sum()))


def test_ms_swift_appends_and_trains_the_end_that_a_row_lacks(plain_template: Any):
    content = {"token_ids": [5, 6, 7], "loss_scale": [0, 1, 1]}
    encoded = plain_template.encode({"messages": [{"role": "assistant", "content": content}]})
    assert encoded["input_ids"] == [5, 6, 7, plain_template.tokenizer.eos_token_id]
    assert encoded["labels"] == [-100, 6, 7, plain_template.tokenizer.eos_token_id]


@pytest.mark.parametrize("enable_thinking", [True], indirect=True)
def test_an_agent_program_that_drops_messages_gives_a_record_of_each_segment(template: Any):
    def run(on_break: str) -> Run:
        with contextlib.closing(Trimming(**options(True))) as env:
            return Run(template, env, data={"seed": 7}, reply=counts, on_break=on_break)

    with pytest.raises(SingleSampleOnly, match="edit in 'main'"):
        run("raise")
    last = run("last_segment")
    assert last.trained()[:2] == trained_of(last.env, "main")[-1]
    dropped = run("drop")
    assert dropped.output.rollout_infos["dropped_share"] == 1
    assert not any(dropped.trained()[1])
    split = run("split")
    own = [trained_of(split.env, name) for name in split.env.trajectory.contexts]
    assert len(split.outputs) == 3
    assert sorted(split.trained(index)[:2] for index in range(3)) == sorted(one for name in own for one in name)


def trained_of(env: Env, context: str) -> list[tuple[list[int], list[bool]]]:
    """What is trained of a context, for each of its samples."""
    samples = [sample for sample in env.trajectory.samples() if sample.context == context]
    return [(sample.tokens.tolist(), sample.mask.tolist()) for sample in samples]


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
    last = run("last_segment")
    assert last.trained()[:2] == trained_of(last.env, "main")[-1]


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


@pytest.mark.parametrize(("max_turns", "steps", "stop_reason"), [(2, 2, "max_steps"), (12, 3, "terminated")])
def test_its_limit_of_turns_is_a_limit_of_the_episode(
    template: Any, enable_thinking: bool, max_turns: int, steps: int, stop_reason: str
):
    run = Run(template, GuessNumber(**options(enable_thinking)), data=TASK, max_turns=max_turns)
    infos = run.output.rollout_infos
    assert (infos["num_turns"], len(run.engine.prompts), infos["stop_reason"]) == (steps, steps, stop_reason)
    assert run.env.trajectory.limits == {"max_steps": min(max_turns, 10)}


@pytest.mark.parametrize("max_turns", [None, 1, 3])
def test_its_colocate_mode_which_would_sample_without_the_environment_is_refused(
    template: Any, enable_thinking: bool, max_turns: int | None
):
    make_scheduler(lambda: GuessNumber(**options(enable_thinking)), name="colocated")
    args = SimpleNamespace(multi_turn_scheduler="colocated", max_turns=max_turns)
    trainer: Any = SimpleNamespace(args=args, template=template, processing_class=template.tokenizer)
    with pytest.raises(ConfigError, match=r"--multi_turn_scheduler colocated to `swift rollout` alone"):
        RolloutTrainerMixin._prepare_scheduler(trainer)


class WithMessages(BaseModel):
    messages: list[dict[str, Any]]


class Repeats(Env):
    """Asks what the row of the dataset asks."""

    def start(self) -> Turn:
        messages = self.task.messages if self.Task else self.task["messages"]
        return Turn(messages[-1]["content"])

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)

    def reference_reply(self) -> str:
        return "Yes."


class RepeatsTyped(Repeats):
    Task = WithMessages


@pytest.mark.parametrize(
    ("kind", "data"), [(Repeats, {"answer": "Yes."}), (RepeatsTyped, {"seed": 7}), (RepeatsTyped, {})]
)
def test_the_messages_of_a_row_reach_the_environment_in_its_task(
    template: Any, enable_thinking: bool, kind: type[Env], data: dict[str, Any]
):
    messages = [{"role": "user", "content": "Is two plus two four?"}]
    run = Run(template, kind(**options(enable_thinking)), data=data, messages=messages)
    assert messages[0]["content"] in template.tokenizer.decode(run.engine.prompts[0])
    task = run.env.trajectory.task
    assert task["messages"] == messages
    assert task.get("answer") == data.get("answer")


def test_the_code_of_its_page_registers_a_scheduler_and_writes_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    page = run_page("ms_swift")
    assert multi_turns["guess"] is page["Scheduler"]
    assert [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()] == page["records"]
