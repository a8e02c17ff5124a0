"""TRL's GRPOTrainer trains a vision model on our rollouts with their images."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch_vision_models import tiny_qwen_vl
from trainers.pictures import Gallery
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from trl import GRPOConfig, GRPOTrainer
from vision_models import QwenImageProcessor, qwen_processor, vision_renderer

from envsdk import Action, Env, Message, Turn
from envsdk.errors import ConfigError, InvalidSample
from envsdk.rendering._vision import token_types
from envsdk.trainers._trl_images import batch_images, image_trainer
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func, tree_trainer

pytestmark = pytest.mark.filterwarnings("default")

GENERATIONS, REPLY = 2, 4


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Qwen2.5-VL; TRL loads the reference from its folder."""
    folder = tmp_path_factory.mktemp("vision")
    tiny_qwen_vl("qwen2_5_vl").save_pretrained(folder)
    return folder


@pytest.fixture
def vision_model(vision_folder: Path) -> Any:
    return transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(vision_folder, dtype="float32").eval()


class Sampler:
    """Samples a few tokens from a model that sees the images of the prompt, then the stop token."""

    def __init__(self, model: Any, renderer: Any) -> None:
        self.model, self.renderer = model, renderer
        self.tokenizer, self.random = renderer.tokenizer, torch.Generator().manual_seed(0)

    def __call__(self, prompt: Any, *, media: Any = (), stop_token_ids: Any, **request: Any) -> Action:
        tokens, logprobs = prompt.tolist(), list[float]()
        for number in range(REPLY):
            given = self.inputs(tokens, media)
            with torch.no_grad():
                logits = self.model(**given, use_cache=False).logits[0, -1].log_softmax(-1)
            text = int(torch.multinomial(logits[: stop_token_ids[0]].exp(), 1, generator=self.random))
            tokens.append(stop_token_ids[0] if number == REPLY - 1 else text)
            logprobs.append(float(logits[tokens[-1]]))
        return Action(tokens[len(prompt) :], logprobs)

    def inputs(self, tokens: list[int], media: Any) -> dict[str, Any]:
        arrays = [self.renderer.vision.process(placed.image).arrays for placed in media]
        joined = (
            {name: torch.from_numpy(np.concatenate([own[name] for own in arrays])) for name in arrays[0]}
            if arrays
            else {}
        )
        types = {"mm_token_type_ids": torch.from_numpy(token_types(media, len(tokens)))[None]} if arrays else {}
        return {"input_ids": torch.tensor([tokens]), **joined, **types}


class Words(Env):
    """Shows no picture."""

    reward_range = (0.0, 1.0)

    def start(self) -> Turn:
        return Turn("Say something.")

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=len(reply.content) % 3 / 2, terminated=True)


class Scored(Gallery):
    """Scores the replies by their length, so that those of a group differ."""

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        if turn.terminated:
            turn.reward = len(reply.content) % 5 / 4
        return turn


def make_env(env_id: str) -> Env:
    return {"pictures": Scored, "words": Words}[env_id](renderer=vision_renderer(), limits={"end_on_cut": False})


