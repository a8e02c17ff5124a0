import numpy as np
import pytest
import torch
from torch_models import tiny_qwen3
from trainers.episodes import copy_of, stripped

from envsdk.credit import add_reference
from envsdk.errors import InvalidSample

pytestmark = pytest.mark.filterwarnings("default")


def expected(model, sample, temperature):
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(sample.tokens.astype(np.int64))[None]).logits[0]
    found = (logits[:-1] / temperature).log_softmax(-1)
    tokens = torch.from_numpy(sample.tokens[1:].astype(np.int64))
    values = np.append(0.0, found.gather(-1, tokens[:, None])[:, 0].numpy())
    return np.where(sample.mask, values, 0.0)


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_a_model_gives_the_logprobs_of_trained_tokens(temperature):
    model = tiny_qwen3()
    samples = stripped().samples()
    for sample, found in zip(samples, add_reference(samples, model, temperature=temperature), strict=True):
        used = float(sample.temperature[0]) if temperature is None else temperature
        np.testing.assert_allclose(found.reference_logprobs, expected(model, sample, used), atol=1e-5)
        assert found.reference_logprobs.dtype == np.float32


def test_a_greedy_sample_needs_a_temperature():
    sample = copy_of(stripped().samples()[0])
    sample.temperature[:] = 0.0
    with pytest.raises(InvalidSample, match="sampled at temperature 0; give the temperature"):
        add_reference([sample], tiny_qwen3())
    assert add_reference([sample], tiny_qwen3(), temperature=1.0)[0].reference_logprobs.any()
