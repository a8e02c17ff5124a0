"""The conformance kit of environments: what every one must do, whatever its task is."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from ..episodes.event_loops import in_event_loop
from ..errors import ConfigError, unknown_name
from ..visible import visible
from . import env_attacks, env_determinism, env_lifecycle, env_rewards, env_soundness, env_tasks, env_tools
from .env_differences import cause_of, told
from .env_plays import ENDS, NoEnd, PlayFailed, Plays, closed
from .env_subject import EnvLike, Subject
from .env_time import Overtime
from .reports import Check, CheckReport, Failure, NotPossible, Verdict


@dataclass(frozen=True, slots=True)
class EnvCheck(Check):
    """One thing that was checked of an environment."""

    seed: int | None = None
    """Of a failure: the seed of the episode in which it shows."""
    command: str = ""
    """Of a failure: what repeats it."""
    seconds: float = 0.0
    """How long it took."""
    same_as: str = ""
    """Where the cause is that of another check, which fails: its name. The check itself is then `NOT POSSIBLE`."""

    def __str__(self) -> str:
        return f"{Check.__str__(self)}{visible(_with(self))}"


class EnvReport(CheckReport[EnvCheck]):
    """All checks of one environment."""

    @property
    def env(self) -> str:
        """The environment's id, or the name of its class."""
        return self.subject

    def told(self, check: EnvCheck) -> str:
        """What differs, the seed, and what repeats it."""
        return f"{check.name}: {check.detail}{_with(check)}"


def _with(check: EnvCheck) -> str:
    seed = "" if check.seed is None else f" (seed {check.seed})"
    return f"{seed}\n{'':12} {check.command}" if check.command else ""


OnProgress: TypeAlias = Callable[[str, EnvCheck | None], None]


class _Kind(NamedTuple):
    function: Callable[[Plays], str | None]
    compares_seeds: bool = False
    """Whether one seed alone does not repeat a failure."""


CHECKS: dict[str, _Kind] = {
    ENDS: _Kind(env_lifecycle.episodes_end),
    "gymnasium checker": _Kind(env_lifecycle.gymnasium_checker),
    "calls out of order": _Kind(env_lifecycle.calls_out_of_order),
    "reward range": _Kind(env_rewards.reward_range),
    "reference policy": _Kind(env_rewards.reference_policy),
    "null policy": _Kind(env_rewards.null_policy, compares_seeds=True),
    "random policy": _Kind(env_rewards.random_policy),
    "every option": _Kind(env_rewards.every_option),
    "distinct tasks": _Kind(env_tasks.distinct_tasks, compares_seeds=True),
    "splits": _Kind(env_tasks.splits, compares_seeds=True),
    "same bytes": _Kind(env_determinism.same_bytes),
    "same bytes in another process": _Kind(env_determinism.same_bytes_elsewhere),
    "no global random state": _Kind(env_determinism.no_global_random_state),
    "reset starts afresh": _Kind(env_determinism.reset_starts_afresh),
    "copies": _Kind(env_determinism.copies),
    "forks": _Kind(env_determinism.forks),
    "step and rollout": _Kind(env_determinism.step_and_rollout),
    "specification": _Kind(env_determinism.specification),
    "declared observations": _Kind(env_soundness.declared_observations),
    "history policies": _Kind(env_soundness.history_policies),
    "garbage replies": _Kind(env_attacks.garbage_replies),
    "injected text": _Kind(env_attacks.injected_text),
    "enormous replies": _Kind(env_attacks.enormous_replies),
    "cut replies": _Kind(env_attacks.cut_replies),
    "tool errors": _Kind(env_tools.tool_errors),
}
"""All checks, by name, in the order in which they are made. Where episodes do not end, no other is made."""
_MAKING = "it can be made"


