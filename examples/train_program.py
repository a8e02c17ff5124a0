"""Train a language model in your own environment, such as an existing agent program.

Run it with `python examples/train_program.py module:Class --model FOLDER`: the class of the environment, in a module of
the current folder, and a model with its tokenizer, as `save_pretrained` writes them. `pip install 'envsdk[torch]'` has
what it needs, and `envsdk[gateway]` what agent programs need. Nothing is downloaded.

`--template FILE` replaces the model's chat template: `examples/tools.jinja` for a model whose template has no tools.
`--warm-up-steps N` first fits the model to episodes of the environment's reference policy.

Each update plays a group of episodes for each of several tasks, and takes one step of Adam: REINFORCE, with the rest of
the group as the baseline. Before it, k1 between sampler and trainer is compared with 0.001. `--out` has the episodes of
each update for `envsdk view`, and the trained model.
"""
# pyright: basic, reportMissingImports=false

import argparse
import shutil
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from train_reinforce import BETAS, REAL, Task, update, warm_up

from envsdk import Trajectory, get_renderer
from envsdk.authoring import find_class
from envsdk.policies import TransformersPolicy, load_model
from envsdk.rollouts import Rollouts


def comparable(trajectories: list[Trajectory]) -> list[Trajectory]:
    """Return the scored episodes whose group has another scored episode to compare with."""
    scored = [one for one in trajectories if one.scored_reward is not None and one.steps]
    sizes = Counter(one.group_id for one in scored)
    return [one for one in scored if sizes[one.group_id] > 1]


def main() -> None:
    """Play and train alternately, and print a line for each update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", metavar="module:Class", help="the environment")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--template", type=Path, metavar="FILE", help="the model's chat template, if not its own")
    parser.add_argument("--warm-up-steps", type=int, default=0)
    parser.add_argument("--warm-up-rate", type=float, default=REAL["warm_up_rate"])
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=4, help="how many tasks an update has")
    parser.add_argument("--group-size", type=int, default=4, help="how many episodes a task has")
    parser.add_argument("--max-tokens", type=int, default=64, help="of a reply")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--out", type=Path, default=Path("runs/trained"))
    options = parser.parse_args()
    sys.path.insert(0, str(Path.cwd()))  # Python has put the folder of this file there
    template = (
        {"name": "fixed_base", "template": options.template.read_text()} if options.template else {"name": "auto"}
    )
    renderer = get_renderer(tokenizer=options.model, **template)
    make_env = partial(find_class(options.env), renderer=renderer)
    model = load_model(options.model)
    if options.warm_up_steps:
        steps = {**REAL, "warm_up_steps": options.warm_up_steps, "warm_up_rate": options.warm_up_rate}
        print(f"warmed up to {warm_up(model, 0, Task(make_env, **steps)):.3f} nats per token", flush=True)
    policy = TransformersPolicy(model, renderer.tokenizer, max_tokens=options.max_tokens, policy_version=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate, betas=BETAS)
    for number in range(options.updates):
        began = time.monotonic()
        rollouts = Rollouts(
            make_env,
            policy,
            seeds=range(number * options.tasks, (number + 1) * options.tasks),
            group_size=options.group_size,
            policy_timeout_s=None,  # this machine samples as fast as it can
            out=options.out / f"update-{number}",
        )
        trajectories = rollouts.run()
        if not (chosen := comparable(trajectories)):
            raise SystemExit(f"no episode was scored: {trajectories[0].reward_text}, {trajectories[0].error}")
        print(f"update {number}: mean reward {rollouts.statistics.mean_reward:.3f}", end=", ")
        print(f"scored {rollouts.statistics.tally.scored} of {len(trajectories)}", end=", ", flush=True)
        done = update(model, optimizer, chosen)
        policy.refresh()  # the weights are new, and so is the policy's version
        print(f"k1 {done.k1:.1e} nats per token, {time.monotonic() - began:.0f} s", flush=True)
    model.save_pretrained(trained := options.out / "model")
    for file in options.model.iterdir():  # the tokenizer
        if file.is_file() and not (trained / file.name).exists() and "safetensors" not in file.name:
            shutil.copy(file, trained)
    if options.template:
        shutil.copy(options.template, trained / "chat_template.jinja")  # servers of the model then render as here
    print(f"wrote {trained}")


if __name__ == "__main__":
    main()
