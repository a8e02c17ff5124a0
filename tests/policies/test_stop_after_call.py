"""Replies that end at the end of a tool call: they stay what was sampled, and the next observation closes them."""

from typing import Any

import numpy as np
import pytest
import real_models
from envsdk_environments._calculator import Calculator
from envsdk_renderers._fixed_base import FixedBase

from envsdk import Action, Message, Trajectory, rollout
from envsdk.errors import ConfigError
from envsdk.policies import ReplyPolicy, StopAfterCall

INVENTED = "\nThe result is 7."


def renderer() -> FixedBase:
    """A renderer that reads replies by a measured grammar, as they come."""
    text = (real_models.qwen3_folder() / "chat_template.jinja").read_text()
    text = text.replace("<tool_call>", "<|object_ref_start|>").replace("</tool_call>", "<|object_ref_end|>")
    return FixedBase(real_models.qwen3_folder(), template=text)


SECTION, SECTION_END = "<|vision_start|>", "<|vision_end|>"


def renderer_with_section() -> FixedBase:
    """The same for a template that writes all calls of a reply into one section."""
    calls = (
        "{% for c in m.tool_calls or [] %}{% if loop.first %}SECTION{% endif %}"
        "{{ '<|object_ref_start|>' + c.function.name + '<|box_start|>' + (c.function.arguments | tojson) }}"
        "{{ '<|object_ref_end|>' }}{% if loop.last %}SECTION_END{% endif %}{% endfor %}"
    )
    text = (
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}"
        + calls.replace("SECTION_END", SECTION_END).replace("SECTION", SECTION)
        + "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    return FixedBase(real_models.qwen3_folder(), template=text, stop="<|im_end|>")


class Talkative:
    """A policy that samples the reference reply token by token, and invents a result after a call."""

    streams = True

    def __init__(self, env: Any = None) -> None:
        self.env = env

    def for_episode(self, env: Any, seed: int | None) -> "Talkative":
        return Talkative(env)

    @property
    def tokenizer(self) -> Any:
        return self.env.renderer.tokenizer

    def __call__(self, prompt: Any, *, on_tokens: Any = None, **request: Any) -> Action:
        reference = ReplyPolicy(self.env, lambda acting: acting.reference_reply())(prompt, **request)
        tokens = [*reference.tokens][:-1]
        if Message.model_validate(self.env.reference_reply()).tool_calls:
            tokens += self.env.renderer.tokenizer.encode(INVENTED).tolist()
        sampled: list[int] = []
        for token in [*tokens, reference.tokens[-1]]:
            sampled.append(int(token))
            if on_tokens is not None and on_tokens([token]):
                break
        return Action(sampled, np.full(len(sampled), -0.5))


def played(policy: Any, of: FixedBase | None = None) -> Trajectory:
    return rollout(Calculator(renderer=of or renderer()), policy, seed=0)


@pytest.mark.parametrize(("make", "closer"), [(renderer, "<|im_end|>"), (renderer_with_section, SECTION_END)])
def test_a_reply_ends_at_the_end_of_its_call_and_the_next_observation_closes_it(make: Any, closer: str) -> None:
    of: FixedBase = make()
    trajectory = played(StopAfterCall(Talkative()), of)
    assert trajectory.reward == 1.0
    end, stop = of.tokenizer.token_id("<|object_ref_end|>"), of.tokenizer.token_id(closer)
    [sample] = trajectory.samples()
    [*ends] = np.flatnonzero((sample.tokens == end) & sample.mask.astype(bool))
    assert ends
    for position in ends:
        assert sample.tokens[position + 1] == stop
        assert not sample.mask[position + 1]
    assert INVENTED.strip() not in of.tokenizer.decode(sample.tokens)
    assert all(step.finish_reason == "stop" for step in trajectory.steps)


def test_without_it_the_model_writes_on() -> None:
    [sample] = played(Talkative()).samples()
    assert INVENTED.strip() in renderer().tokenizer.decode(sample.tokens)


def test_a_policy_that_does_not_stream_is_refused() -> None:
    for policy in (lambda prompt, **_: Action([1]), "reference"):
        with pytest.raises(ConfigError, match="streams"):
            StopAfterCall(policy)
    with pytest.raises(ConfigError, match="calls is 0"):
        StopAfterCall(Talkative(), calls=0)
