"""One of two processes that train together: `torchrun --nproc-per-node 2 two_processes.py MODEL OUT tree|separate`."""

import os
import sys
from functools import partial
from pathlib import Path

import torch
import transformers
from test_trees import CONFIG, Doubts, Thinker, TreeTrainer
from trl import GRPOConfig

import envsdk
from envsdk import Env
from envsdk.rendering.tokenizers._load import DATA
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func

MODEL, OUT, KIND = sys.argv[1:]
OWN = {"per_device_train_batch_size": 2, "learning_rate": 0.1, "optim": "sgd", "ddp_backend": "gloo"}


def main() -> None:
    """Train one step, and save the weights of this process, with the trees that it played."""
    torch.set_num_threads(1)
    load = partial(transformers.AutoModelForCausalLM.from_pretrained, MODEL, dtype="float32")
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    renderer = envsdk.get_renderer("qwen3", envsdk.load_tokenizer("embedded"))

    def make_env(env_id: str) -> Env:
        return Doubts(renderer=renderer, history="strip")

    policy = Thinker(renderer, load().eval())
    policy.calls = 100 * int(os.environ["RANK"])  # so that the processes play different rollouts
    trainer = TreeTrainer(
        model=load(),
        processing_class=transformers.PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"), **names),
        args=GRPOConfig(output_dir=OUT, **CONFIG | OWN),
        train_dataset=dataset("any", [0, 1]),
        rollout_func=RolloutFunc(make_env, policy, max_concurrency=1),
        reward_funcs=reward_func,
    )
    trainer.separate = KIND == "separate"
    trainer.train()
    rank = trainer.accelerator.process_index
    weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    played = [row.tree.tokens.tolist() for row in trainer.rollout_func.tree_rows["train"].rows]
    torch.save({"weights": weights, "played": played}, Path(OUT) / f"{KIND}-{rank}.pt")


if __name__ == "__main__":
    main()
