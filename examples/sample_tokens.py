"""Print the tokens of a sample: the text, the role and the mask of each, and the tokens that a break left out.

Run it with `python examples/sample_tokens.py`. Trained tokens are between brackets.
"""

from itertools import groupby

import envsdk
from envsdk import Sample


def runs(sample: Sample) -> list[tuple[str | None, bool, list[int]]]:
    """Return the tokens of a sample in runs with one role and one mask."""
    assert sample.roles is not None
    labels, mask = sample.roles.labels(), sample.mask.tolist()
    positions = groupby(range(len(sample)), key=lambda i: (labels[i], mask[i]))
    return [(role, trained, [int(sample.tokens[i]) for i in run]) for (role, trained), run in positions]


def main() -> None:
    """Play an episode whose thinking is stripped at each question, and print its first two samples."""
    env = envsdk.make("envsdk/MathChat-v0", history="strip", renderer="qwen3", tokenizer="embedded", questions=2)
    env.records_roles = True
    trajectory = envsdk.rollout(env, "reference", seed=0)
    for sample in trajectory.samples()[:2]:
        print(f"sample {sample.segment_index}: {len(sample)} tokens, {int(sample.mask.sum())} of them trained")
        for role, trained, tokens in runs(sample):
            text = repr(env.renderer.tokenizer.decode(tokens))
            print(f"  {role!s:20} {f'[{text}]' if trained else text}")
    for break_ in trajectory.breaks[:1]:
        print(f"between them, {break_.reason} kept {break_.kept} tokens and dropped {break_.dropped}")


if __name__ == "__main__":
    main()
