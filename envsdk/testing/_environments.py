"""The conformance checks of environments."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from .._visible import brief, visible
from ..authoring._driver import seeds_of
from ..authoring._loop_tasks import in_event_loop
from ..errors import ConfigError, UnknownName
from . import _env_attacks as env_attacks
from . import _env_checks as env_checks
from . import _env_determinism as env_determinism
from ._env_episodes import ENDS, EpisodeFailed, Episodes, NoEnd, TimeLimitExceeded, cause_of, closing
from ._env_subject import EnvLike, Subject
from ._reports import Check, CheckFailure, CheckReport, NotPossible, described


@dataclass(frozen=True, slots=True)
class EnvCheck(Check):
    """The result of one check of an environment."""

    seed: int | None = None
    """The seed of the episode that fails; None if the check passes."""
    command: str = ""
    """A command that repeats the failure; empty if it passes, or if only this process knows the environment."""
    seconds: float = 0.0
    """The time that the check took, in seconds."""
    same_as: str = ""
    """The name of a failed check with the same cause. This check is then `NOT POSSIBLE`."""

    def __str__(self) -> str:
        return f"{Check.__str__(self)}{visible(_reproduction(self))}"


class EnvReport(CheckReport[EnvCheck]):
    """The results of all checks of one environment."""

    @property
    def env(self) -> str:
        """The environment's id, or the name of its class."""
        return self.subject

    def describe(self, check: EnvCheck) -> str:
        """Describe a failure, with its seed and the command that repeats it."""
        return f"{check.name}: {check.detail}{_reproduction(check)}"


def _reproduction(check: EnvCheck) -> str:
    seed = "" if check.seed is None else f" (seed {check.seed})"
    return f"{seed}\n{'':12} {check.command}" if check.command else seed


OnProgress: TypeAlias = Callable[[str, EnvCheck | None], None]
"""A function of the name of a check and its result; None when the check starts."""


class _EnvCheckKind(NamedTuple):
    function: Callable[[Episodes], str | None]
    compares_seeds: bool = False
    """True if several seeds are needed to repeat a failure."""


CHECKS: dict[str, _EnvCheckKind] = {
    ENDS: _EnvCheckKind(env_checks.episodes_end),
    "gymnasium checker": _EnvCheckKind(env_checks.gymnasium_checker),
    "calls out of order": _EnvCheckKind(env_checks.calls_out_of_order),
    "reward range": _EnvCheckKind(env_checks.reward_range),
    "reference policy": _EnvCheckKind(env_checks.reference_policy),
    "null policy": _EnvCheckKind(env_checks.null_policy, compares_seeds=True),
    "random policy": _EnvCheckKind(env_checks.random_policy),
    "every option": _EnvCheckKind(env_checks.every_option),
    "distinct tasks": _EnvCheckKind(env_checks.distinct_tasks, compares_seeds=True),
    "splits": _EnvCheckKind(env_checks.splits, compares_seeds=True),
    "same bytes": _EnvCheckKind(env_determinism.same_bytes),
    "same bytes in another process": _EnvCheckKind(env_determinism.same_bytes_elsewhere),
    "no global random state": _EnvCheckKind(env_determinism.no_global_random_state),
    "reset clears state": _EnvCheckKind(env_determinism.reset_clears_state),
    "copies": _EnvCheckKind(env_determinism.copies),
    "forks": _EnvCheckKind(env_determinism.forks),
    "step and rollout": _EnvCheckKind(env_determinism.step_and_rollout),
    "specification": _EnvCheckKind(env_determinism.specification),
    "declared observations": _EnvCheckKind(env_checks.declared_observations),
    "history policies": _EnvCheckKind(env_checks.history_policies),
    "images": _EnvCheckKind(env_checks.images),
    "garbage replies": _EnvCheckKind(partial(env_attacks.answer_all, replies=env_attacks.garbage)),
    "injected text": _EnvCheckKind(partial(env_attacks.answer_all, replies=env_attacks.injected)),
    "enormous replies": _EnvCheckKind(partial(env_attacks.answer_all, replies=env_attacks.enormous, times=1)),
    "cut replies": _EnvCheckKind(partial(env_attacks.answer_all, replies=env_attacks.cut)),
    "tool errors": _EnvCheckKind(env_attacks.tool_errors),
}
"""All checks by name, in the order in which they run. If episodes do not end, no further check runs."""
_CREATION = "it can be created"


