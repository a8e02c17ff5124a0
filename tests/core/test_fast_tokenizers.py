"""fastokens encodes every text as the tokenizer that it replaces."""

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import real_models
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from envsdk.errors import MissingPackage, TokenizerError
from envsdk.rendering.tokenizers import (
    FastokensTokenizer,
    HuggingFaceTokenizer,
    TiktokenTokenizer,
    Tokenizer,
    load_tokenizer,
)
from envsdk.rendering.tokenizers._byte_level import BYTE_OF_CHAR
from envsdk.rendering.tokenizers._files import DATA

pytest.importorskip("fastokens", reason="pip install 'envsdk[fast]'")
DEEPSEEK = real_models.SHARED / "tokenizers" / "deepseek-v4"
CORPUS = (DATA / "corpus.txt").read_bytes().decode()
PLAIN: dict[str, Callable[[], Tokenizer]] = {
    "embedded": lambda: load_tokenizer("embedded"),
    "qwen3": lambda: load_tokenizer(real_models.qwen3_folder()),
    "gpt-oss": real_models.gpt_oss_tokenizer,
    "deepseek-v4": lambda: load_tokenizer(DEEPSEEK),
}
RUNS = ["a", " ", "\n", " \n\t", "!", "7", "ab", "中", "😀", "e\u0301", "\u0301", "'s", "A", "<|im_end|>", "\x00"]
pieces = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="aZ0 '\n\r\t.,!\u00a0\u0301\u3000é中ſ😀\u200d", max_size=12),
    st.sampled_from(["'LL", "'s", "  \n", "<|im_start|>", "<think>", "<|end|>", "<｜User｜>", "\u1100\u1161", "K"]),
    st.tuples(st.sampled_from(RUNS), st.integers(1, 300)).map(lambda run: run[0] * run[1]),
)
texts = st.lists(pieces, max_size=6).map("".join)


@functools.cache
def both(name: str) -> tuple[Tokenizer, FastokensTokenizer]:
    plain = PLAIN[name]()
    fast = load_tokenizer(plain, backend="fastokens")
    assert isinstance(fast, FastokensTokenizer)
    return plain, fast


FULL = {"qwen3", "gpt-oss", "deepseek-v4"}
ROWS = [pytest.param(name, marks=pytest.mark.full) if name in FULL else name for name in PLAIN]


@pytest.fixture(params=ROWS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "deepseek-v4" and not DEEPSEEK.is_dir():
        pytest.skip(f"{DEEPSEEK} is missing")
    return request.param


def written() -> dict:
    """A small vocabulary without the byte 0, which tiktoken cannot express."""
    specification = json.loads((DATA / "embedded.json").read_bytes())
    merges = specification["model"]["merges"][:50]
    vocabulary = [*(char for char, byte in BYTE_OF_CHAR.items() if byte), *map("".join, merges)]
    specification["model"] |= {"vocab": {piece: token for token, piece in enumerate(vocabulary)}, "merges": merges}
    for token, added in enumerate(specification["added_tokens"], start=len(vocabulary)):
        added["id"] = token
    return specification


def as_object(specification: dict) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(specification))


@given(data=st.data())
def test_every_text_gives_the_same_ids_and_ends(name: str, data: st.DataObject) -> None:
    plain, fast = both(name)
    text = data.draw(texts)
    ids = fast.encode(text)
    assert ids.tolist() == plain.encode(text).tolist()
    assert ids.dtype == np.int32 and ids.flags.writeable
    for ours, theirs in zip(fast.encode_with_ends(text), plain.encode_with_ends(text), strict=True):
        assert ours.tolist() == theirs.tolist() and ours.dtype == theirs.dtype
    assert fast.decode(ids) == fast.normalize(text) == plain.normalize(text)


def test_both_kinds_of_tokenizers_are_replaced() -> None:
    assert isinstance(both("embedded")[0], TiktokenTokenizer)
    plain = load_tokenizer(as_object(written()))
    assert isinstance(plain, HuggingFaceTokenizer)
    fast = load_tokenizer(plain, backend="fastokens")
    for text in (CORPUS, "a\x00b", "Grüße, 12\n\n"):
        assert fast.encode(text).tolist() == plain.encode(text).tolist()


@pytest.mark.matrix
@pytest.mark.parametrize("run", RUNS)
def test_a_long_run_of_one_text_gives_the_same_ids(name: str, run: str) -> None:
    plain, fast = both(name)
    text = f"x{run * (50_000 // len(run))}y"
    assert fast.encode(text).tolist() == plain.encode(text).tolist()


def test_a_run_of_spaces_that_is_too_long_for_tiktoken_gives_the_ids_of_the_tokenizers_library() -> None:
    text = " " * 140_000
    slow = HuggingFaceTokenizer("embedded", json.loads((DATA / "embedded.json").read_bytes())).encode(text).tolist()
    assert [tokenizer.encode(text).tolist() for tokenizer in both("embedded")] == [slow, slow]


@pytest.mark.matrix
@pytest.mark.parametrize("text", ["\ud800", "a\udc80b", "\ud83d\ude00", "中\udfff" * 100])
def test_a_lone_surrogate_gives_what_it_gives_without_fastokens(name: str, text: str) -> None:
    plain, fast = both(name)
    try:
        expected = plain.encode(text).tolist()
    except UnicodeEncodeError:
        with pytest.raises(UnicodeEncodeError):
            fast.encode(text)
    else:
        assert fast.encode(text).tolist() == expected


