"""Images of an environment reach ms-swift's engine, its template, and a training step of a small vision model."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
import transformers
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
from swift.rl_core.data import GRPOSample
from swift.rlhf_trainers.utils import build_rollout_logps, encode_sample
from swift.template import get_template
from trainers.pictures import Gallery

from envsdk import Message, Renderer, Turn
from envsdk.errors import ConfigError
from envsdk.trainers.ms_swift import make_scheduler

pytestmark = pytest.mark.filterwarnings("ignore:::swift", "ignore:::transformers")

PAD = 151655


@pytest.fixture(scope="module")
def template(vision_folder: Path) -> Any:
    processor = get_processor(str(vision_folder), model_type="qwen2_5_vl")
    template = get_template(processor, template_type="qwen2_5_vl", loss_scale="last_round")
    template.set_mode("train")
    return template


class Engine:
    """What a scheduler asks of `GRPOVllmEngine`: ms-swift's template renders, and a model samples with the images."""

    def __init__(self, template: Any, model: Any, reply: list[int]) -> None:
        self.template, self.tokenizer, self.model, self.reply = template, template.tokenizer, model, reply
        self.requests: list[RolloutInferRequest] = []

    async def infer_async(self, request: RolloutInferRequest, config: RequestConfig) -> ChatCompletionResponse:
        self.requests.append(request)
        self.template.set_mode("transformers")
        encoded = self.template.encode(request)
        prompt = list(encoded["input_ids"])
        encoded["input_ids"] = prompt + self.reply
        logps = logprobs_of(self.model, encoded)[len(prompt) - 1 :]
        message = ChatMessage(role="assistant", content=self.tokenizer.decode(self.reply))
        content = {"content": [{"logprob": float(value)} for value in logps]}
        choice = ChatCompletionResponseChoice(0, message, "stop", content, self.reply)
        return ChatCompletionResponse("qwen", [choice], UsageInfo(len(prompt), 0, 0), prompt_token_ids=prompt)


def logprobs_of(model: Any, encoded: dict[str, Any]) -> torch.Tensor:
    """The log-probabilities of all tokens but the first one."""
    ids = torch.tensor(encoded["input_ids"])[None]
    arrays = {name: encoded[name].clone() for name in ("pixel_values", "image_grid_thw") if name in encoded}
    given = {"input_ids": ids, "mm_token_type_ids": (ids == PAD).long(), **arrays} if arrays else {"input_ids": ids}
    logits = model(**given, use_cache=False).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[:, 0]


def run(template: Any, model: Any, env: Any, **options: Any) -> tuple[list[GRPOSample], Engine]:
    engine = Engine(template, model, [*template.tokenizer.encode("A plot."), 151645])
    scheduler = make_scheduler(lambda: env, **options)(infer_engine=engine, max_turns=None)
    row = {"messages": [{"role": "user", "content": "not read"}]}
    request = RolloutInferRequest(**row, data_dict={"seed": 0}, uuid=uuid4().hex)
    given = asyncio.run(scheduler.run(request, RequestConfig(temperature=1.0)))
    samples: list[GRPOSample] = []
    for output in given if isinstance(given, list) else [given]:
        samples.append(GRPOSample.from_row({**row, "prompt_id": "p", "request_id": request.uuid}))
        samples[-1].apply_rollout_output(rollout_output=RolloutOutput.model_validate(output.model_dump()))
    return samples, engine


@pytest.fixture
def model(vision_folder: Path) -> Any:
    kind = transformers.Qwen2_5_VLForConditionalGeneration
    return kind.from_pretrained(vision_folder, dtype="float32").eval()


@pytest.mark.parametrize(
    "options", [{}, {"history": {"name": "budget", "max_tokens": 110, "order": ["images"], "keep_images": 1}}]
)
def test_a_training_step_sees_the_tokens_the_mask_and_the_images_of_the_sample(
    template: Any, model: Any, renderer: Renderer, options: dict[str, Any]
):
    env = Gallery(renderer=renderer, **options)
    on_break = "split" if options else "raise"
    with torch.no_grad():
        samples, engine = run(template, model, env, on_break=on_break)
    own = env.trajectory.samples()
    assert len(samples) == len(own) == (2 if options else 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    template.set_mode("train")
    for sample, ours in zip(samples, own, strict=True):
        assert len(sample.images) == len(ours.media)
        encoded = encode_sample(sample, template)
        assert encoded["input_ids"] == ours.tokens.tolist()
        is_trained = [label != -100 for label in encoded["labels"]]
        assert is_trained == ours.mask.tolist()
        sampled = build_rollout_logps([sample.rollout_logprobs], torch.tensor([is_trained]), torch.device("cpu"))
        trained = logprobs_of(model, encoded)[ours.mask[1:]]
        np.testing.assert_allclose(sampled[0][ours.mask].numpy(), trained.detach().numpy(), atol=1e-4)
        (-trained.mean()).backward()
    gradient = sum(float(p.grad.abs().sum()) for name, p in model.named_parameters() if "visual" in name)
    assert gradient > 0
    optimizer.step()
    assert [len(request.images) for request in engine.requests] == ([2, 2] if options else [2, 3])


class Both(Gallery):
    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        turn.info = {"images": ["a.png"]}
        return turn


def test_images_in_messages_and_in_info_are_refused_together(template: Any, model: Any, renderer: Renderer):
    with torch.no_grad(), pytest.raises(ConfigError, match="give them in the messages only"):
        run(template, model, Both(renderer=renderer))
