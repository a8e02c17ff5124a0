"""A tokenizer that was saved is the same tokenizer, whatever it was made from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_models
import tiktoken
import tiktoken.registry
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext import openai_public
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from envsdk.errors import TokenizerError
from envsdk.rendering.tokenizers import HuggingFaceTokenizer, Tokenizer, load_tokenizer
from envsdk.rendering.tokenizers._byte_level import BYTE_OF_CHAR
from envsdk.rendering.tokenizers._files import DATA

TEXTS = (DATA / "corpus.txt").read_text(encoding="utf-8").splitlines()


def small_encoding() -> tiktoken.Encoding:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257}
    return tiktoken.Encoding("small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|end|>": 300})


def trained(model: Any, trainer: Any, **parts: Any) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(TEXTS[:300], trainer)
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
    meta = {"normalizer": normalizers.NFKC(), "pre_tokenizer": pre_tokenizers.Metaspace()}
    return trained(models.Unigram(), trainer, **meta, decoder=decoders.Metaspace())


def word_piece() -> tokenizers.Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]", "[SEP]"])
    parts = {"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, **parts, decoder=decoders.WordPiece())


def byte_level_lower_case() -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<s>"], initial_alphabet=sorted(BYTE_OF_CHAR))
    parts = {"normalizer": normalizers.Lowercase(), "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)}
    return trained(models.BPE(), trainer, **parts, decoder=decoders.ByteLevel())


def of_transformers() -> Any:
    file, template = DATA / "embedded.json", "{{ messages[0].content }}"
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), chat_template=template)


def qwen3_of_transformers() -> Any:
    return transformers.AutoTokenizer.from_pretrained(real_models.qwen3_folder())


def shared(name: str) -> Callable[[], Tokenizer]:
    folder = real_models.SHARED / "tokenizers" / name
    return lambda: load_tokenizer(folder) if folder.is_dir() else pytest.skip(f"{folder} is missing")


def encoded(tokenizer: Tokenizer, text: str) -> Any:
    """The ids of a text and their ends, or why it has none."""
    try:
        return [array.tolist() for array in tokenizer.encode_with_ends(text)]
    except TokenizerError as error:
        return str(error)


SOURCES: dict[str, Callable[[], Any]] = {
    "embedded": lambda: "embedded",
    "default": lambda: None,
    "qwen3": real_models.qwen3_folder,
    "qwen2.5": shared("qwen2.5"),
    "gpt-oss": real_models.gpt_oss_tokenizer,
    "deepseek-v4": shared("deepseek-v4"),
    "transformers": of_transformers,
    "transformers qwen3": qwen3_of_transformers,
    "tiktoken": small_encoding,
    "unigram": unigram,
    "word_piece": word_piece,
    "byte_level": byte_level_lower_case,
    "slow": lambda: HuggingFaceTokenizer("slow", json.loads((DATA / "embedded.json").read_bytes()), vocab_size=5000),
}


FULL = {"qwen2.5", "deepseek-v4", "gpt-oss", "transformers qwen3"}
"""Large vocabularies of kinds that others show: only a full run takes them."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.full) if name in FULL else name for name in SOURCES],
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer]:
    """A tokenizer, and the one that is loaded from the folder to which it was saved."""
    original: Any = load_tokenizer(SOURCES[request.param]())
    folder = tmp_path_factory.mktemp("saved")
    original.save(folder)
    return original, load_tokenizer(folder)


@pytest.mark.matrix(every=2)
def test_a_saved_tokenizer_has_the_same_ids_names_and_template(both: tuple[Any, Tokenizer]) -> None:
    original, loaded = both
    assert type(loaded) is type(original)
    assert (loaded.fingerprint, loaded.vocab_size) == (original.fingerprint, original.vocab_size)
    assert (loaded.control_tokens, loaded.name) == (original.control_tokens, original.name)
    assert loaded.chat_template == original.chat_template
    every_id = np.arange(-1, original.vocab_size + 1, dtype=np.int32)
    assert loaded.token_bytes(every_id) == original.token_bytes(every_id)


@given(text=st.text())
def test_a_saved_tokenizer_encodes_every_text_as_before(both: tuple[Any, Tokenizer], text: str) -> None:
    original, loaded = both
    assert loaded.normalize(text) == original.normalize(text)
    assert encoded(loaded, text) == encoded(original, text)


@pytest.mark.full
@pytest.mark.parametrize("name", ["o200k_base", "o200k_harmony"])
def test_an_encoding_of_tiktoken_can_be_saved(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = real_models.SHARED / "tokenizers" / "o200k" / "o200k_base.tiktoken"
    if not file.is_file():
        pytest.skip(f"{file} is missing")
    ranks = load_tiktoken_bpe(str(file), real_models.O200K_SHA256)
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks)  # it would download them
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    original: Any = load_tokenizer(name)
    original.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.fingerprint, loaded.vocab_size) == (original.fingerprint, original.vocab_size)
    text = "\n".join(TEXTS)
    assert np.array_equal(loaded.encode(text), original.encode(text))


def test_the_size_of_a_saved_vocabulary_can_be_changed_when_it_is_loaded(tmp_path: Path) -> None:
    load_tokenizer("embedded").save(tmp_path)
    assert load_tokenizer(tmp_path, vocab_size=9000).vocab_size == 9000


def test_a_saved_tokenizer_is_loaded_once_and_again_if_a_file_changes(tmp_path: Path) -> None:
    load_tokenizer("embedded").save(tmp_path)
    first = load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path) is first
    load_tokenizer(small_encoding()).save(tmp_path)
    assert load_tokenizer(tmp_path).name == "small"


def test_a_saved_vocabulary_that_was_changed_is_refused(tmp_path: Path) -> None:
    load_tokenizer(small_encoding()).save(tmp_path)
    file = tmp_path / "vocabulary.tiktoken"
    file.write_bytes(file.read_bytes().replace(b"dGhl 257", b"dGhx 257"))
    with pytest.raises(TokenizerError, match=r"differs from the one that was saved.*save it again"):
        load_tokenizer(tmp_path)


def test_a_saved_tokenizer_of_another_version_or_with_a_missing_file_is_refused(tmp_path: Path) -> None:
    load_tokenizer("embedded").save(tmp_path)
    (tmp_path / "vocabulary.tiktoken").unlink()
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_tokenizer(tmp_path)
    description = tmp_path / "envsdk_tokenizer.json"
    description.write_text(description.read_text().replace('"schema": 1', '"schema": 7'))
    with pytest.raises(TokenizerError, match=r"schema 7.*reads 1"):
        load_tokenizer(tmp_path)
