"""What makes a model compute other log-probabilities in training: found in the modules, and seen by the check."""

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch.nn")

import torch
import transformers
from torch_models import logprobs_separate, tiny_gpt_oss, tiny_qwen3

import envsdk
from envsdk.diagnostics import TrainingDifference, kl, train_mode
from envsdk.errors import ConfigError
from envsdk.policies import TransformersPolicy

pytestmark = pytest.mark.filterwarnings("default")


def checked(model: Any, trainer: Any) -> Any:
    """The on-policy check of a model that samples in evaluation mode, and computes as `trainer` makes it."""
    env = envsdk.make("envsdk/MathChat-v0", renderer="qwen3", tokenizer="embedded")
    policy = TransformersPolicy(model.eval(), env.renderer.tokenizer, seed=0, max_tokens=60)
    samples = envsdk.rollout(env, policy, seed=0).samples()
    trainer(model)
    with torch.no_grad():
        rows = logprobs_separate(model, samples)
    full = [np.zeros(len(sample)) for sample in samples]
    for row, sample, found in zip(full, samples, rows, strict=True):
        row[sample.mask] = found.double().numpy()
    return kl(samples, full, dtype="float32", renderer=env.renderer)


def test_dropout_that_was_left_on_is_critical_everywhere_and_named():
    model = tiny_qwen3(attention_dropout=0.3)
    assert checked(model, lambda model: model.eval()).verdict == "healthy"
    found, report = checked(model, lambda model: model.train()), train_mode(model)
    assert (found.verdict, found.shift) == ("critical", 0)
    assert found.all.k2 > 1e-4
    assert not [each for each in found.clusters if each.view in ("kind", "depth")]  # it is everywhere
    names = [f"model.layers.{layer}.self_attn" for layer in range(3)]
    assert report.differences == tuple(
        TrainingDifference(name, "dropout", "attention_dropout=0.3", True) for name in names
    )
    assert report.differs
    assert "active: dropout, attention_dropout=0.3 in 3 modules, such as model.layers.0.self_attn" in str(report)


def test_dropout_in_evaluation_mode_is_listed_and_off():
    report = train_mode(tiny_qwen3(attention_dropout=0.3).eval())
    assert (report.differs, report.training) == (False, 0)
    assert len(report.differences) == 3
    assert "off now: dropout" in str(report)


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_gpt_oss])
def test_a_model_without_dropout_may_be_in_training_mode(make: Any):
    model = make()
    report = train_mode(model)
    assert report.training == report.modules == len(list(model.modules()))
    assert (report.differs, report.differences, report.dtypes) == (False, (), ("float32",))
    assert report.attention == model.config._attn_implementation
    assert "no module makes the forward pass differ" in str(report)


@pytest.mark.parametrize(
    ("module", "effect", "setting"),
    [
        (torch.nn.Dropout(0.25), "dropout", "p=0.25"),
        (torch.nn.Dropout2d(0.25), "dropout", "p=0.25"),
        (torch.nn.AlphaDropout(0.25), "dropout", "p=0.25"),
        (torch.nn.LSTM(2, 2, num_layers=2, dropout=0.25), "dropout", "dropout=0.25"),
        (torch.nn.MultiheadAttention(2, 1, dropout=0.25), "dropout", "dropout=0.25"),
        (torch.nn.BatchNorm1d(2), "batch_statistics", "BatchNorm1d"),
        (torch.nn.InstanceNorm1d(2, track_running_stats=True), "batch_statistics", "InstanceNorm1d"),
        (torch.nn.RReLU(), "random_activation", "a slope from 0.125 to 0.333333"),
    ],
)
def test_layers_of_torch_with_another_behavior_in_training_are_found(module: Any, effect: str, setting: str):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ModuleDict({"part": module}))
    assert TrainingDifference("1.part", effect, setting, True) in train_mode(model).differences  # type: ignore[arg-type]
    assert not train_mode(model.eval()).differs


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Dropout(0.0),
        torch.nn.LayerNorm(2),
        torch.nn.InstanceNorm1d(2),
        torch.nn.LSTM(2, 2),
        torch.nn.Linear(2, 2),
    ],
)
def test_layers_that_are_the_same_in_training_are_not(module: Any):
    assert train_mode(module).differences == ()


def test_a_router_with_noise_and_capacity_is_found():
    config = transformers.SwitchTransformersConfig(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_sparse_encoder_layers=1, num_decoder_layers=2,
        num_sparse_decoder_layers=1, num_heads=2, num_experts=2, router_jitter_noise=0.1, dropout_rate=0.0,
    )  # fmt: skip
    model = transformers.SwitchTransformersForConditionalGeneration(config).train()
    effects = {difference.effect: difference.is_active for difference in train_mode(model).differences}
    assert effects == {"router_noise": True, "expert_capacity": True}
    effects = {difference.effect: difference.is_active for difference in train_mode(model.eval()).differences}
    assert effects == {"router_noise": False, "expert_capacity": True}  # capacity counts in sampling, too


def test_a_loss_of_the_router_is_found():
    model = tiny_gpt_oss(output_router_logits=True, router_aux_loss_coef=0.9)
    assert not train_mode(model).differs  # log-probabilities stay the same
    assert TrainingDifference("", "auxiliary_loss", "router_aux_loss_coef=0.9", True) in train_mode(model).differences


def test_a_report_is_json_and_other_objects_are_refused():
    record = json.loads(json.dumps(train_mode(torch.nn.Dropout(0.5)).to_dict()))
    assert record["differs"] and record["differences"][0]["setting"] == "p=0.5"
    with pytest.raises(ConfigError, match=r"model is a str; expected a torch\.nn\.Module"):
        train_mode("model")
