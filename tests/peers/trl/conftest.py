"""A small Qwen3 that plays well enough: fitted on what reference policies say, and saved, since TRL loads a folder."""

import gc
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import envsdk
from envsdk import Env, Renderer, Sample, rollouts, sft_samples
from envsdk.rendering.tokenizers._load import DATA

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # else the import of what is experimental warns


def delegated(town: str, region: str) -> dict[str, Any]:
    """A question that takes one researcher, who reads one article."""
    question, answer = f"In which region does {town} lie?", f"{town} lies in {region}."
    lead = {"subject": town, "value": region, "question": question, "titles": [town], "answer": answer}
    articles = [{"title": town, "text": answer}]
    return {"question": question, "answer": region, "articles": articles, "rounds": [[lead]]}


SEEDS = range(2)
FIT_STEPS = 700
OPTIONS: dict[str, dict[str, Any]] = {
    "envsdk/GuessNumber-v1": {"high": 30},
    "envsdk/Calculator-v1": {"operands": 3, "max_number": 20},
    "envsdk/MathChat-v0": {"questions": 4},
    "envsdk/Delegate-v1": {"tasks": [delegated("Bado", "Goro"), delegated("Kate", "Mina")]},
}


@pytest.fixture(scope="session", autouse=True)
def single_thread() -> None:
    torch.set_num_threads(1)  # what there is to compute is too little to share


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The embedded vocabulary as a tokenizer of transformers."""
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"), **names)


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return envsdk.get_renderer("qwen3", envsdk.load_tokenizer("embedded"))


@pytest.fixture(scope="session")
def env_options() -> dict[str, dict[str, Any]]:
    """The options of each environment that the model was fitted to."""
    return OPTIONS


@pytest.fixture(scope="session")
def make_env(renderer: Renderer) -> Callable[..., Env]:
    """Makes an environment of an id; the history policy may be another one."""

    def make(env_id: str, history: Any = "keep") -> Env:
        limits = {"max_steps": 24, "end_on_cut": False}
        return envsdk.make(env_id, renderer=renderer, history=history, limits=limits, **OPTIONS[env_id])

    return make


@pytest.fixture(scope="session")
def model_folder(renderer: Renderer, make_env: Callable[..., Env], tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=renderer.tokenizer.vocab_size,
        hidden_size=64,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=128,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3ForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    fit(model, transcripts(renderer, make_env))
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def model(model_folder: Path) -> Any:
    """As it was fitted, in a copy of its own."""
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32").eval()


@pytest.fixture(autouse=True)
def forget_trainers() -> Any:
    yield
    gc.collect()  # trainers hold their model in circles


def transcripts(renderer: Renderer, make_env: Callable[..., Env]) -> list[Sample]:
    samples: list[Sample] = []
    for env_id in OPTIONS:
        for history in ("keep", "strip") if "MathChat" in env_id else ("keep",):
            for trajectory in rollouts.rollout_many(partial(make_env, env_id, history), "reference", seeds=SEEDS):
                for log in trajectory.contexts.values():
                    samples += sft_samples(renderer, log.messages, tools=log.tools, history=history)
    return samples


def fit(model: Any, samples: list[Sample], steps: int = FIT_STEPS) -> None:
    """Learn them nearly by heart. Ids that do not occur are left alone, and made improbable."""
    rng = np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        sample = samples[int(rng.integers(len(samples)))]
        tokens, positions = torch.as_tensor(sample.tokens).long(), torch.as_tensor(np.flatnonzero(sample.mask))
        logits = model(input_ids=tokens[None], use_cache=False, logits_to_keep=positions - 1).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, tokens[positions])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"fitted to {loss.item():.3f}")
