"""verl's actor computes with trees what it computes with rows: its engine, its losses and its worker, on a CPU."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch_models import tiny_qwen3
from trainers.episodes import guessed, programmed, stripped
from verl.utils import tensordict_utils
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl_engines import (
    FSDPEngineWithLMHead,
    TreeEngine,
    configurations,
    engine_of,
    loss_of,
    rows_of,
    step_of,
    with_options,
)

from envsdk.errors import ConfigError, TreeUnsupported

pytestmark = pytest.mark.filterwarnings("default")

LIMIT = 1e-5
ROWS = rows_of([stripped(), guessed("compact:every=3"), programmed(), guessed(max_steps=2)])
TOKENS = int(ROWS["input_ids"].values().numel())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_qwen3().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _process_group() -> Iterator[None]:
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def engines(folder: Path) -> tuple[Any, Any]:
    """verl's own, and ours."""
    return engine_of(FSDPEngineWithLMHead, folder), engine_of(TreeEngine, folder)


def check_same(engines: tuple[Any, Any], loss: Any, compared: Counter[str], **options: Any) -> None:
    """Loss and gradients are the same, and so are the results of each token but the last one of a row."""
    (own, expected), (found, gradients) = (step_of(each, with_options(ROWS, **options), loss) for each in engines)
    assert abs(sum(own["loss"]) - sum(found["loss"])) < LIMIT * max(1, abs(sum(own["loss"])))
    largest = max(float(each.abs().max()) for each in expected.values())
    for name, gradient in expected.items():
        assert (gradient - gradients[name]).abs().max() < LIMIT * max(1.0, largest)
    for name, values in own["model_output"].items():
        for row, again in zip(values.unbind(), found["model_output"][name].unbind(), strict=True):
            torch.testing.assert_close(row[:-1], again[:-1], atol=LIMIT, rtol=LIMIT)
    compared.update({"gradients": len(expected), "results": len(own["model_output"]) * len(ROWS)})
    assert largest > 1e-3


MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradient_are_those_of_the_rows(engines: Any, mode: str, compared: Counter[str]):
    check_same(engines, loss_of(loss_agg_mode=mode), compared)


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        ({"enable_gradient_checkpointing": True}, {"calculate_entropy": False, "calculate_sum_pi_squared": True}),
        ({"lora_rank": 4}, {}),
        ({"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}}, {"use_fused_kernels": True}),
    ],
    ids=["checkpointing", "LoRA", "fused kernels"],
)
def test_they_are_with_options_of_the_model(
    folder: Path, model: Any, batch: Any, compared: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    kind = transformers.Qwen3ForCausalLM
    monkeypatch.setattr(kind, "forward", kind.forward)  # which verl replaces for fused kernels
    pair = engine_of(FSDPEngineWithLMHead, folder, **model), engine_of(TreeEngine, folder, **model)
    check_same(pair, loss_of(), compared, **batch)


def test_micro_batches_are_made_by_the_tokens_of_their_trees(engines: Any, compared: Counter[str]):
    longest = int(ROWS["input_ids"].offsets().diff().max())
    budget = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 3 * longest}
    own, found = (step_of(each, with_options(ROWS, **budget), loss_of())[0] for each in engines)
    assert len(found["loss"]) < len(own["loss"])
    check_same(engines, loss_of(), compared, **budget)


def test_the_results_for_old_log_probabilities_are_in_the_order_of_the_rows(engines: Any):
    budget = {"use_dynamic_bsz": True, "max_token_len_per_gpu": TOKENS}
    results = []
    for engine in engines:
        with engine.eval_mode():
            results.append(engine.infer_batch(with_options(ROWS, **budget))["model_output"]["log_probs"])
    for row, again in zip(*(each.unbind() for each in results), strict=True):
        torch.testing.assert_close(row[:-1], again[:-1], atol=LIMIT, rtol=LIMIT)


def test_verls_worker_makes_the_engine_and_logs_how_much_it_saves(
    folder: Path, engines: Any, monkeypatch: pytest.MonkeyPatch
):
    for name in ("max_memory_allocated", "max_memory_reserved"):  # which a CPU does not have
        monkeypatch.setattr(torch.cpu, name, lambda: 0, raising=False)
    lib = {"external_lib": "envsdk.trainers.verl_trees"}
    model, engine, optimizer, checkpoint = configurations(folder, **lib)
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=model,
        engine_config=engine,
        optimizer_config=optimizer,
        checkpoint_config=checkpoint,
    )
    worker = TrainingWorker(config)
    assert type(worker.engine) is TreeEngine
    worker.reset()
    worker.set_loss_fn(loss_of())
    rows = with_options(ROWS, mini_batch_size=len(ROWS), epochs=1, return_model_output=False)
    metrics = tensordict_utils.get(worker.train_mini_batch(rows), "metrics")
    expected, gradients = step_of(engines[0], with_options(ROWS), loss_of())
    norm = torch.stack([each.norm() for each in gradients.values()]).norm()
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=LIMIT)
    np.testing.assert_allclose(metrics["grad_norm"], float(norm), rtol=LIMIT)
    [ratio] = metrics["envsdk/tree_ratio"]
    assert 1.5 < ratio < len(ROWS)


def test_a_tree_of_rows_has_each_beginning_once(engines: Any):
    seen: list[int] = []
    hook = engines[1].module.register_forward_pre_hook(
        lambda module, arguments, given: seen.append(given["input_ids"].numel()), with_kwargs=True
    )
    step_of(engines[1], with_options(ROWS), loss_of())
    hook.remove()
    rows = [row.tolist() for row in ROWS["input_ids"].unbind()]
    assert seen == [len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})]


def test_two_processes_train_what_verls_own_do(folder: Path, tmp_path: Path, compared: Counter[str]):
    """They have trees of different sizes, and still take the same number of steps."""
    script = Path(__file__).with_name("two_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    modules = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the modules of the tests
    subprocess.run([*command, script, folder, tmp_path], check=True, timeout=600, env=modules)
    for rank in range(2):
        saved = torch.load(tmp_path / f"{rank}.pt")
        for name, gradient in saved["own"].items():
            assert (gradient - saved["tree"][name]).abs().max() < LIMIT
            compared["gradients"] += 1


REFUSED = [
    ({"temperature": torch.linspace(0.5, 1.0, len(ROWS))}, "a temperature for each row"),
    ({"distillation_use_topk": True}, "distillation_use_topk"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=["temperatures", "distillation"])
def test_what_a_tree_would_not_compute_as_the_rows_do_is_refused(engines: Any, options: Any, message: str):
    rows = with_options(ROWS, **options)
    with pytest.raises(TreeUnsupported, match=message), engines[1].eval_mode():
        engines[1].infer_batch(rows)


def test_images_are_refused(engines: Any):
    rows = with_options(ROWS)
    rows["multi_modal_inputs"] = tensordict_utils.NonTensorStack(*[{"pixel_values": torch.zeros(1, 3)}] * len(rows))
    with pytest.raises(TreeUnsupported, match="pixel_values"), engines[1].eval_mode():
        engines[1].infer_batch(rows)


def test_an_engine_whose_rows_are_padded_is_refused(folder: Path):
    with pytest.raises(ConfigError, match="use_remove_padding=False"):
        TreeEngine(*configurations(folder, use_remove_padding=False))