def test_no_text_gives_a_control_token(name: str) -> None:
    plain, fast = both(name)
    control_tokens = set(plain.control_tokens.values())
    for text in [*plain.control_tokens, "".join(plain.control_tokens), " ".join(plain.control_tokens)]:
        ids = fast.encode(text)
        assert not control_tokens & set(ids.tolist())
        assert ids.tolist() == plain.encode(text).tolist()


@pytest.mark.full
def test_no_text_gives_a_control_token_that_is_a_piece_of_the_vocabulary() -> None:
    specification = written()
    piece = "he"
    token = specification["model"]["vocab"][piece]
    specification["added_tokens"].append({**specification["added_tokens"][0], "content": piece, "id": token})
    plain = load_tokenizer(as_object(specification))
    fast = load_tokenizer(plain, backend="fastokens")
    assert token == fast.token_id(piece)
    for text in (piece, f"{piece} {piece}{piece}\n{piece}", f"x{piece}", "the other"):
        assert token not in fast.encode(text)
        assert fast.encode(text).tolist() == plain.encode(text).tolist()
        assert fast.decode(fast.encode(text)) == text


def test_everything_but_the_library_stays_the_same(name: str) -> None:
    plain, fast = both(name)
    for attribute in ("name", "fingerprint", "vocab_size", "control_tokens", "chat_template"):
        assert getattr(fast, attribute) == getattr(plain, attribute)
    ids = np.arange(-1, 3000, 7, dtype=np.int32)
    assert fast.token_bytes(ids) == plain.token_bytes(ids)


def test_a_tokenizer_is_loaded_once(tmp_path: Path) -> None:
    plain, fast = both("embedded")
    assert load_tokenizer("embedded", backend="fastokens") is fast
    assert load_tokenizer(fast) is load_tokenizer(fast, backend="fastokens") is fast
    assert load_tokenizer("embedded") is plain and load_tokenizer(plain) is plain


def test_it_is_saved_as_the_tokenizer_that_it_replaces(tmp_path: Path) -> None:
    _, fast = both("embedded")
    fast.save(tmp_path)
    saved, again = load_tokenizer(tmp_path), load_tokenizer(tmp_path, backend="fastokens")
    assert isinstance(saved, TiktokenTokenizer)
    assert saved.fingerprint == again.fingerprint == fast.fingerprint
    assert again.encode(CORPUS).tolist() == fast.encode(CORPUS).tolist()


def test_the_default_vocabulary_stays_the_default() -> None:
    assert getattr(load_tokenizer(backend="fastokens"), "is_default")  # noqa: B009 - of our own classes
    assert not both("embedded")[1].is_default


def test_a_pickled_tokenizer_gives_the_same_ids() -> None:
    _, fast = both("embedded")
    again = pickle.loads(pickle.dumps(fast))
    assert isinstance(again, FastokensTokenizer) and again.fingerprint == fast.fingerprint
    assert again.encode(CORPUS).tolist() == fast.encode(CORPUS).tolist()


def test_several_threads_get_the_same_ids() -> None:
    plain, fast = both("embedded")
    given = [CORPUS[start : start + size] for start in range(0, 200_000, 9_000) for size in (50, 2_000, 90_000)]
    expected = [plain.encode(text).tolist() for text in given]
    with ThreadPoolExecutor(8) as threads:
        assert [ids.tolist() for ids in threads.map(fast.encode, given)] == expected


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_gets_the_same_ids() -> None:
    program = (
        "import os\n"
        "from envsdk import load_tokenizer\n"
        "from envsdk.rendering.tokenizers._files import corpus\n"
        "fast, plain = load_tokenizer('embedded', backend='fastokens'), load_tokenizer('embedded')\n"
        "fast.encode(corpus())\n"
        "pid = os.fork()\n"
        "same = [fast.encode(text).tolist() == plain.encode(text).tolist() for text in (corpus(), 'a b')]\n"
        "if pid == 0: os._exit(0 if all(same) else 3)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=600)


def test_a_vocabulary_for_which_the_ids_differ_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    specification = written()
    plain = HuggingFaceTokenizer("x", specification)
    specification["model"]["merges"] = specification["model"]["merges"][::-1]
    other = HuggingFaceTokenizer("x", specification)
    monkeypatch.setattr(plain, "_saved", other._saved)
    with pytest.raises(TokenizerError, match="that differ from those of HuggingFaceTokenizer"):
        load_tokenizer(plain, backend="fastokens")


def test_a_vocabulary_that_is_not_of_bytes_is_refused() -> None:
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(TokenizerError, match="not one of bytes"):
        load_tokenizer(model, backend="fastokens")


def test_a_vocabulary_that_fastokens_cannot_read_is_refused() -> None:
    specification = written()
    specification["pre_tokenizer"] = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True}
    with pytest.raises(TokenizerError, match=r"fastokens (cannot read it|gives ids)"):
        load_tokenizer(as_object(specification), backend="fastokens")


def test_an_unknown_backend_suggests_the_right_one() -> None:
    with pytest.raises(TokenizerError, match="Did you mean 'fastokens'"):
        load_tokenizer("embedded", backend="fasttokens")


def test_a_missing_fastokens_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    with pytest.raises(MissingPackage, match=r"pip install 'envsdk\[fast\]'"):
        load_tokenizer(as_object(written()), backend="fastokens")
