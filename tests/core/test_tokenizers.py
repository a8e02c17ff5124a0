"""Tokenizers: the fast path gives the same ids, and plain text gives no control token."""

import json
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import real_models
import tiktoken
import tokenizers
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import envsdk
from envsdk.errors import TokenizerError
from envsdk.rendering.tokenizers import HuggingFaceTokenizer, TiktokenTokenizer, Tokenizer, load_tokenizer
from envsdk.rendering.tokenizers import _load as load
from envsdk.rendering.tokenizers._byte_level import BYTE_OF_CHAR
from envsdk.rendering.tokenizers._files import DATA

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


@given(text=st.text())
def test_both_kinds_of_tokenizer_give_the_same_ids_and_ends(fast: Tokenizer, slow: Tokenizer, text: str) -> None:
    assert isinstance(fast, TiktokenTokenizer) and isinstance(fast, Tokenizer)
    assert fast.encode(text).tolist() == slow.encode(text).tolist()
    assert fast.encode(text).dtype == np.int32
    for tokenizer in (fast, slow):
        tokens, ends = tokenizer.encode_with_ends(text)
        assert tokens.tolist() == tokenizer.encode(text).tolist()
        pieces = tokenizer.token_bytes(tokens)
        assert (
            b"".join(pieces).decode() == tokenizer.decode(tokens) == tokenizer.normalize(text) == fast.normalize(text)
        )
        assert np.cumsum([len(piece) for piece in pieces]).tolist() == ends.tolist()


def test_control_tokens_have_names_and_no_text_gives_one(fast: Tokenizer, slow: Tokenizer) -> None:
    names, ids = fast.control_tokens, set(fast.control_tokens.values())
    for tokenizer in (fast, slow):
        assert [tokenizer.token_id(name) for name in names] == [*names.values()]
        assert [tokenizer.decode([token]) for token in names.values()] == [*names]
        for text in [*names, "".join(names), " ".join(names)]:
            assert not ids & set(tokenizer.encode(text).tolist())
            assert tokenizer.decode(tokenizer.encode(text)) == text


BLANKS = st.text(st.sampled_from(" \n\t\r\x1c\xa0\u2003"), max_size=4)


@pytest.mark.parametrize(
    "blank", [" \n", *(pytest.param(blank, marks=pytest.mark.full) for blank in (" ", "\n", "\t "))]
)
def test_long_runs_of_white_space_have_the_same_ids(fast: Tokenizer, slow: Tokenizer, blank: str) -> None:
    text = f"It's 12 (é).{blank * 140_000}\nx\x1c{' ' * 9} y.{blank * 140_000}"
    assert fast.encode(text).tolist() == slow.encode(text).tolist()


@given(texts=st.lists(st.text() | BLANKS | st.sampled_from(["'s", "'LL", "ſ", "a1", "?!\n"]), max_size=12))
def test_a_text_that_is_cut_into_words_without_tiktoken_has_the_same_ids(fast: Tokenizer, texts: list[str]) -> None:
    assert isinstance(fast, TiktokenTokenizer)
    normal = fast.normalize("".join(texts))
    assert fast._encode_blanks(normal).tolist() == fast.encode(normal).tolist()


def code_points() -> Iterator[str]:
    """Every byte that UTF-8 has, at each place where it may be: all characters of two bytes, and some of all others."""
    pages = [range(0x900), range(0x900, 0xD800, 61), range(0xE000, 0x110000, 1021)]
    return (chr(point) for page in pages for point in page)


EVERY_BYTE = "".join(f"{char} {char}{char}x" for char in code_points())


def test_every_byte_is_encoded_as_the_slower_library_does(fast: Tokenizer, slow: Tokenizer) -> None:
    assert fast.encode(EVERY_BYTE).tolist() == slow.encode(EVERY_BYTE).tolist()


@pytest.mark.parametrize(
    "name", ["qwen3", *(pytest.param(n, marks=pytest.mark.full) for n in ("gpt-oss", "qwen2.5", "deepseek-v4"))]
)
def test_a_real_vocabulary_has_every_byte_and_knows_its_every_id(name: str) -> None:
    folder = real_models.SHARED / "tokenizers" / name
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    tokenizer = load_tokenizer(folder)
    tokens, ends = tokenizer.encode_with_ends(EVERY_BYTE)
    assert tokenizer.decode(tokens) == tokenizer.normalize(EVERY_BYTE)
    assert ends[-1] == len(tokenizer.normalize(EVERY_BYTE).encode())
    assert len(tokenizer.token_bytes(np.arange(tokenizer.vocab_size, dtype=np.int32))) == tokenizer.vocab_size


def without_bytes(missing: Iterable[int], **model: object) -> dict:
    """A small vocabulary, of single bytes and a few merges, that has no token for some bytes."""
    left_out = [char for char, byte in BYTE_OF_CHAR.items() if byte in set(missing)]
    changed = specification("embedded")
    merges = [pair for pair in changed["model"]["merges"][:50] if not set(left_out) & set("".join(pair))]
    pieces = [*(char for char in BYTE_OF_CHAR if char not in left_out), *map("".join, merges)]
    changed["model"] |= {"vocab": {piece: token for token, piece in enumerate(pieces)}, "merges": merges, **model}
    for token, added in enumerate(changed["added_tokens"], start=len(pieces)):
        added["id"] = token
    return changed


SMOLLM2_MISSING = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)]


