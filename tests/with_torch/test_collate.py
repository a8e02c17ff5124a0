import numpy as np
import pytest
import torch
from trainers.episodes import copy_of, delegated

from envsdk.diagnostics import describe
from envsdk.policies import Ragged
from envsdk.trainers.plain import collate


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