def check_env(
    env: EnvLike,
    *,
    seeds: int = 16,
    first_seed: int = 0,
    only: str | None = None,
    on_progress: OnProgress | None = None,
) -> EnvReport:
    """Check that an environment keeps what every environment promises.

    Args:
        env: Its id, its class, a function that makes one, or an environment, of which copies are checked. An id or a
            class is checked best: of an object some checks are not possible.
        seeds: How many seeds are played. Checks that play episodes of their own take the first few.
        first_seed: The first of them; the others count on.
        only: The name of a single check; see `CHECKS`.
        on_progress: Called as each check begins, with its name and None, and as it ends, with its name and itself.

    Returns:
        A report; `raise_if_failed()` makes a test of it. What the environment raises is a failure in it. A check that
        makes no sense for the environment, or cannot be made, is `NOT POSSIBLE`, which is no failure. What makes
        several checks fail is one failure, that of the first; the others name it (`EnvCheck.same_as`).

    Raises:
        UnknownName: If there is no environment of that id, or no check of that name.
        ConfigError: If `env` is none, or there is no seed.
    """
    if seeds < 1 or first_seed < 0:
        raise ConfigError(f"seeds is {seeds} and first_seed {first_seed}; expected at least 1 and at least 0")
    if only is not None and only not in CHECKS:
        raise unknown_name("check", only, CHECKS)
    subject = Subject.of(env)
    chosen = CHECKS if only is None else {only: CHECKS[only]}
    arguments = subject, range(first_seed, first_seed + seeds), chosen, on_progress or _no_progress
    if in_event_loop():  # such as a notebook's, in which no other can run
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_check_all, *arguments).result()
    return _check_all(*arguments)


def _no_progress(name: str, check: EnvCheck | None) -> None:
    """Report nothing."""


def _check_all(subject: Subject, seeds: range, chosen: dict[str, _Kind], on_progress: OnProgress) -> EnvReport:
    report = EnvReport(subject.name)
    reported: dict[str, str] = {}  # for each cause, the check that reports it
    states = random.getstate(), np.random.get_state()
    try:
        try:
            plays = Plays(subject, seeds)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment is anybody's code
            report.checks.append(EnvCheck(_MAKING, "FAIL", f"it raises {told(error)}"))
            on_progress(_MAKING, report.checks[0])
            return report
        with closed(plays.sample):
            for name, kind in chosen.items():
                on_progress(name, None)
                has_end = not any(check.name == ENDS and check.verdict == "FAIL" for check in report.checks)
                missing = EnvCheck(name, "NOT POSSIBLE", f'the episodes do not end: see "{ENDS}"', same_as=ENDS)
                report.checks.append(_check(plays, name, kind, reported) if has_end else missing)
                on_progress(name, report.checks[-1])
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return report


def _check(plays: Plays, name: str, kind: _Kind, reported: dict[str, str]) -> EnvCheck:
    plays.seed = None
    started = time.perf_counter()
    verdict, detail, seed, cause = _verdict(plays, name, kind.function)
    seconds = time.perf_counter() - started
    if cause in reported:
        return EnvCheck(name, "NOT POSSIBLE", f'see "{reported[cause]}"', seconds=seconds, same_as=reported[cause])
    if verdict != "FAIL":
        return EnvCheck(name, verdict, detail, seconds=seconds)
    if cause:
        reported[cause] = name
    first, count = (plays.seeds[0], len(plays.seeds)) if kind.compares_seeds or seed is None else (seed, 1)
    return EnvCheck(name, verdict, detail, seed, plays.subject.command(name, first, count), seconds)


class _Outcome(NamedTuple):
    verdict: Verdict
    detail: str
    seed: int | None = None
    """Of a failure: the seed of the last episode."""
    cause: str = ""
    """What is the same for all checks that fail because of it; empty if that is not known."""


def _verdict(plays: Plays, name: str, function: Callable[[Plays], str | None]) -> _Outcome:
    """What a check says."""
    try:
        return _Outcome("PASS", function(plays) or "")
    except Failure as failure:
        cause = "" if failure.__cause__ is None else cause_of(failure.__cause__)
        return _Outcome("FAIL", str(failure), plays.seed if failure.seed is None else failure.seed, cause)
    except NotPossible as error:
        return _Outcome("NOT POSSIBLE", str(error))
    except PlayFailed as failed:  # one check tells it; others have nothing to look at
        if failed.check == name:
            return _Outcome("FAIL", str(failed), failed.seed, failed.cause)
        return _Outcome("NOT POSSIBLE", f'the episode fails: see "{failed.check}" ({failed})', cause=failed.cause)
    except NoEnd as error:
        return _Outcome("NOT POSSIBLE", f'{error}: see "{ENDS}"')
    except Overtime as error:
        return _Outcome("FAIL", str(error), plays.seed)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an environment is anybody's code; whatever it raises is its failure
        return _Outcome("FAIL", f"it raises {told(error)}", plays.seed, cause_of(error))