@pytest.mark.parametrize(
    "missing",
    [
        SMOLLM2_MISSING,
        [0x61, 0x9F],
        *(pytest.param(each, marks=pytest.mark.full) for each in ([0x00], [0x80], [0xE2], range(0x80, 0x100))),
    ],
)
def test_a_vocabulary_without_a_token_for_some_bytes_loads_and_leaves_those_characters_out(
    missing: Sequence[int], caplog: pytest.LogCaptureFixture
) -> None:
    changed = without_bytes(missing)
    tokenizer = load_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(changed)))
    normal = unicodedata.normalize("NFC", EVERY_BYTE)
    kept = "".join([char for char in normal if not set(char.encode()) & set(missing)])
    tokens, ends = tokenizer.encode_with_ends(EVERY_BYTE)
    assert tokenizer.encode(EVERY_BYTE).tolist() == tokens.tolist()
    assert tokenizer.decode(tokens) == tokenizer.normalize(EVERY_BYTE) == kept
    assert ends[-1] == len(kept.encode())
    assert [record.message for record in caplog.records if "left out" in record.message], "it is said"


@settings(max_examples=settings.default.max_examples // 6)
@given(text=st.text(), missing=st.sets(st.integers(0, 255), min_size=1, max_size=8))
def test_where_a_text_has_no_missing_byte_the_ids_are_those_of_the_library(text: str, missing: set[int]) -> None:
    library = tokenizers.Tokenizer.from_str(json.dumps({**without_bytes(missing), "added_tokens": []}))
    tokenizer = load_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(without_bytes(missing))))
    assume(not set(unicodedata.normalize("NFC", text).encode()) & missing)
    assert tokenizer.encode(text).tolist() == library.encode(text).ids


class PanicException(BaseException):
    """As pyo3's: not an Exception."""


@pytest.mark.parametrize("place", ["as_encoding", "TiktokenTokenizer"])
@pytest.mark.parametrize("error", [PanicException("no entry found for key"), ValueError(), MemoryError(), KeyError(1)])
def test_whatever_fails_on_the_fast_path_the_library_takes_over(
    place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, place, Mock(side_effect=error))
    loaded = load_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(without_bytes(()))))
    assert isinstance(loaded, HuggingFaceTokenizer)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_on_the_fast_path_is_not_a_failure(
    interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "as_encoding", Mock(side_effect=interrupt))
    with pytest.raises(interrupt):
        load_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(without_bytes(()))))


def test_a_vocabulary_that_is_spelled_differently_has_the_same_fingerprint() -> None:
    written = without_bytes([0x00])
    spelled = json.loads(json.dumps(written))
    spelled["model"]["merges"] = [" ".join(pair) for pair in written["model"]["merges"]]
    for name in ("ignore_merges", "byte_fallback", "dropout"):
        del spelled["model"][name]
    first, second = (HuggingFaceTokenizer("x", each) for each in (written, spelled))
    assert first.fingerprint == second.fingerprint != HuggingFaceTokenizer("x", without_bytes([0x01])).fingerprint


def test_the_fingerprint_tells_normalizers_apart() -> None:
    normalizers = [None, {"type": "NFC"}, {"type": "NFKC"}]
    made = [HuggingFaceTokenizer("x", {**without_bytes([0x00]), "normalizer": each}) for each in normalizers]
    assert len({tokenizer.fingerprint for tokenizer in made}) == 3


def test_a_control_token_decodes_to_its_name_though_a_piece_of_text_would_have_spaces_in_it() -> None:
    written = without_bytes([0x00])
    written["added_tokens"][0]["content"] = "<\uff5cbegin\u2581of\u2581text\uff5c>"
    tokenizer = HuggingFaceTokenizer("x", written)
    assert (
        tokenizer.decode([tokenizer.token_id("<\uff5cbegin\u2581of\u2581text\uff5c>")])
        == "<\uff5cbegin\u2581of\u2581text\uff5c>"
    )


def test_ids_without_a_name_decode_to_a_replacement(fast: Tokenizer, slow: Tokenizer) -> None:
    for tokenizer in (fast, slow):
        assert tokenizer.decode([10**6]) == envsdk.rendering.tokenizers._protocol.UNNAMED
        assert tokenizer.decode([-1, 5]).startswith(envsdk.rendering.tokenizers._protocol.UNNAMED)


def test_an_unknown_control_token_suggests_near_names(fast: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="Did you mean"):
        fast.token_id("<|im_strat|>")


def test_the_vocabulary_holds_the_padding_of_models() -> None:
    qwen3 = load_tokenizer(NAMES[1])
    assert 151_936 <= qwen3.vocab_size < 160_000
    assert load_tokenizer("embedded", vocab_size=4608).vocab_size == 4608
    assert load_tokenizer("embedded").vocab_size == 4096


def test_the_vocabulary_size_of_a_models_configuration_is_used(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((DATA / "embedded.json").read_bytes())
    (tmp_path / "config.json").write_text('{"vocab_size": 4608}')
    assert load_tokenizer(tmp_path).vocab_size == 4608


def test_an_object_without_a_name_takes_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((DATA / "embedded.json").read_bytes())
    (tmp_path / "config.json").write_text('{"vocab_size": 4608}')
    monkeypatch.chdir(tmp_path)
    assert load_tokenizer(tokenizers.Tokenizer.from_file(str(DATA / "embedded.json"))).vocab_size == 4096


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
    with pytest.raises(TokenizerError, match="Cannot make a tokenizer of an int"):
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
