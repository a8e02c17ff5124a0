"""The rule that decides whether an episode was scored, for means, comparisons, reports and the viewer.

An episode that was not scored did not earn 0. Its reward means nothing, so means and intervals leave it out.
"""

from ..limits import StopReason

NO_REWARD = "no reward"
DEADLINE = "deadline"
_INTERRUPTED = (StopReason.ABORTED, StopReason.IDLE, StopReason.SHUTDOWN)
"""Ends that neither the model nor the environment decided."""


def ending(status: str, stop_reason: str) -> str:
    """Return how an episode ended, with the reason where it says more: `terminated`, `truncated (max_steps)`."""
    return status if stop_reason in ("", status) else f"{status} ({stop_reason})"


def is_judged(status: str, stop_reason: str, *, has_reward: bool) -> bool:
    """Return whether the reward of an episode means something, if the episode did not fail.

    One that reached a limit counts as judged: it earned nothing until then. One that terminated without a reward in any
    turn does not, nor one that was interrupted from outside.

    Args:
        status: `Trajectory.status`.
        stop_reason: `Trajectory.stop_reason`.
        has_reward: Whether any turn had a reward, or the context has its own.
    """
    return has_reward or (status != "terminated" and stop_reason not in _INTERRUPTED)


def why_not_scored(
    *, status: str, stop_reason: str, error: str | None, error_kind: str | None, has_reward: bool
) -> str:
    """Return why an episode was not scored; empty if it was.

    Args:
        status: `Trajectory.status`; and so for the next three.
        stop_reason: Why it ended.
        error: What failed.
        error_kind: Whose error it was.
        has_reward: Whether any turn had a reward, or the first context has its own.

    Returns:
        `deadline`, or `environment error`, `policy error`, `infrastructure error` or `error` (it was not recorded
        whose) for an episode that failed; `no reward` for one that nothing judged; the stop reason of one that was
        interrupted.
    """
    if status == "error":
        if (error or "").startswith(("DeadlineExceeded", "TimeoutError")):
            return DEADLINE
        return f"{error_kind} error" if error_kind else "error"
    if is_judged(status, stop_reason, has_reward=has_reward):
        return ""
    return stop_reason if stop_reason in _INTERRUPTED else NO_REWARD
