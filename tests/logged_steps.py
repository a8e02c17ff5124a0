"""Logs of another system's steps, such as `from_steps` takes: long ones of each kind."""

import numpy as np

from envsdk.trainers.foreign import LoggedStep

KINDS = ["never extends", "always extends", "two agents", "strips", "many agents", "alike, of all lengths"]


def made_log(kind: str, count: int) -> list[LoggedStep]:
    """A log of so many steps."""
    rng, steps, ends = np.random.default_rng(0), list[LoggedStep](), [[1], [2]]
    for index in range(count):
        if kind == "alike, of all lengths":  # each has all tokens of the last in common with it but the last
            prompt = [*range(1000, 1000 + index), 2]
        elif kind == "many agents":  # each context has a length of its own
            turn, agent = divmod(index, count // 5)
            said = [agent + 1000] * (agent + count // 5)
            prompt = [*[*said, 7] * turn, *said]
        else:
            end = ends[index % 2 if kind == "two agents" else 0]
            new = rng.integers(3, 100, 2000 if kind == "never extends" else 10).tolist()
            prompt = [*end, *new]
            if kind != "never extends":
                end += new if kind == "strips" else [*new, 7]
        steps.append(LoggedStep(np.array(prompt, np.int32), np.array([7], np.int32)))
    return steps
