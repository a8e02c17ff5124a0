"""Training steps over trees and over separate samples: how exact they are, how long they take, and their memory.

A step is forward, loss and backward of a Qwen3 with random weights over an episode of T replies whose thinking is
stripped. All ways recompute the activations of each layer in the backward pass (gradient checkpointing), and compute
the logits of 1,024 tokens at a time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from torch_models import in_sample_order
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.contenders.trl.training import episode
from envsdk import Sample
from envsdk.tree import TreeBatch, tree_batch

Way = Literal["separate", "runs", "flex"]
WAYS: tuple[Way, ...] = ("separate", "runs", "flex")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "rope_theta": 1_000_000.0,
    },
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 4096,
    },
}
MAX_FLOAT32_DIFFERENCE = 1e-3
"""Of log-probabilities in nats, and of the gradient, relative to its length."""
MAX_BFLOAT16_RATIO = 1.5
"""How much further from float32 a tree may be than the separate samples are, in the same precision."""
LOGIT_TOKENS = 1024


@dataclass
class Measurement:
    """One way to compute a step. The differences are those from separate samples in float32."""

    steps: int
    dtype: str
    way: Way
    tokens: int
    seconds: float | None = None
    peak_gib: float | None = None
    logprob_difference: float | None = None
    """The mean over the trained tokens, in nats."""
    max_logprob_difference: float | None = None
    gradient_difference: float | None = None
    problem: str | None = None
    """Why it is not exact, or was not measured."""


def model_of(shape: str, device: str) -> Any:
    """Return a Qwen3 in float32, with the same random weights each time."""
    torch.manual_seed(0)
    config = Qwen3Config(tie_word_embeddings=True, pad_token_id=None, eos_token_id=None, **SHAPES[shape])
    with torch.device(device):
        model = Qwen3ForCausalLM(config).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def measurements(shape: str, device: str, sizes: list[int], repetitions: int) -> Iterator[dict[str, Any]]:
    """Yield what each way takes at each size, in float32 and then in bfloat16."""
    exact: dict[int, tuple[Any, Any]] = {}
    for dtype, torch_dtype in DTYPES.items():
        model = model_of(shape, device)
        for parameter in model.parameters():  # not the buffers: the frequencies of RoPE stay in float32
            parameter.data = parameter.data.to(torch_dtype)
        for steps in sizes:
            separate: Measurement | None = None
            for way in WAYS:
                found = Measurement(steps, dtype, way, 0)
                with reported(found), attention_of(model, way):
                    measure(model, found, exact, repetitions)
                separate = separate or found
                check(found, separate)
                model.zero_grad(set_to_none=True)
                yield asdict(found)
        del model


@contextmanager
def reported(found: Measurement) -> Iterator[None]:
    """Put the reason into a measurement that failed."""
    try:
        yield
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        found.problem = f"{type(error).__name__}: {error!s:.200}".replace("\n", " ")


@contextmanager
def attention_of(model: Any, way: Way) -> Iterator[None]:
    """Let a model compute attention in one way."""
    if way == "flex":
        torch.compiler.reset()  # else it compiles for any length, of which torch's C++ is not valid
    model.set_attn_implementation("flex_attention" if way == "flex" else "sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def measure(model: Any, found: Measurement, exact: dict[int, tuple[Any, Any]], repetitions: int) -> None:
    """Run steps, the first one for its results and the others for their time."""
    samples = episode(found.steps, "strip").samples()
    tree = tree_batch(episode(found.steps, "strip"))
    found.tokens = sum(map(len, samples)) if found.way == "separate" else len(tree)
    is_cuda = model.device.type == "cuda"
    has_gradient = is_cuda or found.way != "flex"  # on a CPU, torch's FlexAttention has no backward pass
    model.train(has_gradient)
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with torch.set_grad_enabled(has_gradient):
        logprobs, times = step(model, samples, tree, found.way), []
        if is_cuda:
            found.peak_gib = torch.cuda.max_memory_allocated() / 2**30
        gradient = [parameter.grad for parameter in model.parameters()] if has_gradient else None
        compare(found, exact, logprobs, gradient)
        for _ in range(repetitions):
            model.zero_grad(set_to_none=True)
            start = synchronized(is_cuda)
            step(model, samples, tree, found.way)
            times.append(synchronized(is_cuda) - start)
    found.seconds = min(times)


def synchronized(is_cuda: bool) -> float:
    """Wait for the GPU, and return the time in seconds."""
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def step(model: Any, samples: list[Sample], tree: TreeBatch, way: Way) -> torch.Tensor:
    """Compute the loss, which is the mean over the trained tokens, and its gradient.

    Returns:
        The log-probabilities of the trained tokens, sample after sample, in float32 on the CPU.
    """
    if way == "separate":
        parts = [
            part(model, {"input_ids": ids(model, sample.tokens)[None]}, trained - 1, sample.tokens[trained], tree)
            for sample in samples
            for trained in [np.flatnonzero(sample.mask)]
        ]
        return torch.cat(parts)
    inputs = tree.model_inputs(model, attention=way)
    return in_sample_order([tree], [part(model, inputs, tree.predecessors, tree.tokens[tree.trained], tree)])


def ids(model: Any, tokens: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(tokens), device=model.device).long()


def part(model: Any, inputs: dict[str, Any], predecessors: Any, targets: Any, tree: TreeBatch) -> torch.Tensor:
    """Run forward and backward on one sequence; return the log-probabilities of its trained tokens."""

    def logprobs(rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits = model.lm_head(rows).float()
        return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)

    hidden = model.model(**{**inputs, "use_cache": False}).last_hidden_state[0][ids(model, predecessors)]
    chunks = zip(hidden.split(LOGIT_TOKENS), ids(model, targets).split(LOGIT_TOKENS), strict=True)
    found = torch.cat([checkpoint(logprobs, *chunk, use_reentrant=False) for chunk in chunks])
    if found.requires_grad:
        (-found.sum() / len(tree.trained)).backward()
    return found.detach().cpu()


def compare(found: Measurement, exact: dict[int, tuple[Any, Any]], logprobs: Any, gradient: Any) -> None:
    """Fill in the differences from separate samples in float32, which are kept on the CPU."""
    if (found.dtype, found.way) == ("float32", "separate"):
        exact[found.steps] = logprobs, [each.cpu() for each in gradient]
    if found.steps not in exact:
        raise RuntimeError("there is nothing to compare with: separate samples in float32 failed")
    expected, expected_gradient = exact[found.steps]
    differences = (logprobs - expected).abs()
    found.logprob_difference, found.max_logprob_difference = float(differences.mean()), float(differences.max())
    if gradient is not None:
        squares = torch.zeros(2, dtype=torch.float64, device=gradient[0].device)
        for own, other in zip(gradient, expected_gradient, strict=True):
            wanted = other.to(own.device)
            squares += torch.stack([(own.float() - wanted).square().sum(), wanted.square().sum()])
        apart, length = squares.sqrt().tolist()
        found.gradient_difference = apart / length


def check(found: Measurement, separate: Measurement) -> None:
    """Fill in the problem of a way that is not exact."""
    if found.problem is not None or found is separate:
        return
    is_exact = found.dtype == "float32"
    for name in ("max_logprob_difference" if is_exact else "logprob_difference", "gradient_difference"):
        value, own = getattr(found, name), getattr(separate, name)
        if value is None or own is None:
            continue
        limit = MAX_FLOAT32_DIFFERENCE if is_exact else MAX_BFLOAT16_RATIO * own
        if not value <= limit:
            found.problem = f"{name} is {value:.2g}; expected at most {limit:.2g}"
