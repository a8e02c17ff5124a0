"""The ladder of the on-policy check: from one reply in plain text to the training path of a naive loop, and back.

A published report measured, with a gpt-oss of 20 billion parameters, how far sampler and trainer drift apart the more a
conversation is rewritten on its way to the trainer. These are the same cases on a gpt-oss of two layers, fitted until
it closes its thinking, calls tools and is sure of most tokens, with the vocabulary of the real one:

1. Plain text: one reply, no chat format.
2. One turn of Harmony.
3. Several turns of Harmony: the trainer reads the sampled tokens as one sequence. But the sampler's prompts had dropped
   the thinking of earlier turns, as gpt-oss's template does.
4. The naive path: the trainer renders the messages with the template, tokenizes them again, and places the sampler's
   log-probabilities in the replies one after the other.
5. The same episodes as envsdk's samples.

Run it with `python examples/onpolicy_check.py --ladder`. On one machine, the same seed prints the same figures. Other
processors round differently, and the fit amplifies that.
"""
# pyright: basic, reportMissingImports=false

import hashlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from onpolicy_check import (
    GPT_OSS_IDS,
    LIMITS,
    MAX_REPLY_TOKENS,
    TEMPERATURE,
    TOLERANCE,
    Recorder,
    Shop,
    fit,
    make_model,
    retokenized,
    trained_log,
    transcripts,
)

import envsdk
from envsdk import Env, Renderer, Sample, Trajectory
from envsdk.diagnostics import KL, TokenMatch, forward_logprobs, kl, token_match
from envsdk.policies import TransformersPolicy
from envsdk.rendering.tokenizers import Tokenizer

PUBLISHED = {
    "plain text": ("-0.006", ""),
    "one turn of Harmony": ("-0.018", ""),
    "several turns, as one sequence": ("0.12 to 0.34", ""),
    "the naive path": ("4.0 to 7.0", "6.7%"),
    "envsdk's samples": ("0.028", "100%"),
}
"""k1 and the token match in the report, for each case. After the repair, its k2 was 0.003."""
PLAIN, ONE, SEVERAL, NAIVE, OURS = PUBLISHED
FIT_STEPS = 600
RANKS = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


def gpt_oss_tokenizer(source: str = "o200k_harmony") -> Tokenizer:
    """Return the tokenizer of gpt-oss.

    Args:
        source: A folder with its tokenizer.json; the file `o200k_base.tiktoken`; or `o200k_harmony`, which tiktoken
            downloads once.
    """
    if not source.endswith(".tiktoken"):
        return envsdk.load_tokenizer(source, vocab_size=GPT_OSS_IDS)
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, TIKTOKEN_CACHE_DIR=cache):
        # Under this name, tiktoken finds the file before it downloads it.
        shutil.copy(source, Path(cache) / hashlib.sha1(RANKS.encode(), usedforsecurity=False).hexdigest())
        return envsdk.load_tokenizer("o200k_harmony", vocab_size=GPT_OSS_IDS)


class Case(NamedTuple):
    """The results of one case."""

    name: str
    tokens: TokenMatch
    kl: KL
    interval: tuple[float, float]
    """The 95 % interval of k1, from a bootstrap over episodes: the tokens of one are not independent."""

    @classmethod
    def of(cls, name: str, tokens: TokenMatch, samples: Sequence[Sample], values: Sequence[np.ndarray]) -> "Case":
        """Compare the sampler's log-probabilities of samples with a trainer's."""
        sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for sample, value in zip(samples, values, strict=True):
            sums[sample.trajectory_id] += (sample.logprobs - value)[sample.mask].sum(), sample.mask.sum()
        pairs = np.array(list(sums.values()))
        drawn = pairs[np.random.default_rng(0).integers(len(pairs), size=(2000, len(pairs)))].sum(1)
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975]).tolist()
        return cls(name, tokens, kl(samples, values), (low, high))

    def __str__(self) -> str:
        k1, match = PUBLISHED[self.name]
        found, (low, high) = self.kl.all, self.interval
        row = (f"{found.k1:.2g}", f"{low:.2g} to {high:.2g}", f"{found.k2:.2g}", f"{found.k3:.2g}")
        return _row(self.name, *row, f"{self.tokens.share:.1%}", k1, match)


def _row(name: str, k1: str, interval: str, *others: str) -> str:
    return f"{name:<31}{k1:>10}{interval:>22}" + "".join(f"{cell:>14}" for cell in others)


def table(cases: Sequence[Case]) -> str:
    """Return a table with the report's figures next to ours."""
    head = _row("", "k1", "95 % interval", "k2", "k3", "token match", "report: k1", "token match")
    return "\n".join([head, *map(str, cases)])


def scenes(renderer: Renderer) -> dict[str, Callable[..., Env]]:
    """Return the environment of each case; `history=` chooses how much of the past the sampler sees."""
    plain = envsdk.get_renderer("role_colon", renderer.tokenizer, stop="<|endoftext|>")
    chat = partial(envsdk.make, "envsdk/MathChat-v0", questions=1, limits=LIMITS)
    return {
        PLAIN: partial(chat, renderer=plain),
        ONE: partial(chat, renderer=renderer),
        SEVERAL: partial(Shop, renderer=renderer, limits=LIMITS),
    }


