"""Constrained replies of a real vLLM: they follow random schemas, and a trainer that masks its logits is on-policy.

`.venvs/vllm/bin/pytest tests/peers/vllm/test_constrained_replies.py --full` asks for 2,000 of them.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from random_schemas import Form

import envsdk
from envsdk import Env, Message, Turn, rollout
from envsdk.diagnostics import forward_logprobs, kl
from envsdk.rollouts import Rollouts

pytestmark = pytest.mark.filterwarnings("default")

TEMPERATURE = 0.7
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"x": {"type": kind}}}},
    }
    for name, kind in (("add", "integer"), ("say", "string"))
]


@pytest.mark.parametrize("count", [16, pytest.param(2000, marks=pytest.mark.full)])
def test_replies_follow_their_schemas_and_a_masked_forward_pass_gives_their_log_probabilities(
    count: int, policy_of: Any, model_folder: Path, transformers_model: Any, compared: Counter[str]
) -> None:
    renderer = envsdk.get_renderer("auto", str(model_folder))
    trajectories = Rollouts(
        lambda: Form(renderer=renderer),
        policy_of(temperature=TEMPERATURE, seed=None),
        seeds=range(count),
        max_concurrency=16,
    ).run()
    assert [one.error for one in trajectories if one.error] == []
    samples = [sample.validate() for one in trajectories for sample in one.samples()]
    found = kl(samples, forward_logprobs(transformers_model, samples, renderer=renderer))
    cut = sum(one.steps[0].metrics["cut"] for one in trajectories)
    print(f"{len(trajectories)} replies, {cut:.0f} cut by a limit; {found.all}")
    assert len(trajectories) == count and cut < count / 4
    assert max(abs(found.all.k1), found.all.k2) < 1e-4
    compared["log-probabilities"] += found.all.tokens


def test_a_required_call_is_a_call(policy_of: Any, env_options: Any) -> None:
    class Calling(Env):
        def start(self) -> Turn:
            thought = Message(role="assistant", reasoning="I call a tool.", content="")
            return Turn("Call a tool.", tools=TOOLS, tool_choice="required", max_tokens=400, prefill=thought)

        def respond(self, reply: Message) -> Turn:
            self.reply = reply
            return Turn(terminated=True)

    env = Calling(**env_options())
    trajectory = rollout(env, policy_of(), seed=0)
    assert trajectory.error is None
    assert env.reply.tool_calls and {call.name for call in env.reply.tool_calls} <= {"add", "say"}, json.dumps(
        trajectory.steps[0].parts[0].extra
    )
