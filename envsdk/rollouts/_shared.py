"""Single episodes that share a player, for trainers that request one episode after another from an event loop."""

import asyncio
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..policies._policy import PolicyLike
from ..trajectories._trajectory import Trajectory
from ._jobs import Job
from ._player import Player, PlaySettings


@dataclass(eq=False)
class _Shared:
    """A player, and the number of episodes that use it."""

    player: Player
    users: int = 0


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Shared]] = WeakKeyDictionary()


async def play_one(settings: PlaySettings, job: Job, policy: PolicyLike) -> Trajectory:
    """Play an episode. Episodes that run at the same time with equal settings share a player and its environments.

    Args:
        settings: How to play.
        job: The episode.
        policy: Its policy.

    Raises:
        Exception: What failed in the episode: after the retries, if it was an infrastructure error.
    """
    players = _open.setdefault(asyncio.get_running_loop(), [])
    shared = next((one for one in players if one.player.settings == settings), None)
    if shared is None:
        shared = _Shared(Player(settings))
        players.append(shared)
    shared.users += 1
    try:
        played = await shared.player.play(job, policy)
    finally:
        shared.users -= 1
        if not shared.users:
            players.remove(shared)
            await shared.player.aclose()
    if played.error is not None:
        raise played.error
    return played.trajectory
