"""Attacks on the readers of files, each run in a process of its own with limits on memory and processor time.

As a program, it runs all attacks, and prints the result of each as JSON.
"""

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from envsdk import make
from envsdk._untrusted import MIB
from envsdk.authoring.tasks import load_tasks
from envsdk.cli._import import atif_documents, logged_sessions
from envsdk.errors import EnvsdkError
from envsdk.rollouts import RunFolder, StoredRun, rollout, rollout_many
from envsdk.rollouts._stored_run import recover
from envsdk.rollouts.evaluation import Suite, runs_of
from envsdk.trajectories._trajectory import Trajectory
from envsdk.trajectories.records import read_jsonl
from envsdk.viewer._sources import Source
from envsdk.viewer.reporting._report import stored_divergence

MEMORY_MIB, CPU_S, HANGS_S = 500, 10, 120


class Attack(NamedTuple):
    """What is put into a folder that was intact, how it is read, and the error that is expected."""

    change: Callable[[Path], object]
    read: Callable[[Path], object]
    error: str = "RunFolderError"


# What is read.


def trajectories(folder: Path) -> None:
    for _ in StoredRun(folder).trajectories():
        pass


def renderers(folder: Path) -> None:
    _ = StoredRun(folder).renderers


def resumed(folder: Path) -> None:
    run = StoredRun(folder)
    recover(folder / run.description.trajectories, run.manifest)


def shown(folder: Path) -> str:
    """The reason of the last row, as viewers show it."""
    source = Source(folder)
    source.refresh()
    assert len(source.rows) <= 1100
    return source.rows[-1].damage


def reported(folder: Path) -> str:
    return stored_divergence(folder)[2][0].why


def records(folder: Path) -> None:
    for _ in read_jsonl(folder / "trajectories.jsonl", Trajectory):
        pass


def images(folder: Path) -> None:
    for trajectory in StoredRun(folder).trajectories():
        for image in trajectory.images:
            _ = image.data


def imported(folder: Path) -> None:
    for _ in atif_documents(folder / "log.json"):
        pass


def imported_requests(folder: Path) -> None:
    for _ in logged_sessions(folder / "log.jsonl"):
        pass


def tasks(folder: Path) -> None:
    load_tasks(folder / "tasks.jsonl")


def suite(folder: Path) -> None:
    for file in folder.glob("suite.*"):
        Suite.read(file)


def evaluation(folder: Path) -> None:
    (folder / "run.json").rename(folder / "other.json")
    for _ in runs_of(folder):
        pass


# What is changed.


def pipe(name: str) -> Callable[[Path], object]:
    return lambda folder: (remove(folder / name), os.mkfifo(folder / name))


def link(name: str, target: str) -> Callable[[Path], object]:
    return lambda folder: (remove(folder / name), (folder / name).symlink_to(target))


def content(name: str, data: bytes | Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda folder: (
        remove(folder / name),
        (folder / name).write_bytes(data if isinstance(data, bytes) else data()),
    )


def hole(name: str, size_mib: int) -> Callable[[Path], object]:
    """A file of zeros that takes no space."""
    return lambda folder: (remove(folder / name), (folder / name).touch(), os.truncate(folder / name, size_mib * MIB))


def image_of(folder: Path) -> str:
    """The name of an image that the run has stored."""
    return next(str(file.relative_to(folder)) for file in sorted(folder.glob("media/*")))


def fields(name: str, **changed: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_bytes()), **changed}))

    return change


