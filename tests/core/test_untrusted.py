"""Files that others wrote: each attack ends with a typed error, within 10 s of a processor and 500 MiB of memory.

The attacks are in `attacks_on_files.py`. A small seeded sample of mutations runs in every test run; all with `--full`.
"""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attacks_on_files
import numpy as np
import orjson
import pytest
from attacks_on_files import ATTACKS

from envsdk._untrusted import MAX_DEPTH, max_line_bytes, parse_json
from envsdk.errors import EnvsdkError, InvalidRecord
from envsdk.rendering.tokenizers import HuggingFaceTokenizer, load_tokenizer
from envsdk.rendering.tokenizers._files import DATA
from envsdk.rollouts import StoredRun
from envsdk.viewer._sources import Source

# These repeat another attack with another file or value, and take long.
REPEATED = {
    *(f"manifest.json {what}" for what in ("is a device", "is outside", "has 2 GiB", "is deep")),
    *(f"a line of {what}" for what in ("lists", "objects", "pairs")),
    *(f"{what} in a line of 2 GiB" for what in ("records", "requests", "tasks")),
    *("a run continues after a line of 2 GiB", "1 GiB in 33 KB are shown"),
    *("1 GiB of empty lines in 33 KB", "a run continues after 1 GiB in 33 KB", "thirty million empty lines of times"),
}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[str, str]:
    """The result of each attack, of one program that forks for each."""
    names = [name for name in ATTACKS if name not in REPEATED or request.config.getoption("--full")]
    command = [sys.executable, attacks_on_files.__file__, *names]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in REPEATED else name for name in ATTACKS]
)
def test_an_attack_ends_with_a_typed_error_within_the_limits(name: str, results: dict[str, str]) -> None:
    expected = ATTACKS[name].error
    if expected.startswith("... "):
        assert expected.removeprefix("... ") in results[name]
    else:
        assert results[name] == expected


def test_what_is_read_may_be_as_deep_as_what_is_written() -> None:
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(InvalidRecord, match="more than 200 levels"):
        parse_json('{"a":[' * 101 + "]}" * 101)


def test_the_limit_of_a_line_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSDK_MAX_RECORD_MIB", "128")
    assert max_line_bytes() == 128 * 2**20
    monkeypatch.setenv("ENVSDK_MAX_RECORD_MIB", "many")
    with pytest.raises(InvalidRecord, match="ENVSDK_MAX_RECORD_MIB is 'many'"):
        max_line_bytes()


# Mutations.


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Data with a few bytes changed, removed or repeated."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(changed))
        part = changed[at : at + rng.choice([1, 1, 4, 40])]
        changed[at : at + len(part)] = rng.choice(
            [b"", part * 2, bytes([rng.randrange(256)]), b'"', b"0", b"[", b"null"]
        )
    return bytes(changed)


def used(folder: Path) -> None:
    """Read everything that describes a run."""
    run = StoredRun(folder)
    _ = repr(run), run.configuration, Source(folder).info
    for renderer in run.renderers.values():
        renderer.tokenizer.decode(renderer.tokenizer.encode("Hello, 世界 <|im_end|> 123"))
    for trajectory in run.trajectories():
        with suppress(KeyError):
            run.tokenizer_of(trajectory)


def tokenized(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "tokenizer")
    tokens, _ = tokenizer.encode_with_ends("Hello, 世界 <|im_end|> 123")
    tokenizer.decode(np.append(tokens, [0, 1, 2**31 - 1]))


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "intact"
    attacks_on_files.store(path)
    specification = json.loads((DATA / "embedded.json").read_bytes())
    HuggingFaceTokenizer("slow", specification).save(path / "slow" / "tokenizer")
    (path / "model" / "tokenizer").mkdir(parents=True)
    (path / "model" / "tokenizer" / "tokenizer.json").write_bytes(orjson.dumps(specification))
    return path


def errors_of(file: Path, read: Callable[[Path], None], folder: Path, count: int) -> list[str]:
    """What mutations of a file raised that is not an error of envsdk."""
    rng, content, found = random.Random(0), file.read_bytes(), []
    for _ in range(count):
        file.write_bytes(mutated(rng, content))
        try:
            read(folder)
        except EnvsdkError:
            pass
        except BaseException as error:
            found.append(repr(error))
    return found


MUTATED: dict[str, Callable[[Path], None]] = {
    "run.json": used,
    "manifest.json": used,
    "tokenizer/envsdk_tokenizer.json": tokenized,
    "tokenizer/vocabulary.tiktoken": tokenized,
    "slow/tokenizer/tokenizer.json": tokenized,
    "model/tokenizer/tokenizer.json": tokenized,
}


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", MUTATED)
def test_a_mutated_file_is_read_or_refused_with_a_typed_error(
    name: str, count: int, intact: Path, tmp_path: Path
) -> None:
    shutil.copytree(intact, tmp_path / "run")
    file = tmp_path / "run" / name
    assert not errors_of(file, MUTATED[name], file.parent.parent if "tokenizer/" in name else file.parent, count)