class Watching:
    """Keeps the log-probabilities that the model gives the completions, in the loss."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.compared: list[tuple[Any, Any, Any]] = []
        self.seen: list[dict[str, Any]] = []

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.seen.append(inputs)
        names = ("pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids")
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            logprobs, *_ = self._get_per_token_logps_and_entropies(
                model, ids, seen, inputs["completion_ids"].size(1), **{name: inputs.get(name) for name in names}
            )
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        self.compared.append((inputs.get("num_images"), inputs["sampling_per_token_logps"][mask], logprobs[mask]))
        return super()._compute_loss(model, inputs)


class Watched(Watching, image_trainer()):
    pass


class WatchedTrees(Watching, tree_trainer()):
    pass


def trainer_of(
    kind: Any,
    model: Any,
    rows: Any,
    folder: Path,
    *,
    processor: Any = None,
    samples_itself: bool = False,
    length: int = 300,
    **options: Any,
) -> Any:
    args = GRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=GENERATIONS,
        gradient_accumulation_steps=2,
        num_generations=GENERATIONS,
        max_completion_length=length,
        temperature=1.0,
        learning_rate=1e-3,
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    rollouts = RolloutFunc(make_env, None if samples_itself else Sampler(model, vision_renderer()))
    return kind(
        model=model,
        processing_class=processor or qwen_processor(),
        args=args,
        train_dataset=rows,
        rollout_func=rollouts,
        reward_funcs=[reward_func],
    )


@pytest.mark.matrix
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("kind", [Watched, WatchedTrees])
def test_a_step_trains_what_was_sampled_with_the_images_of_every_row(
    vision_model: Any, tmp_path: Path, kind: Any, beta: float
):
    """One group of the batch has images, which the environment shows during the episode, the other one has none."""
    import datasets

    rows = datasets.concatenate_datasets([dataset("pictures", [0]), dataset("words", [1])])
    trainer = trainer_of(kind, vision_model, rows, tmp_path, beta=beta)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert np.isfinite([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]).all()
    changed = [name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])]
    assert any("visual" in name for name in changed)
    if kind is Watched:
        assert sorted(chain.from_iterable(numbers for numbers, *_ in trainer.compared)) == [0, 0, 3, 3]
    for _, sampled, trained in trainer.compared:
        assert len(sampled)
        assert (sampled - trained).abs().max() < 1e-4


def test_loss_and_gradient_of_trees_with_images_are_those_of_separate_rows(
    vision_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer = trainer_of(WatchedTrees, vision_model, dataset("pictures", [0, 1]), tmp_path)
    trainer.train()

    def separate(model: Any, ids: Any, seen: Any, width: int, *_: Any, **__: Any) -> Any:
        found = trainer.rollout_func.tree_rows["train"].find(ids, seen, width)
        samples = [sample for row in found for sample in row.samples]
        fields = batch_images(samples, ids.numpy(), ids.shape[1] - width, trainer.image_processor)
        given = {name: torch.from_numpy(own) if isinstance(own, np.ndarray) else own for name, own in fields.items()}
        call = GRPOTrainer._get_per_token_logps_and_entropies
        return call(trainer, model, ids, seen, width, compute_entropy=True, **given)

    for inputs in trainer.seen:
        loss, gradient = loss_and_gradient(trainer, inputs)
        with monkeypatch.context() as patched:
            patched.setattr(trainer, "_get_per_token_logps_and_entropies", separate)
            expected, its_gradient = loss_and_gradient(trainer, inputs)
        assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert its_gradient.norm() > 0
        assert (gradient - its_gradient).norm() <= 1e-5 * its_gradient.norm()


def loss_and_gradient(trainer: Any, inputs: dict[str, Any]) -> tuple[float, Any]:
    trainer.model.train()
    trainer.model.zero_grad()
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()
    gradients = [each.grad.flatten() for each in trainer.model.parameters() if each.grad is not None]
    return float(loss.detach()), torch.cat(gradients).double()


def test_the_trainer_s_own_model_samples_with_the_images(vision_model: Any, tmp_path: Path):
    rows = dataset("pictures", [0, 1])
    trainer = trainer_of(Watched, vision_model, rows, tmp_path, samples_itself=True, length=REPLY)
    trainer.train()
    assert len(trainer.compared) == 2
    for numbers, sampled, trained in trainer.compared:
        assert numbers == [3, 3]
        assert (sampled - trained).abs().max() < 1e-4


def test_a_trainer_without_images_refuses_the_rollout(vision_model: Any, tmp_path: Path):
    with pytest.raises(InvalidSample, match=r"it has images \(3, .* make the trainer with .*tree_trainer"):
        trainer_of(GRPOTrainer, vision_model, dataset("pictures", [0, 1]), tmp_path).train()


def test_a_processor_that_does_not_fit_is_refused(vision_model: Any, tmp_path: Path):
    own = qwen_processor()
    larger = QwenImageProcessor(
        Qwen2VLImageProcessorPil(patch_size=14, min_pixels=400 * 400), own.tokenizer, own.chat_template
    )
    for processor, message in ((larger, "tokens"), (own.tokenizer, "processing_class is a tokenizer")):
        with pytest.raises(ConfigError, match=message):
            rows = dataset("pictures", [0, 1])
            trainer_of(tree_trainer(), vision_model, rows, tmp_path, processor=processor).train()
