"""Tokenizers: the fast path gives the same ids, and plain text gives no control token."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import real_models
import tiktoken
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk.errors import TokenizerError
from envsdk.tokenizers import DATA, HuggingFaceTokenizer, TiktokenTokenizer, Tokenizer, load_tokenizer

ROOT = Path(__file__).parent.parent.parent
NAMES = ["embedded", str(real_models.qwen3_folder())]


def specification(name: str) -> dict:
    file = DATA / "embedded.json" if name == "embedded" else Path(name) / "tokenizer.json"
    return json.loads(file.read_bytes())


@pytest.fixture(params=NAMES, ids=["embedded", "qwen3"], scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def fast(name: str) -> Tokenizer:
    return load_tokenizer(name)


@pytest.fixture(scope="module")
def slow(name: str) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(name, specification(name))


def test_a_byte_level_bpe_becomes_a_tiktoken_encoding(fast: Tokenizer) -> None:
    assert isinstance(fast, TiktokenTokenizer)
    assert isinstance(fast, Tokenizer)


@given(text=st.text())
def test_both_kinds_of_tokenizer_give_the_same_ids(fast: Tokenizer, slow: Tokenizer, text: str) -> None:
    assert fast.encode(text).tolist() == slow.encode(text).tolist()
    assert fast.encode(text).dtype == np.int32


@given(text=st.text())
def test_decoding_gives_the_normalised_text_back(fast: Tokenizer, slow: Tokenizer, text: str) -> None:
    assert fast.decode(fast.encode(text)) == slow.decode(slow.encode(text)) == fast.normalize(text)


@given(text=st.text())
def test_ends_cut_the_normalised_text_at_the_tokens(fast: Tokenizer, slow: Tokenizer, text: str) -> None:
    for tokenizer in (fast, slow):
        tokens, ends = tokenizer.encode_with_ends(text)
        assert tokens.tolist() == tokenizer.encode(text).tolist()
        assert len(ends) == len(tokens)
        assert not len(ends) or ends[-1] == len(tokenizer.normalize(text).encode())
        pieces = tokenizer.token_bytes(tokens)
        assert b"".join(pieces).decode() == tokenizer.normalize(text)
        assert np.cumsum([len(piece) for piece in pieces]).tolist() == ends.tolist()


def test_no_text_gives_a_control_token(fast: Tokenizer, slow: Tokenizer) -> None:
    ids = set(fast.control_tokens.values())
    for text in [*fast.control_tokens, "".join(fast.control_tokens), " ".join(fast.control_tokens)]:
        for tokenizer in (fast, slow):
            assert not ids & set(tokenizer.encode(text).tolist())
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_decode_to_their_names(fast: Tokenizer, slow: Tokenizer) -> None:
    for text, token in fast.control_tokens.items():
        assert fast.token_id(text) == slow.token_id(text) == token
        assert fast.decode([token]) == slow.decode([token]) == text


def test_ids_without_a_name_decode_to_a_replacement(fast: Tokenizer, slow: Tokenizer) -> None:
    for tokenizer in (fast, slow):
        assert tokenizer.decode([10**6]) == envsdk.tokenizers.UNNAMED
        assert tokenizer.decode([-1, 5]).startswith(envsdk.tokenizers.UNNAMED)


def test_an_unknown_control_token_suggests_near_names(fast: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="Did you mean"):
        fast.token_id("<|im_strat|>")


def test_the_vocabulary_holds_the_padding_of_models() -> None:
    qwen3 = load_tokenizer(NAMES[1])
    assert 151_936 <= qwen3.vocab_size < 160_000
    assert load_tokenizer(NAMES[1], vocab_size=151_936).vocab_size == 151_936
    assert load_tokenizer("embedded").vocab_size == 4096


def test_the_vocabulary_size_of_a_models_configuration_is_used(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((DATA / "embedded.json").read_bytes())
    (tmp_path / "config.json").write_text('{"vocab_size": 4608}')
    assert load_tokenizer(tmp_path).vocab_size == 4608


def test_the_same_file_is_loaded_once() -> None:
    assert load_tokenizer("embedded") is load_tokenizer("embedded")


def test_the_fingerprint_tells_tokenizers_apart(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(specification("embedded"), indent=1))
    assert load_tokenizer(tmp_path).fingerprint == load_tokenizer("embedded").fingerprint
    assert load_tokenizer(NAMES[1]).fingerprint != load_tokenizer("embedded").fingerprint


def test_objects_of_other_libraries_are_accepted() -> None:
    text = "Grüße, 12 tests\n\n"
    expected = load_tokenizer("embedded").encode(text).tolist()
    backend = tokenizers.Tokenizer.from_file(str(DATA / "embedded.json"))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    assert load_tokenizer(backend).encode(text).tolist() == expected
    assert load_tokenizer(wrapped).encode(text).tolist() == expected
    encoding = tiktoken.Encoding(
        "bytes", pat_str=".|\n", mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={"<end>": 256}
    )
    assert load_tokenizer(encoding).encode("a<end>").tolist() == list(b"a<end>")
    assert load_tokenizer(encoding).token_id("<end>") == 256


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": 1, "added_tokens": []}', "not json"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path)


def test_a_misspelt_name_suggests_the_right_one_without_asking_a_hub() -> None:
    with pytest.raises(TokenizerError, match="Did you mean 'embedded'"):
        load_tokenizer("embeded")


def test_an_object_that_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match="Cannot make a tokenizer of a int"):
        load_tokenizer(7)


def test_a_tokenizer_whose_rules_tiktoken_does_not_have_stays_with_its_library(tmp_path: Path) -> None:
    changed = specification("embedded")
    changed["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    assert tokenizer.decode(tokenizer.encode("ABC <THINK>")) == "abc <think>"


def test_a_tokenizer_whose_ids_differ_stays_with_its_library(tmp_path: Path) -> None:
    changed = specification("embedded")
    changed["model"]["merges"] = changed["model"]["merges"][::-1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    assert isinstance(load_tokenizer(tmp_path), HuggingFaceTokenizer)


def test_control_tokens_that_are_pieces_of_the_vocabulary_cannot_be_forged() -> None:
    pieces = [["<unk>", 0.0], ["</s>", -1.0], *[[c, -5.0] for c in "▁</s>helo"]]
    model = tokenizers.Tokenizer(tokenizers.models.Unigram([(p, s) for p, s in pieces], unk_id=0))
    model.add_special_tokens(["</s>"])
    tokenizer = load_tokenizer(model)
    tokens = tokenizer.encode("hello</s></s>")
    assert tokenizer.token_id("</s>") not in tokens.tolist()
    assert tokenizer.decode(tokens) == "hello</s></s>"


def test_the_embedded_tokenizer_is_what_its_script_trains() -> None:
    script = ROOT / "scripts" / "train_embedded_tokenizer.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
