"""The conformance kit of history policies: ours pass it, and policies with a bug do not."""

import random
import threading
from typing import Any

import pytest
from pydantic import PrivateAttr

from envsdk import HistoryPolicy
from envsdk.errors import ConfigError
from envsdk.history import History, Rewrite
from envsdk.testing import check_history

OURS: list[Any] = [
    "keep",
    "strip",
    "compact:every=3",
    {"name": "budget", "max_tokens": 700},
    {"name": "budget", "max_tokens": 700, "order": ["oldest"]},
    {"name": "summarize", "threshold": 900},
    "planned",
    {"name": "planned", "max_tokens": 700, "drops": ["oldest"], "keep_last": 2},
    {"name": "planned", "at": [4, 9, 11]},
]


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("history", OURS, ids=str)
def test_our_history_policies_conform(history: Any):
    report = check_history(history).raise_if_failed()
    assert report.checks[0].detail.endswith("stop reason: terminated")
    assert (" 0 breaks" in report.checks[0].detail) == (history == "keep")


def since_last(history: History, rounds: int, reason: Any = "compaction") -> Rewrite | None:
    replies = [i for i, message in enumerate(history.messages) if message.role == "assistant"]
    return Rewrite(history.opening, history.messages[replies[-2] :], reason) if len(replies) > rounds else None


class CountsInItself(HistoryPolicy):
    """Drops the past at every fifth call, whichever context calls."""

    _calls: int = PrivateAttr(default=0)

    def view(self, history: History) -> Rewrite | None:
        self._calls += 1
        return None if self._calls % 5 else since_last(history, 2)


class ThrowsDice(HistoryPolicy):
    def view(self, history: History) -> Rewrite | None:
        return since_last(history, 2) if random.random() < 0.4 else None


class DropsACallOfAResult(HistoryPolicy):
    def view(self, history: History) -> Rewrite | None:
        if len(history.messages) <= 8:
            return None
        return Rewrite(history.opening, history.messages[-3:], "compaction")


class CannotBeForked(HistoryPolicy):
    def view(self, history: History) -> Rewrite | None:
        history.state["lock"] = threading.Lock()
        return None


class GivesNoReason(HistoryPolicy):
    def view(self, history: History) -> Rewrite | None:
        return since_last(history, 2, "because")


class HoldsAConnection(HistoryPolicy):
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def view(self, history: History) -> Rewrite | None:
        return None


class CountsRounds(HistoryPolicy):
    """As it should be: what it remembers is in the state of the context."""

    def view(self, history: History) -> Rewrite | None:
        history.state["calls"] = history.state.get("calls", 0) + 1
        return None if history.state["calls"] % 5 else since_last(history, 2)


@pytest.mark.parametrize(
    ("policy", "check", "detail"),
    [
        (CountsInItself(), "one object serves many contexts", "history.state"),
        (ThrowsDice(), "same replies, same prompts", "differ at step"),
        (DropsACallOfAResult(), "tool results keep their calls", "the call that it answers was dropped"),
        (CannotBeForked(), "forks", "EpisodeError"),
        (GivesNoReason(), "it can be played", "UndeclaredBreak"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, HistoryPolicy) else "",
)
def test_a_policy_with_a_bug_fails_and_the_report_names_where(policy: HistoryPolicy, check: str, detail: str):
    failed = {failed.name: failed.detail for failed in check_history(policy).failed}
    assert detail in failed[check]


def test_a_policy_whose_memory_is_in_the_state_of_the_context_conforms():
    check_history(CountsRounds()).raise_if_failed()


def test_an_episode_that_fails_is_one_failure():
    report = check_history(GivesNoReason())
    assert [check.verdict for check in report.checks] == ["FAIL", *["NOT POSSIBLE"] * 4]


def test_a_policy_that_cannot_be_copied_is_not_checked():
    checks = check_history(HoldsAConnection()).checks
    assert {check.verdict for check in checks} == {"NOT POSSIBLE"}
    assert "cannot be copied" in checks[0].detail


def test_one_step_is_too_few():
    with pytest.raises(ConfigError, match="at least 2"):
        check_history("keep", steps=1)
