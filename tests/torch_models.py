"""Small models with random weights, and the log-probabilities that they give to samples and to trees. Needs torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers

from envsdk import Sample
from envsdk.tree import TreeBatch


def tiny_qwen3(vocab_size: int = 4096, *, layers: int = 3, attention: str = "sdpa", **options: Any) -> Any:
    """A Qwen3 of a few layers, with tied embeddings as its small ones have them."""
    return _tiny("Qwen3", vocab_size, layers, attention, intermediate_size=64, tie_word_embeddings=True, **options)


def tiny_qwen3_moe(vocab_size: int = 4096, *, layers: int = 3) -> Any:
    """A Qwen3 with 4 experts, of which 2 take part in each token."""
    options = {"intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
    return _tiny("Qwen3Moe", vocab_size, layers, "sdpa", **options)


def tiny_gpt_oss(vocab_size: int = 4096, *, layers: int = 4, attention: str = "eager", **options: Any) -> Any:
    """A gpt-oss: every second layer sees 12 tokens back; 4 experts, of which 2 take part; attention sinks; YaRN."""
    options = {"sliding_window": 12, "num_local_experts": 4, "num_experts_per_tok": 2, **options}
    model = _tiny("GptOss", vocab_size, layers, attention, intermediate_size=32, **options)
    for layer in model.model.layers:
        layer.self_attn.sinks.data.normal_()
    return model


def _tiny(kind: str, vocab_size: int, layers: int, attention: str, **options: Any) -> Any:
    """In training mode, float32, without dropout; the same weights each time."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocab_size,
        num_hidden_layers=layers,
        attn_implementation=attention,
        pad_token_id=None,
        eos_token_id=None,
        initializer_range=0.2,  # with the usual 0.02 a random model hardly looks at what came before
        **{**shape, **options},
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).train()


def logprobs_separate(model: Any, samples: Sequence[Sample]) -> list[torch.Tensor]:
    """For each sample, as a sequence of its own, the log-probabilities of its trained tokens."""
    return [_of_sample(model, sample) for sample in samples]


def _of_sample(model: Any, sample: Sample) -> torch.Tensor:
    tokens, trained = torch.as_tensor(sample.tokens).long(), torch.as_tensor(np.flatnonzero(sample.mask))
    logits = model(input_ids=tokens[None], use_cache=False, logits_to_keep=trained - 1).logits[0]
    return _picked(logits, tokens[trained])


def logprobs_tree(model: Any, tree: TreeBatch) -> torch.Tensor:
    """The log-probabilities of the trained tokens of a tree, in its order, from one forward pass."""
    predecessors, needed = np.unique(tree.predecessors, return_inverse=True)
    logits = model(**tree.model_inputs(model), logits_to_keep=torch.as_tensor(predecessors).long()).logits[0]
    return _picked(logits[torch.as_tensor(needed)], torch.as_tensor(tree.tokens[tree.mask]).long())


def _picked(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)


def in_sample_order(trees: Sequence[TreeBatch], logprobs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Values of trained tokens of the batches of one tree, as the samples have them one after the other."""
    samples = np.concatenate([tree.sample_ids[tree.mask] for tree in trees])
    positions = np.concatenate([tree.position_ids[tree.mask] for tree in trees])
    return torch.cat(list(logprobs))[torch.as_tensor(np.lexsort((positions, samples)))]


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    """The gradient of all parameters as one vector; the graph stays."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return torch.cat([each.flatten() for each in filled])


def relative_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """How far two vectors are apart, measured by the length of the second."""
    return float(((first - second).norm() / second.norm()).detach())
