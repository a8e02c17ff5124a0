"""One training step on a tree batch, and the same step on separate samples: equal losses, fewer tokens.

Run it with `python examples/tree_step.py`; `pip install 'envsdk[torch]'` has what it needs.
"""
# pyright: basic, reportMissingImports=false

import torch
import transformers

import envsdk
from envsdk import credit
from envsdk.policies import TransformersPolicy
from envsdk.rollouts import Rollouts

OPTIONS = {"renderer": "qwen3", "tokenizer": "embedded", "history": "strip", "questions": 3}


def small_model(vocab_size: int) -> transformers.Qwen3ForCausalLM:
    """Return a Qwen3 of two layers with random weights. In practice, use `AutoModelForCausalLM.from_pretrained`."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "head_dim": 16, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(vocab_size=vocab_size, **sizes, **heads)).eval()


def loss_of(model: torch.nn.Module, tree: envsdk.tree.TreeBatch) -> torch.Tensor:
    """Return the loss of REINFORCE: the log-probability of each sampled token, weighted with its advantage."""
    assert tree.advantage is not None
    logits = model(**tree.model_inputs(model)).logits[0, tree.predecessors].log_softmax(-1)
    trained = torch.as_tensor(tree.tokens[tree.trained]).long()
    logprobs = logits.gather(1, trained[:, None])[:, 0]
    return -(torch.as_tensor(tree.advantage[tree.trained]) * logprobs).sum()


def main() -> None:
    """Sample a group of episodes, and take a training step."""
    tokenizer = envsdk.load_tokenizer("embedded")
    model = small_model(tokenizer.vocab_size)
    policy = TransformersPolicy(model, tokenizer, max_tokens=8)
    rollouts = Rollouts("envsdk/MathChat-v0", policy, seeds=[0], group_size=4, env_options=OPTIONS)
    samples = [sample for trajectory in rollouts.run() for sample in trajectory.samples()]
    # The reward of random weights is 0 everywhere: the example uses the lengths of replies instead.
    for sample in samples:
        sample.reward = float(sample.mask.sum())
    samples = credit.group_advantages(samples, baseline="leave_one_out")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    together = envsdk.tree_batch(samples)
    separate = sum(loss_of(model, envsdk.tree_batch([sample])).item() for sample in samples)
    loss = loss_of(model, together)
    loss.backward()
    optimizer.step()
    print(f"{len(samples)} samples: {together.tokens_separate} tokens separately, {len(together)} as a tree")
    print(f"losses agree: {abs(loss.item() - separate) < 1e-3 * max(1, abs(separate))}")


if __name__ == "__main__":
    main()
