"""Our samples next to those of a proxy that merges the steps whose prompts begin with the tokens of earlier steps."""

from collections import defaultdict
from typing import NamedTuple

from agent_programs.all_cases import RUNNABLE
from agent_programs.cases import played
from agent_programs.proxies import by_template, keeping_reasoning, proxied

from envsdk import Trajectory


class Cost(NamedTuple):
    """What there is to train.

    Attributes:
        samples: The number of samples.
        trained: The sampled tokens that are trained.
        tokens: All tokens of the samples: what a forward pass computes.
    """

    samples: int
    trained: int
    tokens: int

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Cost":
        samples = trajectory.samples()
        return cls(len(samples), sum(int(sample.mask.sum()) for sample in samples), sum(map(len, samples)))


def test_our_samples_are_fewer_and_shorter_than_those_of_a_merge_of_token_prefixes() -> None:
    rows: dict[str, list[tuple[int, Cost, Cost, Cost]]] = defaultdict(list)
    for case in RUNNABLE:
        run = played(case)
        ours = Cost.of(run.trajectory)
        others = (Cost.of(proxied(run, render)) for render in (by_template, keeping_reasoning))
        rows[case.name.partition(":")[0]].append((run.trajectory.sampled_tokens, ours, *others))
    rows["all"] = [row for each in list(rows.values()) for row in each]
    print(f"\n{'':24}{'sampled':>8}" + "".join(f"{name:>30}" for name in ("ours", "template", "keeping reasoning")))
    for name, each in rows.items():
        sampled = sum(row[0] for row in each)
        line = f"{name:24}{sampled:8}"
        for column in (1, 2, 3):
            samples, trained, tokens = (sum(values) for values in zip(*(row[column] for row in each), strict=True))
            line += f"{samples:8} {trained / sampled:9.1%} {tokens:11}"
        print(line)
    sampled = sum(row[0] for row in rows["all"])
    ours, template, keeping = (
        Cost(*map(sum, zip(*column, strict=True))) for column in list(zip(*rows["all"], strict=True))[1:]
    )
    assert ours.trained == sampled
    assert ours.samples < keeping.samples <= template.samples
    assert ours.tokens < keeping.tokens <= template.tokens
