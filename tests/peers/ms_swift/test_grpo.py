"""ms-swift's own GRPOTrainer trains a vision model on our rollouts, with images that are added, removed and replaced.

The scheduler runs on ms-swift's engine for transformers, with a copy of the trained model: what `swift rollout` is with
vLLM, which is not here. Requests and records pass as JSON, as through its server.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import swift.rlhf_trainers.rollout_mixin as rollout_mixin
import torch
from swift.infer_engine import TransformersEngine
from swift.infer_engine.protocol import RequestConfig, RolloutInferRequest, RolloutOutput
from swift.model import get_model_processor
from swift.rlhf_trainers.arguments import GRPOConfig
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.template import get_template
from trainers.pictures import FIRST, SECOND
from vision_models import picture

from envsdk import Env, Message, Renderer, Sample, Turn
from envsdk.contexts._edits import Edit
from envsdk.messages import TextPart
from envsdk.trainers.ms_swift import make_scheduler
from envsdk.trainers.plain import collate, model_inputs

pytestmark = pytest.mark.filterwarnings("ignore")

GENERATIONS, STEPS, SHORT = 2, 2, 4
STOP, VISION_START, SPECIAL = 151645, 151652, range(151643, 151936)
THIRD = picture(3, 96, 96)


class Desk(Env):
    """Shows a picture, adds a second one, and then replaces both with a third."""

    reward_range = (0.0, 1.0)
    replaces = True

    def start(self) -> Turn:
        self.replies = 0
        return Turn([Message(role="user", content=[TextPart(text="Look at "), FIRST])])

    def respond(self, reply: Message) -> Turn:
        self.replies += 1
        reward = sum(map(ord, reply.content)) % 11 / 20
        if self.replies == 1:
            return Turn([Message(role="user", content=[SECOND, TextPart(text=" is new.")])], reward=reward)
        if self.replies == 2 and self.replaces:
            shown = Message(role="user", content=[TextPart(text="Look at this instead: "), THIRD])
            return Turn([shown], edit=Edit(0, "other pictures"))
        return Turn("Done.", terminated=True)


class Additions(Desk):
    replaces = False


class Server:
    """What the trainer asks of the client of `swift rollout`, with ms-swift's engine for transformers."""

    use_async_engine, enable_multi_turn, enable_lora, use_gym_env = True, True, False, True

    def __init__(self, folder: Path, kind: type[Env], renderer: Renderer, on_break: Any) -> None:
        model, processor = load(folder)
        engine = TransformersEngine(model, template=template_of(processor), max_batch_size=1)
        # A random model would hardly end a reply; and the engine drops <|endoftext|>, which is the padding.
        engine.generation_config.exponential_decay_length_penalty = (SHORT, 100.0)
        engine.generation_config.suppress_tokens = [token for token in SPECIAL if token != STOP]
        self.model, self.trained = model, model
        self.env = kind(renderer=renderer)
        self.played: list[list[Sample]] = []
        self.scheduler = make_scheduler(lambda: self.env, on_break=on_break)(infer_engine=engine, max_turns=None)

    def infer(self, requests: Sequence[Mapping[str, Any]], config: Mapping[str, Any], **_: Any) -> list[RolloutOutput]:
        records: list[Any] = []
        for request in requests:
            given = RolloutInferRequest(**json.loads(json.dumps(request)))
            made = asyncio.run(self.scheduler.run(given, RequestConfig(**config)))
            self.played.append(self.env.trajectory.samples())
            records += made if isinstance(made, list) else [made]
        return [RolloutOutput.model_validate(json.loads(record.model_dump_json())) for record in records]

    def update_flattened_params(self, *_: Any) -> None:
        self.model.load_state_dict(self.trained.state_dict())

    def get_engine_type(self) -> None: ...
    def reset_mm_cache(self) -> None: ...
    def reset_prefix_cache(self) -> None: ...
    def reset_encoder_cache(self) -> None: ...
    def process_weights_after_loading(self) -> None: ...


