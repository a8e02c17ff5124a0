"""A policy never gets ids that mean something else to it: its tokenizer is compared with the renderer's."""

import asyncio
import functools
import json
import time
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import tokenizers
import transformers

import envsdk
from envsdk import Action, Env, Handoff, HandoffResult, Message, Turn, rewards
from envsdk.errors import ConfigError, TokenizerError, TokenizerMismatch
from envsdk.policies import RandomPolicy
from envsdk.rendering.tokenizers import Tokenizer, load_tokenizer
from envsdk.rendering.tokenizers._files import DATA
from envsdk.rollouts import arollout_many, rollout_many
from envsdk.trainers._checks import guard_policy


class Once(Env):
    """Ends after one reply."""

    def start(self) -> Turn:
        return Turn("Hello.")

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)


class Plain:
    """A policy that ends its turn at once, and declares a tokenizer or none."""

    def __init__(self, tokenizer: object = None) -> None:
        self.tokenizer = tokenizer

    def __call__(self, prompt: np.ndarray, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
        return Action(stop_token_ids[:1], [0.0])


def plain_function(prompt: np.ndarray, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
    return Action(stop_token_ids[:1], [0.0])


async def async_function(prompt: np.ndarray, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
    return Action(stop_token_ids[:1], [0.0])


@functools.cache
def another() -> Tokenizer:
    """A tokenizer that has the embedded one's names, and gives other ids."""
    specification = json.loads((DATA / "embedded.json").read_bytes())
    specification["normalizer"] = {"type": "Lowercase"}
    tokenizer = load_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(specification)))
    tokenizer.name = "another"
    return tokenizer


@functools.cache
def of_transformers() -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"))


# The default tokenizer.


@pytest.mark.parametrize("policy", ["random", "null", RandomPolicy(4096), {"main": "random"}])
def test_the_default_tokenizer_is_for_policies_that_answer_in_any(policy: Any) -> None:
    assert envsdk.rollout(Once(), policy, seed=0).status == "terminated"


@pytest.mark.matrix
@pytest.mark.parametrize("policy", [plain_function, async_function, Plain(), functools.partial(plain_function)])
@pytest.mark.parametrize("make_env", [Once, lambda: Once(renderer="chatml"), lambda: Once(renderer=default_renderer())])
def test_the_default_tokenizer_is_refused_for_any_other_policy(policy: Any, make_env: Any) -> None:
    with pytest.raises(TokenizerMismatch, match="tokenizer='embedded'"):
        envsdk.rollout(make_env(), policy, seed=0)


def default_renderer() -> envsdk.Renderer:
    return envsdk.get_renderer("qwen3")


@pytest.mark.parametrize(
    "make_env",
    [
        lambda: Once(tokenizer="embedded"),
        lambda: Once(tokenizer=load_tokenizer("embedded")),
        lambda: Once(renderer=envsdk.get_renderer("qwen3", "embedded")),
        lambda: Once(tokenizer=of_transformers()),
    ],
)
def test_a_function_that_declares_no_tokenizer_plays_with_any_that_was_chosen(make_env: Any) -> None:
    assert envsdk.rollout(make_env(), plain_function, seed=0).status == "terminated"


def test_the_default_tokenizer_is_distinguished_from_the_same_one_that_was_chosen() -> None:
    chosen, default = load_tokenizer("embedded"), load_tokenizer()
    assert default.fingerprint == chosen.fingerprint
    assert load_tokenizer() is default is not chosen


@pytest.mark.matrix
@pytest.mark.parametrize("make_env", [Once, lambda: Once(tokenizer="embedded")])
@pytest.mark.parametrize("declared", ["embedded", load_tokenizer("embedded"), DATA / "embedded.json"])
def test_a_policy_that_was_made_for_the_embedded_vocabulary_may_play(make_env: Any, declared: object) -> None:
    assert envsdk.rollout(make_env(), Plain(declared), seed=0).status == "terminated"


# A policy that declares one.


@pytest.mark.parametrize("make_env", [Once, lambda: Once(tokenizer="embedded")])
def test_another_tokenizer_is_refused_by_both_names(make_env: Any) -> None:
    with pytest.raises(TokenizerMismatch, match=r"Plain was made for the tokenizer 'another'.* has 'embedded'"):
        envsdk.rollout(make_env(), Plain(another()), seed=0)


def test_a_plain_function_may_declare_one() -> None:
    def policy(*_: Any, **__: Any) -> Action:
        raise AssertionError("it is not asked")

    policy.tokenizer = another()  # type: ignore[attr-defined]
    with pytest.raises(TokenizerMismatch, match="the policy policy was made for the tokenizer 'another'"):
        envsdk.rollout(Once(tokenizer="embedded"), policy, seed=0)


def test_an_object_of_transformers_is_compared_and_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Plain(transformers.PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json")))
    assert envsdk.rollout(Once(tokenizer="embedded"), policy, seed=0).status == "terminated"
    monkeypatch.setattr("envsdk.policies._vocabularies.load_tokenizer", None)
    assert envsdk.rollout(Once(tokenizer="embedded"), policy, seed=1).status == "terminated"
    with pytest.raises(TokenizerMismatch):
        envsdk.rollout(Once(tokenizer=another()), policy, seed=0)


@pytest.mark.full
def test_an_object_that_got_a_token_after_it_was_compared_is_another_tokenizer() -> None:
    declared = transformers.PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"))
    policy = Plain(declared)
    assert envsdk.rollout(Once(tokenizer="embedded"), policy, seed=0).status == "terminated"
    declared.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    with pytest.raises(TokenizerMismatch):
        envsdk.rollout(Once(tokenizer="embedded"), policy, seed=0)
    assert envsdk.rollout(Once(tokenizer=load_tokenizer(declared)), policy, seed=0).status == "terminated"


def test_what_is_declared_and_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"the attribute `tokenizer` of the policy Plain.* of a dict"):
        envsdk.rollout(Once(tokenizer="embedded"), Plain({}), seed=0)


def test_the_policy_of_each_role_is_compared() -> None:
    env = Once(tokenizer="embedded")
    others = {"judge": Plain(another())}
    assert envsdk.rollout(env, {"main": Plain("embedded"), **others}, seed=0).status == "terminated"
    with pytest.raises(TokenizerMismatch):
        envsdk.rollout(env, {"main": Plain(another())}, seed=0)


class Asks(Env):
    """Hands over to a sub-agent."""

    def start(self) -> Turn:
        return Turn("Hello.")

    def respond(self, reply: Message) -> Handoff:
        return Handoff(Once(tokenizer=another()))

    def resume(self, result: HandoffResult) -> Turn:
        return Turn(terminated=True)


def test_a_sub_agent_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerMismatch, match=r"has 'another'"):
        envsdk.rollout(Asks(tokenizer="embedded"), Plain("embedded"), seed=0)


