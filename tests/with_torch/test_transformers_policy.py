"""A model as a policy: it says the same with its cache and without, with the log-probabilities of a forward pass."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch.nn")

import torch
import transformers
from torch_models import logprobs_separate, tiny_gpt_oss, tiny_qwen3

import envsdk
from envsdk import Action, Env, Handoff, HandoffResult, Limits, Message, Trajectory, Turn, rollouts
from envsdk.errors import ConfigError, UnknownName
from envsdk.policies import TransformersPolicy
from envsdk.policies._sampling import Sampling, draw
from envsdk.policies._transformers import CacheStatistics

pytestmark = pytest.mark.filterwarnings("default")

TOKENIZER = envsdk.load_tokenizer("embedded")
STOP = TOKENIZER.token_id("<|im_end|>")
REQUEST: dict[str, Any] = {
    "episode_id": "e",
    "context": "main",
    "base": "main",
    "role": "main",
    "keep": 0,
    "stop_token_ids": (STOP,),
    "stop": (),
    "max_tokens": 16,
    "sampling": {},
}
PROMPT = TOKENIZER.encode("What is the answer to this question, and to all the others?")


@cache
def model_of(kind: str) -> Any:
    """Windows of 12 tokens, where there are any, are shorter than every prompt here."""
    sliding = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
    made = {
        "qwen3": tiny_qwen3,
        "sliding_qwen3": partial(tiny_qwen3, attention="eager", **sliding),
        "gpt_oss": tiny_gpt_oss,
    }
    model = made[kind]().eval()
    with torch.no_grad():  # else hardly any reply would end by itself
        model.get_output_embeddings().weight[STOP] *= 3
    return model


MODELS = pytest.mark.parametrize("kind", ["qwen3", "sliding_qwen3", "gpt_oss"])


class Quiz(Env):
    """Asks several times; each reply begins with a thought, so that there is one to strip."""

    default_limits: ClassVar[Limits] = Limits(end_on_cut=False)

    def start(self) -> Turn:
        self.asked = 0
        return self.question(system="Think, then answer.")

    def respond(self, reply: Message) -> Turn | Handoff:
        self.asked += 1
        if self.asked == 4:
            return Turn(terminated=True)
        return self.question()

    def question(self, **others: Any) -> Turn:
        thought = Message(role="assistant", reasoning=f"This is thought {self.asked}.", content="So ")
        return Turn(f"Question {self.asked}?", prefill=thought, max_tokens=8, **others)


class Boss(Quiz):
    """Hands over to somebody who sees everything, and to somebody who sees nothing, before it goes on asking."""

    def respond(self, reply: Message) -> Any:
        said = super().respond(reply)
        if self.asked == 2:
            return [Handoff(Quiz(history="strip"), history="full"), Handoff(Quiz())]
        return Handoff(Quiz(), history="full") if self.asked == 3 else said

    def resume(self, result: HandoffResult | list[HandoffResult]) -> Turn:
        return self.question()


EPISODES = {
    "keep": lambda: Quiz(tokenizer="embedded", history="keep"),
    "strip": lambda: Quiz(tokenizer="embedded", history="strip"),
    "compact": lambda: Quiz(tokenizer="embedded", history={"name": "compact", "every": 2}),
    "budget": lambda: Quiz(tokenizer="embedded", history={"name": "budget", "max_tokens": 90}),
    "summarize": lambda: Quiz(tokenizer="embedded", history={"name": "summarize", "threshold": 80, "max_tokens": 6}),
    "handoff": partial(Boss, tokenizer="embedded"),
}


def play(make_env: Callable[[], Env], policy: Any, seeds: Sequence[int] = (0,)) -> list[Trajectory]:
    trajectories = rollouts.rollout_many(make_env, policy, seeds=seeds)
    assert not any(trajectory.error for trajectory in trajectories)
    return trajectories


def sampled(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    """By context, all that was handed out and sampled there."""
    return {f"{t.id} {name}": log.tokens for t in trajectories for name, log in t.contexts.items()}


def ask(policy: TransformersPolicy, prompt: np.ndarray = PROMPT, **request: Any) -> Action:
    return asyncio.run(policy(prompt, **{**REQUEST, **request}))


def following(prompt: np.ndarray, action: Action, text: str = "Go on.") -> np.ndarray:
    return np.concatenate([prompt, np.asarray(action.tokens, dtype=np.int32), TOKENIZER.encode(text)])


# The cache.


@pytest.mark.matrix
@MODELS
@pytest.mark.parametrize("episode", EPISODES)
def test_with_a_cache_the_policy_samples_what_it_samples_without(kind: str, episode: str):
    model, make_env = model_of(kind), EPISODES[episode]
    options: dict[str, Any] = {"seed": 3, "max_tokens": 12}
    expected = play(make_env, TransformersPolicy(model, cache="off", **options))
    assert episode == "keep" or any(t.breaks for t in expected)
    for name in ("full", "window"):
        policy = TransformersPolicy(model, cache=name, **options)
        trajectories = play(make_env, policy)
        assert policy.statistics.reused > 0 or (name, episode) == ("window", "strip")
        for (key, tokens), others in zip(sampled(trajectories).items(), sampled(expected).values(), strict=True):
            np.testing.assert_array_equal(tokens, others, err_msg=f"{name}: {key}")
        for trajectory, other in zip(trajectories, expected, strict=True):
            for key, log in trajectory.contexts.items():
                np.testing.assert_allclose(log.logprobs, other.contexts[key].logprobs, 1e-5, 1e-5)


@pytest.mark.matrix
@MODELS
@pytest.mark.parametrize("episode", EPISODES)
def test_the_log_probabilities_are_those_of_a_forward_pass_over_the_sample(kind: str, episode: str):
    model = model_of(kind)
    samples = [s for t in play(EPISODES[episode], TransformersPolicy(model, max_tokens=12)) for s in t.samples()]
    with torch.no_grad():
        forward = logprobs_separate(model, samples)
    for sample, values in zip(samples, forward, strict=True):
        np.testing.assert_allclose(sample.logprobs[sample.mask], values.numpy(), 1e-5, 1e-5)


@MODELS
def test_a_full_cache_computes_each_token_once_however_much_is_dropped(kind: str):
    for episode in ("keep", "strip", "compact", "budget", "handoff"):
        policy = TransformersPolicy(model_of(kind), max_tokens=12)
        trajectories = play(EPISODES[episode], policy)
        handed_out = sum(t.observed_tokens for t in trajectories)
        unread = sum(len(t.steps) for t in trajectories)  # the last token of a reply, until the next prompt
        assert policy.statistics.recomputed == 0
        assert policy.statistics.computed <= handed_out + policy.statistics.sampled
        assert policy.statistics.computed >= handed_out + policy.statistics.sampled - unread
        assert policy.statistics.sampled == sum(t.sampled_tokens for t in trajectories)
        assert policy.statistics.replies == unread


def test_a_window_cache_takes_less_memory_and_computes_again_what_it_dropped():
    makes = {name: TransformersPolicy(model_of("gpt_oss"), cache=name, max_tokens=12) for name in ("full", "window")}
    for policy in makes.values():
        play(EPISODES["strip"], policy)
    full, window = makes["full"], makes["window"]
    assert window.cache_bytes < 0.7 * full.cache_bytes
    assert window.statistics.recomputed > 0
    assert window.statistics.computed > full.statistics.computed


def test_a_wrong_keep_costs_time_and_changes_nothing():
    model = model_of("qwen3")
    policy = TransformersPolicy(model)
    first = ask(policy)
    prompt = following(PROMPT, first)
    expected = ask(TransformersPolicy(model, cache="off"), prompt)
    altered = prompt.copy()
    altered[5] += 1
    for keep, wanted, reused in ((10**6, prompt, len(PROMPT) + len(first.tokens) - 1), (len(prompt), altered, 5)):
        policy = TransformersPolicy(model)
        ask(policy)
        before = policy.statistics.reused
        action = ask(policy, wanted, keep=keep)
        assert policy.statistics.reused - before == reused
        assert np.array_equal(action.tokens, expected.tokens) == (wanted is prompt)
    alone = ask(TransformersPolicy(model, cache="off"), altered)
    np.testing.assert_array_equal(action.tokens, alone.tokens)
    np.testing.assert_allclose(action.logprobs, alone.logprobs, 1e-5, 1e-5)


def test_a_prompt_that_is_wholly_cached_is_answered():
    policy = TransformersPolicy(model_of("qwen3"))
    first = ask(policy)
    again = ask(policy, keep=len(PROMPT))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert policy.statistics.reused == len(PROMPT) - 1


def test_another_context_goes_on_from_its_base_and_leaves_it_as_it_is():
    model = model_of("gpt_oss")
    policy = TransformersPolicy(model)
    first = ask(policy)
    kept = len(PROMPT) - 2
    other = np.concatenate([PROMPT[:kept], TOKENIZER.encode("Something else.")])
    child = ask(policy, other, context="main/child-1", base="main", keep=kept)
    np.testing.assert_array_equal(child.tokens, ask(TransformersPolicy(model), other, context="main/child-1").tokens)
    assert policy.statistics.reused == kept
    prompt = following(PROMPT, first)
    ask(policy, prompt, keep=len(PROMPT) + len(first.tokens))
    assert policy.statistics.recomputed == 0


def test_memory_is_bounded_and_what_was_used_longest_ago_goes_first():
    model = model_of("qwen3")
    one = TransformersPolicy(model)
    ask(one)
    limit = int(3.5 * one.cache_bytes)
    policy = TransformersPolicy(model, max_cache_bytes=limit)
    for number in range(20):
        ask(policy, episode_id=f"episode {number}")
        assert 0 < policy.cache_bytes <= limit
    reused = policy.statistics.reused
    ask(policy, episode_id="episode 19", keep=len(PROMPT))
    assert policy.statistics.reused == reused + len(PROMPT) - 1
    ask(policy, episode_id="episode 0", keep=len(PROMPT))
    assert policy.statistics.reused == reused + len(PROMPT) - 1
    assert policy.statistics.recomputed == len(PROMPT) - 2


def test_a_context_larger_than_the_limit_is_not_kept():
    policy = TransformersPolicy(model_of("qwen3"), max_cache_bytes=100)
    ask(policy)
    assert policy.cache_bytes == 0


def test_an_episode_that_is_over_can_be_forgotten():
    policy = TransformersPolicy(model_of("qwen3"))
    ask(policy)
    ask(policy, context="main/child-1")
    ask(policy, episode_id="other")
    both = policy.cache_bytes
    policy.forget("e")
    assert 0 < policy.cache_bytes < both / 2
    policy.forget("other")
    assert policy.cache_bytes == 0


@pytest.mark.skipif(not hasattr(transformers, "Qwen3NextConfig"), reason="Qwen3-Next: transformers 4.57 or newer")
def test_models_with_a_state_keep_nothing_between_replies_and_sample_the_same():
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8}
    config = transformers.Qwen3NextConfig(
        vocab_size=4096, num_hidden_layers=4, num_experts=2, num_experts_per_tok=1, intermediate_size=32,
        moe_intermediate_size=16, shared_expert_intermediate_size=16, linear_value_head_dim=8, **shape, **linear,
    )  # fmt: skip
    model = transformers.Qwen3NextForCausalLM(config).eval()
    policy = TransformersPolicy(model, max_tokens=8)
    with_cache = play(EPISODES["strip"], policy, [0])
    assert policy.cache_bytes == policy.statistics.reused == 0
    without = play(EPISODES["strip"], TransformersPolicy(model, max_tokens=8, cache="off"), [0])
    for key, tokens in sampled(with_cache).items():
        np.testing.assert_array_equal(tokens, sampled(without)[key])


# Weights.


def test_new_weights_are_not_mixed_with_what_the_old_ones_computed():
    def changes(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(-2)

    for tells in (True, False):
        model = tiny_qwen3().eval()
        policy = TransformersPolicy(model, policy_version=4)
        first = ask(policy)
        assert first.policy_version == 4
        changes(model)
        if tells:
            policy.refresh()
            assert policy.cache_bytes == 0
        prompt = following(PROMPT, first)
        action = ask(policy, prompt, keep=len(PROMPT))
        assert action.policy_version == (5 if tells else 4)
        expected = ask(TransformersPolicy(model, cache="off", policy_version=action.policy_version), prompt)
        np.testing.assert_array_equal(action.tokens, expected.tokens)
        assert policy.statistics.reused == 0


def test_setting_the_version_is_a_refresh():
    policy = TransformersPolicy(model_of("qwen3"))
    ask(policy)
    policy.policy_version = 7
    assert policy.cache_bytes == 0
    assert ask(policy).policy_version == 7
    policy.refresh(11)
    assert policy.policy_version == 11


def test_a_reply_under_way_at_a_refresh_goes_on_with_the_new_weights():
    policy = TransformersPolicy(model_of("qwen3"), policy_version=1, max_tokens=12)

    async def run() -> Trajectory:
        playing = asyncio.ensure_future(envsdk.arollout(Quiz(tokenizer="embedded"), policy, seed=0))
        while policy.statistics.computed < 70 and not playing.done():
            await asyncio.sleep(0)
        policy.refresh()
        return await playing

    trajectory = asyncio.run(run())
    versions = [[part.policy_version for part in step.parts] for step in trajectory.steps]
    assert [1, 2] in versions
    assert versions[-1] == [2]
    assert sum(len(sample.policy_version) for sample in trajectory.samples()) == len(versions) + 1


def test_replies_are_aborted_at_a_pause_of_the_engine_and_continue_after_it():
    policy = TransformersPolicy(model_of("qwen3"), max_tokens=12, temperature=0.7)
    options = {"tokenizer": "embedded"}
    engine = rollouts.Rollouts(Quiz, policy, seeds=range(2), group_size=1, env_options=options)

    async def run() -> list[Trajectory]:
        playing = asyncio.ensure_future(engine.arun())
        while policy.statistics.computed < 70 and not playing.done():
            await asyncio.sleep(0)
        await engine.pause()
        sampled = policy.statistics.sampled
        await asyncio.sleep(0.05)
        assert policy.statistics.sampled == sampled
        policy.refresh()
        engine.resume(policy_version=2)
        return await playing

    trajectories = asyncio.run(run())
    assert {one.status for one in trajectories} == {"terminated"}
    parts = [[part.policy_version for part in step.parts] for one in trajectories for step in one.steps]
    assert [None, 2] in parts


# What is sampled.


def test_the_same_seed_and_episode_give_the_same_tokens_however_episodes_are_interleaved():
    model = model_of("qwen3")

    def run(concurrency: int, seeds: Sequence[int], **options: Any) -> dict[str, np.ndarray]:
        policy = TransformersPolicy(model, **{"seed": 5, "max_tokens": 12, **options})
        return sampled(rollouts.rollout_many(EPISODES["handoff"], policy, seeds=seeds, max_concurrency=concurrency))

    expected = run(1, [0, 1])
    for others in (run(2, [0, 1]), run(2, [1, 0], max_cache_bytes=40_000)):
        assert {key: tokens.tolist() for key, tokens in others.items()} == {
            key: tokens.tolist() for key, tokens in expected.items()
        }
    assert run(1, [0], seed=6)["Boss/0 main"].tolist() != expected["Boss/0 main"].tolist()
    group = run(2, [0, 0])
    assert group["Boss/0 main"].tolist() != group["Boss/0#1 main"].tolist()


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"temperature": 2.0, "top_k": 50, "top_p": 0.9}],
    ids=str,
)
def test_tokens_come_with_the_probability_that_they_have_in_many_draws(sampling: dict[str, Any]):
    torch.manual_seed(1)
    logits = torch.randn(12) * 2
    drawn = [draw(logits, Sampling(**sampling), (i + 0.5) / 20_000) for i in range(20_000)]
    share = np.bincount([token for token, _ in drawn], minlength=12) / len(drawn)
    logprobs = dict(drawn)
    for token in range(12):
        assert np.isclose(share[token], np.exp(logprobs[token]) if token in logprobs else 0, atol=2e-4)
    probabilities = (logits / sampling.get("temperature", 1.0)).softmax(-1).numpy()
    order = np.argsort(-probabilities)
    allowed = order[: sampling.get("top_k", 12)]
    renormed = probabilities[allowed] / probabilities[allowed].sum()
    allowed = allowed[: int(np.searchsorted(np.cumsum(renormed), sampling.get("top_p", 1.0) - 1e-6)) + 1]
    assert set(logprobs) == set(allowed.tolist())
    for token in allowed:
        np.testing.assert_allclose(logprobs[token], np.log(probabilities[token] / probabilities[allowed].sum()), 1e-4)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_of_probability_0_is_never_drawn(uniform: float):
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf])
    token, logprob = draw(logits, Sampling(), uniform)
    assert token in (1, 3)
    assert logprob > -2


def test_at_temperature_0_the_likeliest_token_is_taken_with_probability_1():
    action = ask(TransformersPolicy(model_of("qwen3"), temperature=0))
    assert action.temperature == 0
    assert (np.asarray(action.logprobs) == 0).all()
    tokens = torch.as_tensor(np.concatenate([PROMPT, action.tokens])).long()
    with torch.no_grad():
        logits = model_of("qwen3")(input_ids=tokens[None]).logits[0]
    np.testing.assert_array_equal(logits[len(PROMPT) - 1 : -1].argmax(-1).numpy(), action.tokens)


def test_what_the_environment_asks_for_goes_before_the_policys_own_sampling():
    policy = TransformersPolicy(model_of("qwen3"), temperature=0.5)
    assert ask(policy).temperature == 0.5
    assert ask(policy, sampling={"temperature": 2.0}).temperature == 2.0


def test_a_reply_ends_with_its_stop_token_or_is_cut():
    policy = TransformersPolicy(model_of("qwen3"))
    replies = [ask(policy, episode_id=str(number), max_tokens=40) for number in range(30)]
    assert {reply.finish_reason for reply in replies} == {"stop", "length"}
    for reply in replies:
        stops = [i for i, token in enumerate(reply.tokens) if token == STOP]
        assert stops == ([len(reply.tokens) - 1] if reply.finish_reason == "stop" else [])
        assert reply.finish_reason == "stop" or len(reply.tokens) == 40
    assert len(ask(policy, max_tokens=0).tokens) == 0
    own = TransformersPolicy(model_of("qwen3"), max_tokens=3)
    assert len(ask(own, stop_token_ids=()).tokens) == 3


def test_a_reply_ends_behind_the_token_that_completes_a_stop_string():
    free = TransformersPolicy(model_of("qwen3"), TOKENIZER)
    reply = ask(free, stop_token_ids=())
    pieces = TOKENIZER.token_bytes(np.asarray(reply.tokens))
    text = b"".join(pieces).decode(errors="replace")
    assert len(reply.tokens) == 16
    for count in range(1, 15):
        name = (pieces[count - 1][-1:] + pieces[count][:1]).decode(errors="replace")  # across two tokens
        if "\ufffd" in name or text.index(name) != len(b"".join(pieces[:count]).decode(errors="replace")) - 1:
            continue
        cut = ask(free, stop_token_ids=(), stop=("not there", name))
        assert cut.finish_reason == "stop"
        np.testing.assert_array_equal(cut.tokens, reply.tokens[: count + 1])
        return
    pytest.fail("no two tokens of the reply make a text that could stop it")


def test_a_reply_ends_where_the_positions_of_the_model_end():
    model = tiny_qwen3(max_position_embeddings=len(PROMPT) + 5).eval()
    reply = ask(TransformersPolicy(model), stop_token_ids=())
    assert (len(reply.tokens), reply.finish_reason) == (5, "length")
    with pytest.raises(ConfigError, match="max_context_tokens"):
        ask(TransformersPolicy(model), np.resize(PROMPT, len(PROMPT) + 5))


# Rollouts.


def test_a_rollout_takes_a_policy_of_the_model_alone():
    policy = TransformersPolicy(model_of("qwen3"), max_tokens=12, policy_version=0)
    trajectory = envsdk.rollout(
        envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", limits={"max_steps": 3}), policy, seed=1
    )
    assert trajectory.sampled_tokens == policy.statistics.sampled > 0
    assert [sample.validate().policy_version[0] for sample in trajectory.samples()] == [0]
    assert CacheStatistics(**policy.statistics.to_dict()) == policy.statistics


def test_a_time_limit_holds_in_the_middle_of_a_reply():
    policy = TransformersPolicy(model_of("qwen3"))

    async def run() -> None:
        async with asyncio.timeout(0.2):
            await policy(PROMPT, **{**REQUEST, "stop_token_ids": (), "max_tokens": 10**6})

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    reused = policy.statistics.reused
    ask(policy, keep=len(PROMPT))
    assert policy.statistics.reused == reused + len(PROMPT) - 1


# Bad input.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"cache": "some"}, "cache is 'some'"),
        ({"max_cache_bytes": -1}, "max_cache_bytes is -1"),
    ],
    ids=str,
)
def test_options_that_are_not_valid_are_refused(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        TransformersPolicy(model_of("qwen3"), **options)


def test_what_is_no_causal_model_is_refused():
    for model, says in (("Qwen/Qwen3-0.6B", "a str; expected"), (torch.nn.Linear(2, 2), "a Linear; expected")):
        with pytest.raises(ConfigError, match=says):
            TransformersPolicy(model)
    config = transformers.T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ConfigError, match="an encoder-decoder"):
        TransformersPolicy(transformers.T5ForConditionalGeneration(config))


def test_a_vocabulary_too_small_for_the_tokenizer_or_the_prompt_is_refused():
    small = tiny_qwen3(2048).eval()
    with pytest.raises(ConfigError, match="2048 token ids, but the tokenizer 'embedded' has 4096"):
        TransformersPolicy(small, TOKENIZER)
    with pytest.raises(ConfigError, match="the model has the ids 0 to 2047"):
        ask(TransformersPolicy(small), np.array([5, 2048], dtype=np.int32))


def test_requests_that_cannot_be_met_are_refused():
    policy = TransformersPolicy(model_of("qwen3"))
    with pytest.raises(ConfigError, match="need a tokenizer"):
        ask(policy, stop=("</answer>",))
    with pytest.raises(UnknownName, match="temperature"):
        ask(policy, sampling={"temprature": 1.0})
    with pytest.raises(ConfigError, match="top_p is 7"):
        ask(policy, sampling={"top_p": 7})
    with pytest.raises(ConfigError, match="the prompt is empty"):
        ask(policy, np.empty(0, dtype=np.int32))


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ConfigError, match=r"call model\.eval\(\)"):
        ask(TransformersPolicy(tiny_qwen3()))


@pytest.mark.parametrize("kind", ["qwen3", "gpt_oss"])
def test_a_fork_goes_on_from_what_was_computed_for_its_original(kind: str):
    def forked(cache: str) -> tuple[list[Trajectory], CacheStatistics]:
        policy = TransformersPolicy(model_of(kind), TOKENIZER, cache=cache)  # type: ignore[arg-type]
        env = Quiz(tokenizer="embedded")
        env.reset(seed=0)
        forks: list[Env] = []

        async def forking(prompt: np.ndarray, **request: Any) -> Action:
            if env.asked == 2 and not forks:
                forks.extend(env.fork() for _ in range(2))
            return await policy(prompt, **request)

        played = [envsdk.rollout(env, forking, reset=False)]
        return [*played, *(envsdk.rollout(fork, policy, reset=False) for fork in forks)], policy.statistics

    (first, computed), (second, without) = forked("full"), forked("off")
    for one, other in zip(first, second, strict=True):
        ours, theirs = sampled([one]), sampled([other])
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert computed.recomputed == 0 < computed.reused and computed.computed < without.computed


# Tokens while they are sampled.


def test_tokens_are_reported_as_they_are_sampled_and_change_nothing() -> None:
    policy, reported = TransformersPolicy(model_of("qwen3"), TOKENIZER), list[int]()
    plain = asyncio.run(policy(PROMPT, **REQUEST))
    streamed = asyncio.run(policy(PROMPT, **REQUEST, on_tokens=reported.extend))
    assert reported == streamed.tokens.tolist() == plain.tokens.tolist()


def test_a_reply_ends_where_the_listener_asks_for_it() -> None:
    policy, reported = TransformersPolicy(model_of("qwen3"), TOKENIZER), list[int]()

    def listen(tokens: Sequence[int]) -> bool:
        reported.extend(tokens)
        return len(reported) == 3

    whole = asyncio.run(policy(PROMPT, **REQUEST))
    action = asyncio.run(policy(PROMPT, **REQUEST, on_tokens=listen))
    assert len(whole.tokens) > 3
    assert (action.tokens.tolist(), action.finish_reason) == (whole.tokens.tolist()[:3], "stop")
