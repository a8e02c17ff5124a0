"""verl's engine on FSDP2 on a CPU, with a small model, and rows that come from rollouts as its trainers make them."""

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision_operators  # noqa: F401 (verl loads processors of vision models with torchvision)
from tensordict import TensorDict

from envsdk import Trajectory

with warnings.catch_warnings():  # of ray, and of engines that are not installed
    warnings.simplefilter("ignore")
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.plugin.platform.platform_manager import set_platform

    class CPU(PlatformCUDA):
        device_name = "cpu"
        vendor_name = "cpu"
        device_module: Any = torch.cpu

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return torch.device("cpu")

        def communication_backend_name(self) -> str:
            return "gloo"

    set_platform(CPU())  # before verl's other modules are imported
    sys.modules["trl"] = None  # type: ignore[assignment]  # verl 0.9.1 does not start next to the TRL of the tests' data
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
    from verl.trainer.config import CheckpointConfig
    from verl.utils import tensordict_utils
    from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead as FSDPEngineWithLMHead
    from verl.workers.utils.losses import ppo_loss

    from envsdk.trainers.verl import to_outputs
    from envsdk.trainers.verl_trees import TreeEngine as TreeEngine

torch.set_num_threads(1)  # of small models, more threads wait for one another
TEMPERATURE = 0.7
PRECISION = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


def configurations(folder: Path, **options: Any) -> tuple[Any, Any, Any, Any]:
    """The arguments of an engine, with options of the model."""
    model = HFModelConfig(
        path=str(folder),
        load_tokenizer=False,
        override_config={"attn_implementation": "sdpa"},
        **{"enable_gradient_checkpointing": False, **options},
    )
    own = FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False, mixed_precision=PRECISION)
    return model, own, FSDPOptimizerConfig(lr=1e-3, total_training_steps=10), CheckpointConfig()


def engine_of(kind: Any, folder: Path, **options: Any) -> Any:
    """An engine with the weights of the folder; LoRA's are random."""
    engine = kind(*configurations(folder, **options))
    engine.initialize()
    generator = torch.Generator().manual_seed(0)
    for name, weight in engine.module.named_parameters():
        if "lora_" in name:
            weight.data.copy_(
                torch.distributed.tensor.distribute_tensor(
                    0.1 * torch.randn(weight.shape, generator=generator), weight.device_mesh, weight.placements
                )
            )
    return engine


def rows_of(trajectories: Sequence[Trajectory], seed: int = 0) -> TensorDict:
    """The rows of V1's trainer, with old and reference log-probabilities and an advantage for each rollout."""
    generator, rows = np.random.default_rng(seed), list[dict[str, Any]]()
    for trajectory in trajectories:
        advantage = generator.normal()
        for fields in to_outputs(trajectory.samples(), prompt_length=400, response_length=4000):
            own = AgentLoopOutput(**fields, metrics={}).as_dict()
            ids, mask = torch.cat([own["prompts"], own["responses"]]), own["response_mask"]
            around = torch.from_numpy(generator.normal(-8.3, 0.2, (2, len(mask))).astype(np.float32))
            rows.append(
                {
                    **{name: own[name] for name in ("prompts", "responses", "response_mask")},
                    "input_ids": ids,
                    "position_ids": torch.arange(len(ids)),
                    "loss_mask": mask,
                    "old_log_probs": around[0],
                    "ref_log_prob": around[1],
                    "advantages": advantage * mask,
                }
            )
    order = generator.permutation(len(rows))  # verl balances its batches by length
    return tensordict_utils.list_of_dict_to_tensordict([rows[index] for index in order])


def with_options(rows: TensorDict, **options: Any) -> TensorDict:
    """A copy of the rows with what a worker tells its engine: by default, all of them are one micro-batch."""
    rows = rows.copy()
    usual = {"use_remove_padding": True, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": len(rows)}
    usual |= {"temperature": TEMPERATURE, "calculate_entropy": True, "global_batch_size": len(rows)}
    tensordict_utils.assign_non_tensor(rows, **usual | {"return_model_output": True} | options)
    return rows


def loss_of(**options: Any) -> Any:
    """The actor's loss, with entropy and the divergence from the reference."""
    usual = {"strategy": "fsdp2", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "entropy_coeff": 0.1}
    return partial(ppo_loss, FSDPActorConfig(**usual | {"use_kl_loss": True, "kl_loss_coef": 0.1} | options))


def step_of(engine: Any, rows: TensorDict, loss: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The outputs of a forward and backward pass, and the gradients."""
    with engine.train_mode():
        engine.optimizer_zero_grad()
        outputs = engine.forward_backward_batch(rows, loss)
        weights = dict(engine.module.named_parameters())
        return outputs, {name: w.grad.full_tensor().clone() for name, w in weights.items() if w.requires_grad}
