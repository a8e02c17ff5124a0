"""Images of an environment reach what verl's actor gives a model: pixels, grids and positions, by verl's own code.

The worker of V1 applies the model's processor and computes positions; the engine on FSDP makes the inputs of a forward
pass, which runs here on a small model.
"""

import asyncio
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import real_models
import torch
import yaml
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from torch_vision_models import tiny_qwen_vl
from trainers.pictures import Gallery, says
from vision_models import vision_renderer

from envsdk import Sample, load_tokenizer, register_env, rollout
from envsdk.rendering._vision import Vision
from envsdk.trainers.plain import collate, model_inputs

with warnings.catch_warnings():  # of ray, and of engines that are not installed
    warnings.simplefilter("ignore")
    import verl
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.trainer.ppo.v1 import agent_loop_tq
    from verl.utils import tensordict_utils
    from verl.utils.dataset.dataset_utils import DatasetPadMode
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.rollout.replica import TokenOutput

pytestmark = pytest.mark.filterwarnings("ignore:::transformers", "ignore:::tensordict", "ignore:__array__")

WORKER = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
PROMPT_LENGTH, RESPONSE_LENGTH, TEMPERATURE = 128, 256, 0.7
STOP = 151645
LEVEL = 1.05 / 255 / 0.26
"""The difference of two neighboring levels of a color, of 256, in normalized pixels."""

register_env("verl_tests/Gallery-v0", Gallery)


class Server:
    """Says the same text each time, and keeps the images that were requested with."""

    def __init__(self, tokenizer: Any) -> None:
        self.reply = [*tokenizer.encode("A plot.", add_special_tokens=False), STOP]
        self.images: list[list[Any]] = []

    async def generate(self, *, prompt_ids: list[int], image_data: list[Any], **_: Any) -> TokenOutput:
        self.images.append(image_data)
        return TokenOutput(token_ids=self.reply, log_probs=[-0.5] * len(self.reply), stop_reason="completed")


@pytest.fixture(scope="module")
def vision_model() -> Any:
    return tiny_qwen_vl("qwen2_5_vl")