class Inherits(Asks):
    def respond(self, reply: Message) -> Handoff:
        return Handoff(Once())


def test_a_sub_agent_that_chose_none_has_its_parents() -> None:
    trajectory = envsdk.rollout(Inherits(tokenizer=another()), Plain(another()), seed=0)
    assert {log.tokenizer or trajectory.tokenizer for log in trajectory.contexts.values()} == {another().fingerprint}


def test_a_trainers_guard_declares_what_its_policy_declares() -> None:
    env = Once(tokenizer="embedded")
    assert envsdk.rollout(env, guard_policy(Plain("embedded"), 1.0), seed=0).status == "terminated"
    for policy in (guard_policy(Plain(another()), 1.0), guard_policy(plain_function, 1.0, another())):
        with pytest.raises(TokenizerMismatch):
            envsdk.rollout(env, policy, seed=0)
    with pytest.raises(TokenizerMismatch):
        envsdk.rollout(env, guard_policy({"main": Plain(another())}, 1.0), seed=0)


def test_a_trainers_guard_leaves_the_rest_of_its_policy_as_it_is() -> None:
    class Chats(Plain):
        """Exchanges text, and knows the environment."""

        trainable = False

        def for_episode(self, env: Env, seed: int | None) -> Any:
            self.env = env
            return self

        def abort(self) -> None: ...

    env, policy = Once(tokenizer="embedded"), Chats("embedded")
    guarded: Any = guard_policy(policy, 1.0)
    trajectory = envsdk.rollout(env, guarded, seed=0)
    assert policy.env is env
    assert [log.is_trainable for log in trajectory.contexts.values()] == [False]
    assert guarded.abort == policy.abort
    assert not hasattr(guard_policy(Plain("embedded"), 1.0), "abort")


# Where an episode's failure is data, this one is not.


class Counts(Once):
    made: ClassVar[set["Counts"]] = set()
    closed: ClassVar[set["Counts"]] = set()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.made.add(self)

    def close(self) -> None:
        self.closed.add(self)
        super().close()


def test_many_episodes_end_with_the_error_and_close_their_environments() -> None:
    with pytest.raises(TokenizerMismatch):
        rollout_many(lambda: Counts(tokenizer="embedded"), Plain(another()), seeds=range(8), max_concurrency=4)
    with pytest.raises(TokenizerMismatch):
        asyncio.run(arollout_many(Counts, plain_function, seeds=range(8), max_concurrency=4))
    assert Counts.made
    for _ in range(1000):  # one that is being made when the run ends is closed in its thread
        if Counts.made == Counts.closed:
            break
        time.sleep(0.01)
    assert Counts.made == Counts.closed


def test_a_judge_of_another_tokenizer_is_refused_when_it_is_made() -> None:
    with pytest.raises(TokenizerMismatch, match="tokenizer='embedded'"):
        rewards.judge(plain_function, "Is it polite?")
    with pytest.raises(TokenizerMismatch, match="was made for the tokenizer 'another'"):
        rewards.judge(Plain(another()), "Is it polite?", tokenizer="embedded")


# An environment that is given two.


def test_a_renderer_and_another_tokenizer_are_refused() -> None:
    renderer = envsdk.get_renderer("qwen3", "embedded")
    assert Once(renderer=renderer, tokenizer="embedded").renderer is renderer
    with pytest.raises(ConfigError, match="'embedded'"):
        Once(renderer=renderer, tokenizer=another())


def test_a_copy_of_an_environment_remembers_whether_its_tokenizer_was_chosen() -> None:
    class Forks(Once):
        def respond(self, reply: Message) -> Turn:
            return Turn("More.") if len(self.messages()) < 4 else Turn(terminated=True)

        def forked(self) -> Self:
            self.reset(seed=0)
            return self.fork()

    with pytest.raises(TokenizerMismatch):
        envsdk.rollout(Forks().forked(), plain_function, reset=False)
    assert envsdk.rollout(Forks(tokenizer="embedded").forked(), plain_function, reset=False).status == "terminated"
