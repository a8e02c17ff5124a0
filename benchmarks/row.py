"""What a row of the benchmarks is: its workload in words, its contenders, and the targets for envsdk."""

from dataclasses import dataclass
from typing import Literal

from .contender import Size

Unit = Literal["s", "bytes", "tokens"]


@dataclass(frozen=True)
class Entry:
    """A contender of a row.

    Attributes:
        name: Its name in the table, as its function is registered.
        environment: The environment of packages that it runs in: the folder of its module.
    """

    name: str
    environment: str


@dataclass(frozen=True)
class Target:
    """How envsdk's figure must compare with others' at some sizes: at most `factor` times the smallest of them.

    Attributes:
        factor: Below 1 where envsdk must be ahead.
        of: The contenders that it is compared with.
        at: The sizes; all if there are none.
    """

    factor: float
    of: tuple[str, ...]
    at: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Growth:
    """How envsdk's figure may grow with the size: at most like the size to the power of `exponent`; 0 is flat."""

    exponent: float


@dataclass(frozen=True)
class Bound:
    """What envsdk's figure must not exceed, in the row's unit."""

    limit: float


AnyTarget = Target | Growth | Bound


def at_most(factor: float, *of: str, at: tuple[Size, ...] = ()) -> Target:
    """The target that envsdk costs at most `factor` times the cheapest of some contenders."""
    return Target(factor, of, at)


def ahead(factor: float, *of: str, at: tuple[Size, ...] = ()) -> Target:
    """The target that the cheapest of some contenders costs at least `factor` times as much as envsdk."""
    return Target(1 / factor, of, at)


@dataclass(frozen=True)
class Row:
    """A workload that is run with several projects.

    Attributes:
        id: Its name on the command line and in file names.
        title: Its heading.
        measures: What one figure is, in a few sentences.
        contenders: In the order of the table; the one named `envsdk` is ours.
        sizes: The sizes of the workload; numbers give a growth.
        size_name: What a size is called, such as `T`.
        quick_sizes: The sizes of a quick run.
        targets: What must hold for ours.
        unit: The unit of the figures.
        limit: The contender that is the limit: the part of the work that no implementation can avoid.
        repetitions: The most repetitions, without a warm-up, where one takes long; None for those of the run.
        cap_s: The longest time of one repetition, in seconds; None for that of the run. A contender that takes longer
            than the run allows gets one repetition.
    """

    id: str
    title: str
    measures: str
    contenders: tuple[Entry, ...]
    sizes: tuple[Size, ...]
    size_name: str
    quick_sizes: tuple[Size, ...]
    targets: tuple[AnyTarget, ...] = ()
    unit: Unit = "s"
    limit: str | None = None
    repetitions: int | None = None
    cap_s: float | None = None


OURS = "envsdk"
"""The name of our contender in every row."""
