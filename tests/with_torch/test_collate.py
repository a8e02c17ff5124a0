from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch_models import tiny_qwen3
from trainers.episodes import copy_of, delegated, stripped

from envsdk.diagnostics import describe
from envsdk.errors import ConfigError
from envsdk.policies import Ragged
from envsdk.trainers.plain import collate, model_inputs

SHAPE = {"vocab_size": 4096, "hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
SHAPE |= {"intermediate_size": 32, "initializer_range": 0.2, "pad_token_id": None, "eos_token_id": None}


def tiny_qwen3_next() -> Any:
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    options = {"linear_value_head_dim": 8, "shared_expert_intermediate_size": 16, "num_hidden_layers": 4}
    config = transformers.Qwen3NextConfig(**SHAPE, **linear, **experts, **options)
    return transformers.Qwen3NextForCausalLM(config)


def tiny_nemotron_h() -> Any:
    options = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1}
    return transformers.NemotronHForCausalLM(transformers.NemotronHConfig(**SHAPE, **options))


def leak(model: Any) -> float:
    """The largest change of a logit of a sample that follows another one in a packed row."""
    samples = stripped().samples()[:2]
    batch = collate(samples, layout="packed", arrays="torch")
    inputs = {"input_ids": batch["tokens"], "position_ids": batch["position_ids"], "use_cache": False}
    with torch.no_grad():
        packed = model(**inputs).logits[0, len(samples[0]) :]
        alone = model(**model_inputs(collate(samples[1:]), samples[1:], model)).logits[0]
    return float((packed - alone).abs().max())


@pytest.mark.parametrize("make_model", [tiny_qwen3_next, tiny_nemotron_h])
def test_a_packed_row_is_refused_for_models_in_which_its_samples_see_each_other(make_model: Any) -> None:
    torch.manual_seed(0)
    model, samples = make_model().eval(), stripped().samples()[:2]
    assert leak(tiny_qwen3().eval()) < 1e-4 < 0.05 < leak(model)
    for refused in (model, model.config):
        with pytest.raises(ConfigError, match=r"samples would see .*layer 0 is .*layout='padded'"):
            collate(samples, layout="packed", model=refused)
    batch = collate(samples, layout="packed")
    with pytest.raises(ConfigError, match="samples would see"):
        model_inputs(batch, samples, model)
    for alone in (samples[:1], samples[1:]):
        model_inputs(collate(alone, layout="packed", model=model), alone, model)


def test_a_model_that_handles_boundaries_gets_those_of_a_packed_row() -> None:
    model, samples = tiny_nemotron_h(), stripped().samples()[:2]
    lengths = [len(sample) for sample in samples]
    batch = collate(samples, layout="packed", model=model, handles_boundaries=True)
    inputs = model_inputs(batch, samples, model, handles_boundaries=True)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert inputs[name].tolist() == [0, lengths[0], sum(lengths)]
    assert inputs["max_length_q"] == inputs["max_length_k"] == max(lengths)
    assert inputs["seq_idx"][0].bincount().tolist() == lengths
    assert inputs["cu_seq_lens_q"].dtype == inputs["seq_idx"].dtype == torch.int32


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_batch_of_tensors_says_what_that_of_arrays_says(layout):
    samples = [copy_of(sample) for sample in delegated().samples()]
    for sample in samples:
        sample.advantage = 0.5
        sample.extra = {
            "rows": np.zeros((len(sample), 2), np.int16),
            "lists": Ragged.of([[token, 1] for token in sample.tokens]),
        }
    options = {"layout": layout, "extra": ["rows", "lists"]}
    arrays, tensors = (collate(samples, arrays=kind, **options) for kind in ("numpy", "torch"))
    assert arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        if name not in ("max_seqlen", "extra"):
            assert isinstance(tensor, torch.Tensor)
            assert tensor.tolist() == arrays[name].tolist()
    assert tensors["extra"]["rows"].tolist() == arrays["extra"]["rows"].tolist()
    assert tensors["extra"]["lists"]["lengths"].tolist() == arrays["extra"]["lists"]["lengths"].tolist()
    assert tensors["tokens"].dtype == tensors["position_ids"].dtype == torch.int64
    assert tensors["cu_seqlens"].dtype == torch.int32
    assert tensors["mask"].dtype == torch.bool
    logits = torch.randn(*tensors["tokens"].shape, int(tensors["tokens"].max()) + 1)
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, tensors["tokens"][:, 1:, None])
    assert chosen[tensors["mask"][:, 1:].unsqueeze(-1)].numel() == sum(int(s.mask.sum()) for s in samples)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_batch_of_tensors_is_described_as_that_of_arrays(layout):
    samples = delegated().samples()
    arrays, tensors = (describe(collate(samples, layout=layout, arrays=kind)) for kind in ("numpy", "torch"))
    assert arrays == tensors
    halved = collate(samples, layout=layout, arrays="torch")
    halved["logprobs"] = halved["logprobs"].bfloat16().requires_grad_()
    assert describe(halved).arrays["logprobs"][0] == "bfloat16"
    assert describe(halved).logprobs.mean == pytest.approx(arrays.logprobs.mean, rel=1e-2)
