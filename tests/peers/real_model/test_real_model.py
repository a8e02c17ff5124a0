"""A real language model, SmolLM2-135M-Instruct: its tokenizer loads, and it plays with its own tokens."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import real_models
import torch
import transformers

import envsdk
from envsdk.errors import TokenizerMismatch
from envsdk.policies import TransformersPolicy
from envsdk.rendering.tokenizers import HuggingFaceTokenizer, Tokenizer

pytestmark = pytest.mark.filterwarnings("default")

EXAMPLE = real_models.CHECKOUT / "examples" / "real_model.py"
TEXTS = ["Hello, world.", "Grüße aus Zürich: 12 + 30 = 42\n\n", "def f(x):\n\treturn x  # 日本語 🙂", "<repo_name>"]
MISSING = "\x04\x06\x13\x14\x16\x1d"
"""Characters for whose bytes the vocabulary has no token."""


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> Tokenizer:
    return envsdk.load_tokenizer(model_folder)


@pytest.fixture(scope="module")
def official(model_folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def policy(model_folder: Path) -> TransformersPolicy:
    """The model alone: which tokenizer it has is in its folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    return TransformersPolicy(model, max_tokens=8)


def test_a_vocabulary_that_lacks_bytes_loads(tokenizer: Tokenizer) -> None:
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    assert (tokenizer.vocab_size, tokenizer.token_id("<|im_end|>")) == (49_152, 2)
    for character in map(chr, range(256)):
        expected = "" if character in MISSING else character
        assert tokenizer.decode(tokenizer.encode(character)) == tokenizer.normalize(character) == expected


def test_its_ids_are_those_of_transformers(tokenizer: Tokenizer, official: Any, compared: Counter[str]) -> None:
    for text in [*TEXTS[:3], MISSING]:
        assert tokenizer.encode(text).tolist() == official.encode(text, add_special_tokens=False)
        compared["texts"] += 1
    assert tokenizer.decode(tokenizer.encode("<repo_name>")) == "<repo_name>"
    assert tokenizer.token_id("<repo_name>") not in tokenizer.encode("<repo_name>").tolist()


def test_its_folder_and_its_object_are_the_same(tokenizer: Tokenizer, official: Any) -> None:
    other = envsdk.load_tokenizer(official)
    assert (other.fingerprint, other.vocab_size) == (tokenizer.fingerprint, tokenizer.vocab_size)
    assert other.chat_template is not None
    assert tokenizer.chat_template is not None
    assert other.chat_template.end_tokens == tokenizer.chat_template.end_tokens == ("<|im_end|>",)


def test_its_chat_template_is_followed(tokenizer: Tokenizer, official: Any) -> None:
    renderer = envsdk.get_renderer("auto", tokenizer)
    messages: list[Any] = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    ids = official.apply_chat_template(messages, return_dict=False)
    rendered = renderer.render([envsdk.Message(**message) for message in messages])
    assert rendered.tokens.tolist() == ids


@pytest.mark.parametrize("options", [{}, {"tokenizer": "embedded"}])
def test_ids_of_another_vocabulary_do_not_reach_it(policy: TransformersPolicy, options: dict[str, Any]) -> None:
    env = envsdk.make("envsdk/GuessNumber-v1", **options)
    with pytest.raises(TokenizerMismatch, match=r"TransformersPolicy was made for .*smollm2.* has 'embedded'"):
        envsdk.rollout(env, policy, seed=0)
    assert policy.statistics.computed == 0


def test_it_plays_and_ends_its_replies_and_a_trainer_computes_what_was_sampled(
    model_folder: Path, compared: Counter[str]
) -> None:
    command = [sys.executable, EXAMPLE, model_folder, "--seeds", "2", "--max-steps", "3"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.findall(
        r"(?m)^(keep|strip): .*\n  tokens: .*\n  .*: k1 (\S+), k2 (\S+), k3 (\S+) over (\S+) tokens", run.stdout
    )
    assert [history for history, *_ in found] == ["keep", "strip"]
    for _, *estimates, tokens in found:
        assert max(abs(float(value)) for value in estimates) < 1e-5
        compared["sampled tokens"] += int(tokens.replace(",", ""))
