"""One of two processes of verl's actor: `torchrun --nproc-per-node 2 two_processes.py MODEL OUT`."""

import os
import sys
from pathlib import Path

import torch
from trainers.episodes import guessed, programmed, stripped
from verl_engines import FSDPEngineWithLMHead, TreeEngine, engine_of, loss_of, rows_of, step_of, with_options

MODEL, OUT = map(Path, sys.argv[1:])


def main() -> None:
    """Compute gradients with verl's engine and with ours, and save those of the first process."""
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    own = [[stripped()], [programmed(), guessed("compact:every=3"), guessed(max_steps=3)]]
    rows = rows_of([*own[rank], guessed(), guessed(max_steps=2)], seed=rank)
    budget = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 300, "global_batch_size": 2 * len(rows)}
    found: dict[str, object] = {}
    for name, kind in (("own", FSDPEngineWithLMHead), ("tree", TreeEngine)):
        outputs, found[name] = step_of(engine_of(kind, MODEL), with_options(rows, **budget), loss_of())
        print(rank, name, len(rows), len(outputs["loss"]), outputs["metrics"].get("envsdk/tree_ratio"))
    torch.save(found, OUT / f"{rank}.pt")


if __name__ == "__main__":
    main()
