"""Compare the replies of a group with each other, by a judge."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAIR = """\
First reply, up to the line {boundary}:
{first}
{boundary}
Second reply, up to the line {boundary}:
{second}
{boundary}"""


async def compare(
    judge: Callable[[str, Any], Awaitable[float | None]], replies: Sequence[str], target: Any = None
) -> "NDArray[np.float64]":
    """Compare each pair of replies, in both orders, because judges prefer a position.

    ```python
    judge = rewards.judge(policy, "Is the first reply better?", verdicts={"first": 1.0, "second": 0.0, "tie": 0.5})
    wins = await rewards.compare(judge, [reply_of(trajectory) for trajectory in group])
    earned = credit.win_rates(wins)
    grouped = credit.group_advantages(
        samples, rewards={t.id: dict.fromkeys(t.contexts, reward) for t, reward in zip(group, earned)}
    )
    ```

    Args:
        judge: Returns how much better the first of two replies is, from 0 to 1; None if it cannot tell. It is called
            with a text that holds both replies, and the target, as `rewards.judge` is.
        replies: The replies of a group, at least two.
        target: What they are judged by; see `rewards.judge`.

    Returns:
        float64, shape (n, n): at (i, j) the mean of what the judge said in both orders for reply i against reply j, NaN
        if it could not tell in either; 0.5 on the diagonal.

    Raises:
        ConfigError: If there are fewer than two replies, or one is not a text.
        Exception: Any exception of the judge.
    """
    if len(replies) < 2 or not all(isinstance(reply, str) for reply in replies):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"replies is {replies!r:.80}; expected at least two texts")
    pairs = list(combinations(range(len(replies)), 2))
    both = [*pairs, *((second, first) for first, second in pairs)]
    found = await asyncio.gather(*(judge(_pair(replies[first], replies[second]), target) for first, second in both))
    wins = np.full((len(replies), len(replies)), np.nan)
    np.fill_diagonal(wins, 0.5)
    for (first, second), there, back in zip(pairs, found[: len(pairs)], found[len(pairs) :], strict=True):
        said = [score for score in (there, None if back is None else 1.0 - back) if score is not None]
        if said:
            wins[first, second] = sum(said) / len(said)
            wins[second, first] = 1.0 - wins[first, second]
    return wins


def _pair(first: str, second: str) -> str:
    """Return a text with both replies. Neither can contain the line between them, which is a hash of both."""
    digest = hashlib.blake2b(f"{len(first)} {first}{second}".encode(), digest_size=8).hexdigest()
    return _PAIR.format(boundary=f"--- {digest} ---", first=first, second=second)