class Watched(GRPOTrainer):
    """Keeps the batches that it trains, with the log-probabilities of its own forward pass."""

    def _prepare_batch_inputs(self, samples: list[Any]) -> list[dict[str, Any]]:
        batches = super()._prepare_batch_inputs(samples)
        self.batches = [*getattr(self, "batches", []), *batches]
        return batches


def load(folder: Path) -> tuple[Any, Any]:
    return get_model_processor(str(folder), model_type="qwen2_5_vl", torch_dtype=torch.float32, device_map="cpu")


def template_of(processor: Any) -> Any:
    template = get_template(processor, template_type="qwen2_5_vl", loss_scale="last_round")
    template.set_mode("train")
    return template


def trainer_of(folder: Path, server: Server, output: Path) -> Any:
    model, processor = load(folder)
    server.trained = model
    args = GRPOConfig(
        output_dir=str(output),
        max_steps=STEPS,
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=1,
        num_generations=GENERATIONS,
        max_completion_length=64,
        temperature=1.0,
        learning_rate=1e-3,
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        check_model=False,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_pass_dataset=True,
        loss_type="bnpo",
    )
    rows = [{"messages": [{"role": "user", "content": "not read"}], "seed": seed} for seed in range(STEPS)]
    return Watched(
        model=model,
        args=args,
        template=template_of(processor),
        train_dataset=datasets.Dataset.from_list(rows),
        reward_funcs=[],
        vllm_client=server,
    )


def check_row(given: Any, grpo: Any, row: int, mine: list[Sample], model: Any, renderer: Renderer) -> None:
    """Check a row that the trainer trained: tokens, mask, images, positions, and the sampler's log-probabilities."""
    is_token = given["attention_mask"][row].bool()
    ids = given["input_ids"][row][is_token]
    sample = next(sample for sample in mine if sample.tokens.tolist() == ids.tolist())
    ours = model_inputs(collate([sample], arrays="torch"), [sample], model, vision=renderer.vision)
    assert torch.equal(given["position_ids"][:, row][:, is_token], ours["position_ids"][1:, 0])
    starts = torch.tensor([0, *given["image_grid_thw"].prod(1).cumsum(0).tolist()])
    seen = [int((given["input_ids"][other] == VISION_START).sum()) for other in range(row + 1)]
    first, stop = sum(seen[:-1]), sum(seen)
    assert torch.equal(given["image_grid_thw"][first:stop], ours["image_grid_thw"])
    torch.testing.assert_close(given["pixel_values"][starts[first] : starts[stop]], ours["pixel_values"])
    mask = grpo.completion_mask[row].bool()
    assert int(mask.sum()) == int(sample.mask.sum())
    sampled, trained = grpo.rollout_per_token_logps[row][mask], grpo.old_per_token_logps[row][mask]
    np.testing.assert_allclose(sampled.numpy(), sample.logprobs[sample.mask], atol=1e-6)
    assert (sampled - trained).abs().max() < 1e-4


@pytest.fixture
def has_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer asks for the package before it talks to a server."""
    monkeypatch.setattr(rollout_mixin, "is_vllm_available", lambda: True)
    monkeypatch.setattr(rollout_mixin, "check_vllm_version_ge", lambda version: True)


@pytest.mark.usefixtures("has_vllm")
@pytest.mark.parametrize(("kind", "on_break", "images"), [(Additions, "raise", [2]), (Desk, "split", [2, 1])])
def test_steps_train_what_was_sampled_with_the_images_of_each_record(
    vision_folder: Path, renderer: Renderer, tmp_path: Path, kind: type[Env], on_break: Any, images: list[int]
):
    server = Server(vision_folder, kind, renderer, on_break)
    trainer = trainer_of(vision_folder, server, tmp_path)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    changed = [name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])]
    assert any("visual" in name for name in changed)
    assert [[len(sample.media) for sample in samples] for samples in server.played] == [images] * GENERATIONS * STEPS
    mine = [sample for samples in server.played for sample in samples]
    rows = [(batch, row) for batch in trainer.batches for row in range(len(batch["model_inputs"]["input_ids"]))]
    assert len(rows) == len(mine)
    for batch, row in rows:
        check_row(batch["model_inputs"], batch["grpo_batch"], row, mine, trainer.model, renderer)
