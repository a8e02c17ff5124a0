"""Programs that hold several conversations at the same time, with a model on this machine."""

import asyncio
import contextlib
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch.nn")

import httpx
from parallel_conversations import TOKENIZER, Conversations, check, converse
from scripted_sessions import RunningGateway
from torch_models import tiny_qwen3

from envsdk import Trajectory, rollout
from envsdk.gateway._outside import PlayedSessions
from envsdk.policies import TransformersPolicy

pytestmark = pytest.mark.filterwarnings("default")
OPTIONS: dict[str, Any] = {"renderer": "qwen3", "tokenizer": "embedded"}
WIDTHS = pytest.mark.parametrize("width", [3, 50])


class Watched(TransformersPolicy):
    """A policy that knows how many replies it samples at the same time."""

    active = most_active = 0

    async def __call__(self, prompt: Any, **request: Any) -> Any:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            return await super().__call__(prompt, **request)
        finally:
            self.active -= 1


@cache
def model() -> Any:
    return tiny_qwen3().eval()


@WIDTHS
def test_the_conversations_of_an_environment_are_sampled_together(width: int):
    policy = Watched(model(), TOKENIZER)
    with contextlib.closing(Conversations(width, **OPTIONS)) as env:
        trajectory = rollout(env, policy, seed=0)
    check(trajectory, width)
    assert policy.most_active > 1 and policy.statistics.replies == 2 * width


@WIDTHS
def test_the_conversations_of_a_session_are_sampled_together(width: int):
    ended: list[Trajectory] = []
    policy = Watched(model(), TOKENIZER)
    with RunningGateway(PlayedSessions(policy, OPTIONS, on_trajectory=ended.append)) as url:
        session = httpx.post(f"{url}/sessions", json={}).json()
        asyncio.run(converse(session["openai_base_url"], session["key"], width))
        httpx.post(f"{url}/sessions/{session['id']}/close", json={}, timeout=600)
    check(ended[0], width)
    assert policy.most_active > 1 and policy.statistics.replies == 2 * width