def fitted_model(renderer: Renderer, *, seed: int = 0, steps: int = FIT_STEPS) -> tuple[Any, float]:
    """Return a gpt-oss of two layers that is fitted to the scenes, and its loss in nats per token."""
    model = make_model("gpt_oss", renderer.tokenizer.vocab_size, seed)
    makes = [partial(make, history="strip") for make in scenes(renderer).values()]
    return model, fit(model, transcripts(makes, episodes=12), steps, seed)


class Played(NamedTuple):
    """An episode, and the same replies in an environment that keeps the past."""

    trajectory: Trajectory
    kept: Trajectory


def play(make: Callable[..., Env], recorder: Recorder, seed: int) -> Played:
    """Play an episode under `strip`, then give the same replies under `keep`."""
    actions: list[envsdk.Action] = []

    async def taped(prompt: Any, **request: Any) -> envsdk.Action:
        actions.append(await recorder(prompt, **request))
        return actions[-1]

    trajectory = envsdk.rollout(make(history="strip"), taped, seed=seed)
    replies = iter(actions)
    return Played(trajectory, envsdk.rollout(make(history="keep"), lambda prompt, **_: next(replies), seed=seed))


def samples_of(trajectories: Sequence[Trajectory]) -> list[Sample]:
    """Return all samples of some episodes."""
    return [sample for trajectory in trajectories for sample in trajectory.samples()]


def as_they_are(name: str, model: Any, recorder: Recorder, played: Sequence[Played]) -> Case:
    """Compare the samples of envsdk with the sampled tokens."""
    samples = samples_of([each.trajectory for each in played])
    sampled, trained = recorder.log, trained_log(samples)
    match = token_match(
        [tokens for key in trained for tokens in sampled[key]], [tokens for key in trained for tokens in trained[key]]
    )
    return Case.of(name, match, samples, forward_logprobs(model, samples))


def as_others(name: str, model: Any, played: Sequence[Played], others: Sequence[Sample]) -> Case:
    """Compare samples that another method made from the same episodes, one for each."""
    made = {sample.trajectory_id: sample for sample in others}
    samples = [s for s in samples_of([each.trajectory for each in played]) if s.trajectory_id in made]
    match = token_match(samples, [made[sample.trajectory_id] for sample in samples])
    return Case.of(name, match, others, forward_logprobs(model, others))


def ladder(model: Any, renderer: Renderer, *, seeds: int = 16, seed: int = 0) -> list[Case]:
    """Play the episodes, and compare sampler and trainer in each case."""
    options: dict[str, Any] = {"temperature": TEMPERATURE, "max_tokens": MAX_REPLY_TOKENS}
    recorder = Recorder(TransformersPolicy(model, renderer.tokenizer, seed=seed, **options))
    played: dict[str, list[Played]] = {}
    for number, (name, make) in enumerate(scenes(renderer).items()):
        start = 1000 * (3 * seed + number)  # different seeds for each case, so that ids differ
        played[name] = [play(make, recorder, start + episode) for episode in range(seeds)]
    several = played[SEVERAL]
    naive = [s for each in several for s in retokenized(each.trajectory, each.trajectory.samples(), renderer)]
    return [
        as_they_are(PLAIN, model, recorder, played[PLAIN]),
        as_they_are(ONE, model, recorder, played[ONE]),
        as_others(SEVERAL, model, several, samples_of([each.kept for each in several])),
        as_others(NAIVE, model, several, naive),
        as_they_are(OURS, model, recorder, several),
    ]


def problems(cases: Sequence[Case]) -> list[str]:
    """Return the violated expectations: envsdk's samples are on-policy, and the naive path is far off."""
    found = {case.name: case for case in cases}
    wrong = [f"{name}: {found[name].tokens}" for name in (PLAIN, ONE, OURS) if found[name].tokens.share < 1]
    wrong += [f"{n}: {e}" for n in (PLAIN, ONE, OURS) if max(abs((e := found[n].kl.all).k1), e.k2, e.k3) > TOLERANCE]
    return wrong + [f"{n}: {e}" for n in (SEVERAL, NAIVE) if (e := found[n].kl.all).verdict != "critical"]


def run(tokenizer: str | None, *, seeds: int = 16, seed: int = 0) -> int:
    """Print the table; return 0 if all expectations hold."""
    renderer = envsdk.get_renderer("harmony", gpt_oss_tokenizer(tokenizer or "o200k_harmony"))
    model, loss = fitted_model(renderer, seed=seed)
    print(f"fitted to {loss:.3f} nats per token", flush=True)
    cases = ladder(model, renderer, seeds=seeds, seed=seed)
    print(table(cases))
    wrong = problems(cases)
    print("\n".join(f"FAILED: {problem}" for problem in wrong) or "All holds.")
    return 1 if wrong else 0
