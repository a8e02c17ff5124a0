"""Train the embedded tokenizer, `envsdk/data/embedded.json`, from `envsdk/data/corpus.txt`.

A byte-level BPE of exactly 4,096 ids, laid out like Qwen3's tokenizer: ids 0..255 are the bytes, the merges follow in
rank order, and the last 26 ids are the control tokens. `--check` trains in memory and fails unless the result and the
corpus equal those of the repository. Needs only the `tokenizers` package and no network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

DATA = Path(__file__).resolve().parent.parent / "envsdk" / "rendering" / "tokenizers" / "data"
CORPUS = DATA / "corpus.txt"
EMBEDDED = DATA / "embedded.json"
CORPUS_SHA256 = "48c1f55d39240828e10cbef0f973f92b524a21fcf60957ed19dfe5a36c2e9efe"

TOTAL_IDS = 4096
NUM_BYTES = 256
PRE_TOKEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Names, order and `special` flags of Qwen3's control tokens.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
CONTROL_TOKENS = SPECIAL_TOKENS + ADDED_TOKENS


class TrainingError(Exception):
    """The corpus or the trained tokenizer differs from the expected one."""


def read_corpus() -> str:
    """Return the corpus with its line ends; raise if it is not the frozen one."""
    if not CORPUS.exists():
        raise TrainingError(f"{CORPUS} does not exist; restore it with `git checkout`.")
    data = CORPUS.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != CORPUS_SHA256:
        raise TrainingError(
            f"{CORPUS} has sha256 {found}, expected {CORPUS_SHA256}. Restore the file (git must not convert its "
            "line ends), or, if the change is intended, set CORPUS_SHA256 and train again."
        )
    return data.decode("utf-8")


def untrained_tokenizer() -> Tokenizer:
    """Return the pipeline of Qwen3 (NFC, split, bytes) around an empty BPE model."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(PRE_TOKEN_PATTERN), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def train(corpus: str) -> Tokenizer:
    """Return a tokenizer trained on the corpus as one string, with the control tokens last."""
    tokenizer = untrained_tokenizer()
    trainer = BpeTrainer(
        vocab_size=TOTAL_IDS - len(CONTROL_TOKENS),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus], trainer)
    tokenizer.add_tokens(  # pyright: ignore[reportUnknownMemberType]
        [AddedToken(token, normalized=False, special=token in SPECIAL_TOKENS) for token in CONTROL_TOKENS]
    )
    return tokenizer


def check_layout(tokenizer: Tokenizer) -> None:
    """Raise unless rank order is id order and the text of each token encodes to that token.

    Together these two make every implementation that merges by rank of the result (tiktoken) agree with one that
    merges by rank of the pair (tokenizers) on all strings.
    """
    model = json.loads(tokenizer.to_str())["model"]
    merged = [left + right for left, right in model["merges"]]
    ordinary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if ordinary != sorted(ByteLevel.alphabet()) + merged or len(set(ordinary)) != len(ordinary):
        raise TrainingError("two merges make the same token, so ranks and ids differ; change the corpus a little.")
    bpe = BPE(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    for token in ordinary:
        pieces = [piece.value for piece in bpe.tokenize(token)]
        if pieces != [token]:
            raise TrainingError(f"token {token!r} encodes to {pieces}, not to itself; change the corpus a little.")
    ids = [tokenizer.token_to_id(token) for token in CONTROL_TOKENS]
    expected = list(range(TOTAL_IDS - len(CONTROL_TOKENS), TOTAL_IDS))
    if ids != expected:
        raise TrainingError(f"control tokens have ids {ids}, expected {expected}; is the corpus too small?")


def trained_bytes() -> bytes:
    """Return the tokenizer file's content, trained from the corpus."""
    tokenizer = train(read_corpus())
    check_layout(tokenizer)
    return (tokenizer.to_str(pretty=False) + "\n").encode("utf-8")


def check(trained: bytes) -> None:
    """Raise unless the trained content equals the file in the repository."""
    found = hashlib.sha256(EMBEDDED.read_bytes()).hexdigest() if EMBEDDED.exists() else "none: the file does not exist"
    expected = hashlib.sha256(trained).hexdigest()
    if found != expected:
        raise TrainingError(
            f"{EMBEDDED} has sha256 {found}, training gives {expected}. "
            "Run scripts/train_embedded_tokenizer.py without --check and commit the file."
        )


def main() -> int:
    """Train, then write or check the file; return the exit status."""
    parser = argparse.ArgumentParser(description="Train the embedded tokenizer.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail unless the file is up to date")
    arguments = parser.parse_args()
    try:
        trained = trained_bytes()
        if arguments.check:
            check(trained)
        else:
            EMBEDDED.write_bytes(trained)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{EMBEDDED.name}: {len(trained):,} bytes, sha256 {hashlib.sha256(trained).hexdigest()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