def check_env(
    env: EnvLike,
    *,
    seeds: int | str | range = 16,
    only: str | None = None,
    on_progress: OnProgress | None = None,
    command_line: str = "",
) -> EnvReport:
    """Run the conformance checks of an environment.

    Args:
        env: An id, a class, a function that creates an environment, or an environment, which is copied. Prefer an id
            or a class, because some checks are not possible for an object.
        seeds: The seeds: a number N, for 0 to N - 1; or a range. Checks that run additional episodes use only the
            first of them.
        only: The name of a single check to run; see `CHECKS`.
        on_progress: A function that is called when each check starts, with its name and None, and when it ends, with
            its name and its result.
        command_line: The command that checks the environment, to which the options that repeat a check are added; by
            default, it is derived from `env`.

    Returns:
        A report. In a test, call its `raise_if_failed()`. An exception of the environment is a failure. A check that
        does not apply to the environment, or cannot run, is `NOT POSSIBLE`, which is not a failure. If several checks
        fail for the same cause, only the first is a failure, and the others refer to it (`EnvCheck.same_as`).

    Raises:
        UnknownName: If no environment has that id, or no check has that name.
        ConfigError: If `env` has another type, or there are no seeds.
    """
    chosen_seeds = seeds_of(seeds)
    if not (isinstance(chosen_seeds, range) and chosen_seeds.step == 1 and chosen_seeds and chosen_seeds[0] >= 0):
        raise ConfigError(
            f"seeds is {brief(seeds)}; expected their number, such as 16, or a range, such as range(5, 8)"
        )
    if only is not None and only not in CHECKS:
        raise UnknownName.of("check", only, CHECKS)
    subject = replace(Subject.of(env), command_line=command_line)
    chosen = CHECKS if only is None else {only: CHECKS[only]}
    progress: OnProgress = on_progress or (lambda name, check: None)
    arguments = subject, chosen_seeds, chosen, progress
    if in_event_loop():  # as in a notebook: a second event loop needs its own thread
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_check_all, *arguments).result()
    return _check_all(*arguments)


def _check_all(subject: Subject, seeds: range, chosen: dict[str, _EnvCheckKind], on_progress: OnProgress) -> EnvReport:
    report = EnvReport(subject.name)
    reported: dict[str, str] = {}  # the name of the failed check for each cause
    states = random.getstate(), np.random.get_state()
    try:
        try:
            episodes = Episodes(subject, seeds)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment may raise anything
            report.checks.append(EnvCheck(_CREATION, "FAIL", f"it raises {described(error)}"))
            on_progress(_CREATION, report.checks[0])
            return report
        with closing(episodes.sample):
            for name, kind in chosen.items():
                on_progress(name, None)
                has_end = not any(check.name == ENDS and check.verdict == "FAIL" for check in report.checks)
                missing = EnvCheck(name, "NOT POSSIBLE", f'the episodes do not end: see "{ENDS}"', same_as=ENDS)
                report.checks.append(_check(episodes, name, kind, reported) if has_end else missing)
                on_progress(name, report.checks[-1])
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return report


def _check(episodes: Episodes, name: str, kind: _EnvCheckKind, reported: dict[str, str]) -> EnvCheck:
    """Run a check, and convert exceptions to a result."""
    episodes.seed = None
    started = time.perf_counter()
    verdict, detail, seed, cause = "FAIL", "", None, ""  # the cause is equal for all checks that fail for it
    try:
        verdict, detail = "PASS", kind.function(episodes) or ""
    except CheckFailure as failure:
        detail, seed = str(failure), episodes.seed if failure.seed is None else failure.seed
        cause = "" if failure.__cause__ is None else cause_of(failure.__cause__)
    except NotPossible as error:
        verdict, detail = "NOT POSSIBLE", str(error)
    except EpisodeFailed as failed:  # one check reports it; for the others there is no episode to examine
        detail, seed, cause = str(failed), failed.seed, failed.cause
        if failed.check != name:
            verdict, detail = "NOT POSSIBLE", f'the episode fails: see "{failed.check}" ({failed})'
    except NoEnd as error:
        verdict, detail = "NOT POSSIBLE", f'{error}: see "{ENDS}"'
    except TimeLimitExceeded as error:
        detail, seed = str(error), episodes.seed
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an environment may raise anything
        detail, seed, cause = f"it raises {described(error)}", episodes.seed, cause_of(error)
    seconds = time.perf_counter() - started
    if cause in reported:
        return EnvCheck(name, "NOT POSSIBLE", f'see "{reported[cause]}"', seconds=seconds, same_as=reported[cause])
    if verdict != "FAIL":
        return EnvCheck(name, verdict, detail, seconds=seconds)
    if cause:
        reported[cause] = name
    seeds = episodes.seeds if kind.compares_seeds or seed is None else range(seed, seed + 1)
    return EnvCheck(name, verdict, detail, seed, episodes.subject.command(name, seeds), seconds)