def renderer_field(**changed: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        described = json.loads((folder / "run.json").read_bytes())
        described["renderers"]["main"].update(changed)
        (folder / "run.json").write_text(json.dumps(described))

    return change


def compressed(data: Callable[[], bytes]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / "manifest.json").unlink()
        fields("run.json", trajectories="trajectories.jsonl.zst")(folder)
        (folder / "trajectories.jsonl.zst").write_bytes(data())

    return change


@cache
def bomb(byte: bytes) -> bytes:
    """A gigabyte of a byte in 33 KB."""
    compressor = zstandard.ZstdCompressor().compressobj()
    block = byte * (4 * MIB)
    return b"".join([*(compressor.compress(block) for _ in range(256)), compressor.flush()])


def beginnings_of_frames() -> bytes:
    """A frame that is cut off, in whose place millions of others seem to begin."""
    whole = zstandard.ZstdCompressor().compress(os.urandom(MIB))
    return whole[:1000] + b"\x28\xb5\x2f\xfd" * (4 * MIB)


def values(one: bytes) -> Callable[[], bytes]:
    """A line of values that take far more memory than text."""
    return lambda: b'{"schema":2,"kind":"trajectory","config":[' + one * (40 * MIB // len(one)) + b"0]}\n"


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


DEEP = b"[" * 3_000_000
LINES, RUN, TOKENIZER = "trajectories.jsonl", "run.json", "tokenizer/envsdk_tokenizer.json"
FILES = (RUN, "manifest.json", LINES)

ATTACKS: dict[str, Attack] = {
    **{f"{name} is a pipe": Attack(pipe(name), trajectories) for name in FILES},
    **{f"{name} is a device": Attack(link(name, "/dev/zero"), trajectories) for name in FILES},
    **{f"{name} is outside": Attack(link(name, "/etc/passwd"), trajectories) for name in FILES},
    **{f"{name} has 2 GiB": Attack(hole(name, 2048), trajectories) for name in FILES},
    **{f"{name} is deep": Attack(content(name, DEEP), trajectories) for name in FILES},
    "run.json has a long integer": Attack(content(RUN, b"9" * 100_000), trajectories),
    "run.json is not UTF-8": Attack(content(RUN, b'"\xff"'), trajectories),
    "a tokenizer is elsewhere": Attack(renderer_field(folder="../../etc"), renderers),
    "the folder of a tokenizer is elsewhere": Attack(link("tokenizer", "/etc"), renderers),
    # Trajectories.
    "a pipe is shown": Attack(pipe(LINES), shown, "... is a pipe, a device or a socket"),
    "a device is shown": Attack(link(LINES, "/dev/zero"), shown, "... is a link to '/dev/zero'"),
    "a line of 2 GiB is shown": Attack(hole(LINES, 2048), shown, "... a line has more than 64 MiB"),
    "three million empty lines": Attack(content(LINES, b"\n" * 3_000_000), trajectories),
    "three million empty lines are shown": Attack(
        content(LINES, b"\n" * 3_000_000), shown, "... more than 1,000 lines"
    ),
    "a run continues after a line of 2 GiB": Attack(hole(LINES, 2048), resumed),
    "records in a pipe": Attack(pipe(LINES), records, "InvalidRecord"),
    "records in a line of 2 GiB": Attack(hole(LINES, 2048), records, "InvalidRecord"),
    **{
        f"a line of {name}": Attack(content(LINES, values(one)), trajectories)
        for name, one in {"lists": b"[],", "objects": b"{},", "pairs": b'{"a":0},', "numbers": b"1e5,"}.items()
    },
    "a line of 4-byte characters": Attack(content(LINES, lambda: "😀".encode() + b"a" * (60 * MIB)), trajectories),
    "1 GiB of one line in 33 KB": Attack(compressed(lambda: bomb(b"a")), trajectories),
    "1 GiB of empty lines in 33 KB": Attack(compressed(lambda: bomb(b"\n")), trajectories),
    "1 GiB in 33 KB are shown": Attack(compressed(lambda: bomb(b"a")), shown, "... expands to more than 64 MiB"),
    "a run continues after 1 GiB in 33 KB": Attack(compressed(lambda: bomb(b"a")), resumed),
    "millions of frames seem to begin": Attack(compressed(beginnings_of_frames), trajectories),
    "times in a pipe": Attack(pipe("times.jsonl"), shown, "read"),
    "times in a line of 15 MiB of lists": Attack(content("times.jsonl", lambda: b"[]," * (5 * MIB)), shown, "read"),
    "thirty million empty lines of times": Attack(content("times.jsonl", lambda: b"\n" * 30_000_000), shown, "read"),
    "samples outside": Attack(link("samples.jsonl", "/etc/passwd"), reported, "... is a link to"),
    # Tokenizers.
    "a vocabulary is a device": Attack(fields(TOKENIZER, vocabulary="/dev/zero"), renderers, "TokenizerError"),
    "a vocabulary is elsewhere": Attack(fields(TOKENIZER, vocabulary="../run.json"), renderers, "TokenizerError"),
    **{
        f"{name} is {what}": Attack(change(f"tokenizer/{name}"), renderers, "TokenizerError")
        for name in ("vocabulary.tiktoken", "envsdk_tokenizer.json")
        for what, change in {
            "a linked device": lambda name: link(name, "/dev/zero"),
            "a link elsewhere": lambda name: link(name, "/etc/passwd"),
            "2 GiB long": lambda name: hole(name, 2048),
            "deep": lambda name: content(name, DEEP),
        }.items()
    },
    "a vocabulary is a pipe": Attack(pipe("tokenizer/vocabulary.tiktoken"), renderers, "TokenizerError"),
    "a tokenizer has 10**15 ids": Attack(fields(TOKENIZER, vocab_size=10**15), renderers, "TokenizerError"),
    "a vocabulary has the id 2**40": Attack(
        content("tokenizer/vocabulary.tiktoken", b"YQ== 1099511627776\n"), renderers, "TokenizerError"
    ),
    "a pattern has a billion states": Attack(
        fields(TOKENIZER, rules={"pattern": "((a{1000}){1000}){1000}", "nfc": False}), renderers, "TokenizerError"
    ),
    # Images, logs, tasks, reports.
    "a report of an evaluation is a list": Attack(content("evaluation.json", b"[]"), evaluation),
    "a report of an evaluation is deep": Attack(content("evaluation.json", DEEP), evaluation),
    **{
        f"an image is {what}": Attack(
            lambda folder, change=change: change(image_of(folder))(folder), images, "ImageError"
        )
        for what, change in {
            "a pipe": pipe,
            "a linked device": lambda name: link(name, "/dev/zero"),
            "a link elsewhere": lambda name: link(name, "/etc/passwd"),
            "2 GiB long": lambda name: hole(name, 2048),
        }.items()
    },
    "a suite is a pipe": Attack(pipe("suite.toml"), suite, "ConfigError"),
    "a suite is a device": Attack(link("suite.toml", "/dev/zero"), suite, "ConfigError"),
    "a suite is deep": Attack(content("suite.toml", b"a = " + DEEP), suite, "ConfigError"),
    "a suite in YAML is deep": Attack(content("suite.yaml", b"[" * 30_000), suite, "ConfigError"),
    "a log is a pipe": Attack(pipe("log.json"), imported, "InvalidRecord"),
    "a log is a device": Attack(link("log.json", "/dev/zero"), imported, "InvalidRecord"),
    "a log is deep": Attack(content("log.json", DEEP), imported, "InvalidRecord"),
    "a log of 2 GiB": Attack(hole("log.json", 2048), imported, "InvalidRecord"),
    "requests in a pipe": Attack(pipe("log.jsonl"), imported_requests, "InvalidRecord"),
    "requests in a line of 2 GiB": Attack(hole("log.jsonl", 2048), imported_requests, "InvalidRecord"),
    "tasks in a pipe": Attack(pipe("tasks.jsonl"), tasks, "TaskError"),
    "tasks in a line of 2 GiB": Attack(hole("tasks.jsonl", 2048), tasks, "TaskError"),
    "a task is deep": Attack(content("tasks.jsonl", DEEP), tasks, "TaskError"),
}


def result_of(attack: Attack, folder: Path) -> str:
    """The class of the error, or a beginning of the text that was returned; of a child process with limits."""
    attack.change(folder)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(HANGS_S)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_MIB * MIB,) * 2)
        used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_S,) * 2)
        try:
            found = attack.read(folder)
            text = f"... {found}" if found else "read"
        except BaseException as error:
            text = type(error).__name__ if isinstance(error, EnvsdkError) else repr(error)[:500]
        os.write(write, text.encode()[:4000])
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read() if status == 0 else f"ended with the status {os.waitstatus_to_exitcode(status)}"


def run_all(names: list[str]) -> dict[str, str]:
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as root:
        intact = Path(root, "intact")
        store(intact)
        for name in names:
            folder = Path(root, "attacked")
            shutil.copytree(intact, folder)
            results[name] = result_of(ATTACKS[name], folder)
            shutil.rmtree(folder)
    return results


def store(path: Path) -> None:
    import asyncio

    name = "envsdk/GuessNumber-v1"
    env = make(name)
    with RunFolder.create(path, {"env": name}, {"main": env.renderer}) as folder:
        for trajectory in rollout_many(name, "reference", seeds=range(2)):
            asyncio.run(folder.append(trajectory))
        with_images = rollout("envsdk/ChartReader-v0", "reference", seed=0)
        asyncio.run(folder.append(with_images))


if __name__ == "__main__":
    print(json.dumps(run_all(sys.argv[1:] or [*ATTACKS])))
