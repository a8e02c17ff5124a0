"""A real language model plays GuessNumber, and a trainer's forward pass reads the sampled tokens.

Run it with `python examples/real_model.py FOLDER`, the folder of any causal language model that transformers loads,
with its tokenizer and its chat template; `pip install 'envsdk[torch]'` has what it needs. Nothing is downloaded. The
episodes are played twice, with everything kept and with the history that the model's own template shows. Before the
first update, sampler and trainer have the same weights, so k1, k2 and k3 are zero up to rounding.
"""
# pyright: basic, reportMissingImports=false

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import transformers
from onpolicy_check import Recorder, trained_log

import envsdk
from envsdk import Trajectory
from envsdk.diagnostics import KL, TokenMatch, forward_logprobs, kl, token_match
from envsdk.policies import TransformersPolicy
from envsdk.rollouts import rollout_many

TOLERANCE = 1e-5
HISTORIES = ("keep", "strip")


def play(policy: Any, folder: Path, history: str, episodes: int, max_steps: int) -> list[Trajectory]:
    """Play one episode for each seed, one after the other; the tokenizer and the template are those of the model."""

    def make_env() -> envsdk.Env:
        options: Any = {"renderer": "auto", "tokenizer": folder, "history": history, "limits": {"max_steps": max_steps}}
        return envsdk.make("envsdk/GuessNumber-v1", **options)

    return rollout_many(make_env, policy, seeds=range(episodes), max_concurrency=1)


def compare(model: Any, recorder: Recorder, trajectories: list[Trajectory]) -> tuple[TokenMatch, KL]:
    """Compare the samples with the sampled tokens, and the trainer's log-probabilities with the sampler's."""
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    sampled, trained = recorder.log, trained_log(samples)
    match = token_match(
        [tokens for key in trained for tokens in sampled[key]], [tokens for key in trained for tokens in trained[key]]
    )
    return match, kl(samples, forward_logprobs(model, samples))


def problems(trajectories: list[Trajectory], match: TokenMatch, found: KL) -> list[str]:
    """Return the violated expectations."""
    wrong = [f"{t.id} failed: {t.error}" for t in trajectories if t.status == "error"]
    cut = sum(step.finish_reason != "stop" for t in trajectories for step in t.steps)
    wrong += [f"{cut} replies did not end by themselves"] if cut else []
    wrong += [f"token match: {match}"] if match.share < 1 else []
    return wrong + ([] if max(abs(found.all.k1), found.all.k2, found.all.k3) < TOLERANCE else [f"{found.all}"])


def main() -> int:
    """Play and compare, under each history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the model's folder, as save_pretrained writes it")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--max-steps", type=int, default=6, help="of an episode")
    parser.add_argument("--max-tokens", type=int, default=256, help="of a reply")
    parser.add_argument("--temperature", type=float, default=0.7)
    options = parser.parse_args()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.folder, dtype="float32", local_files_only=True
    ).eval()
    wrong: list[str] = []
    for history in HISTORIES:
        # The policy has the tokenizer of the folder that the model was loaded from.
        policy = TransformersPolicy(model, temperature=options.temperature, max_tokens=options.max_tokens)
        recorder = Recorder(policy)
        trajectories = play(recorder, options.folder, history, options.seeds, options.max_steps)
        match, found = compare(model, recorder, trajectories)
        steps = [len(trajectory.steps) for trajectory in trajectories]
        ends = Counter(trajectory.stop_reason for trajectory in trajectories)
        print(f"{history}: {len(steps)} episodes of {min(steps)} to {max(steps)} steps, ended by {dict(ends)}")
        print(f"  tokens: {match}")
        print(f"  sampler against trainer: {found.all}", flush=True)
        wrong += [f"{history}: {problem}" for problem in problems(trajectories, match, found)]
    print("\n".join(f"FAILED: {problem}" for problem in wrong) or "All holds.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