@pytest.fixture(scope="module")
def vision_folder(vision_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    for file in real_models.qwen3_folder().iterdir():
        shutil.copy(file, folder)
    vision_model.save_pretrained(folder)
    images = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    (folder / "chat_template.jinja").write_text(real_models.template("qwen2_5_vl"))
    return folder


@pytest.fixture
def worker(vision_folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A worker of V1, with the processor that verl's own loader finds in the model's folder."""
    renderer = {"name": "fixed_base", "processor": {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14}}
    loop = {"_target_": "envsdk.trainers.verl.EnvAgentLoop", "name": "tried", "env": "verl_tests/Gallery-v0"}
    (tmp_path / "loops.yaml").write_text(
        yaml.safe_dump([{**loop, "env_options": {"renderer": renderer, **request.param}}])
    )
    rollout = {"name": "vllm", "calculate_log_probs": True, "temperature": TEMPERATURE}
    rollout |= {"prompt_length": PROMPT_LENGTH, "response_length": RESPONSE_LENGTH}
    settings = {
        "actor_rollout_ref.model.path": vision_folder,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": tmp_path / "loops.yaml",
        "trainer.use_v1": True,
        **{f"actor_rollout_ref.rollout.{name}": value for name, value in rollout.items()},
    }
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", overrides=[f"{name}={value}" for name, value in settings.items()])
    worker = WORKER.__new__(WORKER)
    AgentLoopWorker.__init__(worker, config, None)  # V1's own also connects to its queue
    assert worker.processor.get_rope_index
    worker.llm_client = Server(worker.tokenizer)
    return worker


def run(worker: Any, monkeypatch: pytest.MonkeyPatch) -> TensorDict:
    """Run a row: what the worker puts into its queue."""
    put: list[dict[str, Any]] = []

    async def keep(**given: Any) -> None:
        put.append(given)

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", keep)
    row = {"raw_prompt": [], "extra_info": {"seed": 0}, "uid": "u", "session_id": 0, "global_steps": 4}
    trajectory = {"step": 4, "sample_index": 0, "rollout_n": 0, "validate": False}
    params = {"temperature": TEMPERATURE, "top_p": 1.0, "top_k": -1, "logprobs": True}
    asyncio.run(worker._run_agent_loop(params, trajectory, agent_name="tried", trace=False, **row))
    return put[0]["fields"]


def of_actor(fields: TensorDict, *, is_packed: bool) -> dict[str, Any]:
    """What verl's engine on FSDP gives the model for the rows."""
    engine = FSDPEngineWithLMHead.__new__(FSDPEngineWithLMHead)
    engine.use_ulysses_sp, engine.pad_to_length, engine.ulysses_sequence_parallel_size = False, False, 1
    rows = list(fields)
    batch = tensordict_utils.get_tensordict(
        {
            "input_ids": torch.nested.as_nested_tensor([row["input_ids"] for row in rows], layout=torch.jagged),
            "position_ids": tensordict_utils.nested_tensor_from_tensor_list([row["position_ids"] for row in rows]),
            "multi_modal_inputs": [row["multi_modal_inputs"] for row in rows],
        },
        {"use_remove_padding": is_packed, "pad_mode": DatasetPadMode.NO_PADDING, "temperature": 1.0, "pad_token_id": 0},
    )
    return engine.prepare_model_inputs(batch)[0]


def own_samples(options: dict[str, Any]) -> list[Sample]:
    """The samples of the same episode, played without verl."""
    env = Gallery(renderer=vision_renderer(), **options)
    return rollout(env, says(env.renderer, TEMPERATURE), seed=0).samples()


DROPPED = {"history": {"name": "budget", "max_tokens": 110, "order": ["images"], "keep_images": 1}}


@pytest.mark.parametrize(("worker", "images"), [({}, [2, 3]), (DROPPED, [2, 2])], indirect=["worker"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_the_actor_gives_the_model_what_we_would(
    worker: Any, images: list[int], is_packed: bool, vision_model: Any, monkeypatch: pytest.MonkeyPatch
):
    fields = run(worker, monkeypatch)
    samples = own_samples({} if images == [2, 3] else DROPPED)
    assert [row["input_ids"].tolist() for row in fields] == [sample.tokens.tolist() for sample in samples]
    assert [len(requested) for requested in worker.llm_client.images] == images
    given = of_actor(fields, is_packed=is_packed)
    batch = collate(samples, layout="packed" if is_packed else "padded", arrays="torch")
    vision = Vision(worker.processor, load_tokenizer(real_models.qwen3_folder()))
    ours = model_inputs(batch, samples, vision_model, vision=vision)
    assert torch.equal(given["input_ids"], ours["input_ids"])
    assert torch.equal(given["image_grid_thw"], ours["image_grid_thw"])
    torch.testing.assert_close(given["pixel_values"], ours["pixel_values"])
    with_pillow = model_inputs(batch, samples, vision_model, vision=vision_renderer().vision)["pixel_values"]
    assert (given["pixel_values"] - with_pillow).abs().max() < LEVEL  # that of verl is on torchvision
    is_token = torch.ones_like(ours["input_ids"]) if is_packed else ours["attention_mask"]
    for row, seen in enumerate(is_token.bool()):
        assert torch.equal(given["position_ids"][:, row, seen], ours["position_ids"][:, row, seen])
    given.pop("images_seqlens")  # of the model, which verl patches to take it
    with torch.no_grad():
        logits, own = (vision_model(**{**inputs, "use_cache": False}).logits for inputs in (given, ours))
    torch.testing.assert_close(logits[is_token.bool()], own[is_token.bool()], atol=1e-4, rtol=1e-4)
