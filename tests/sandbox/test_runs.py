"""Running programs: what comes of them, what is left of them, and what happens when it is not their fault."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk import errors, sandbox
from envsdk.errors import SandboxError, SandboxUnavailable
from envsdk.sandbox import Isolation, SandboxLimits, arun_python, run_python
from envsdk.sandbox import _isolation as isolations
from envsdk.sandbox._interpreter import shown_files
from envsdk.sandbox._process import Output
from envsdk.sandbox._result import limit_in


@pytest.fixture(scope="module", autouse=True)
def _is_available():
    try:
        sandbox.check_isolation()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


Find = Callable[[str], list[int]]


def sleeper(token: str) -> str:
    """A program that sleeps for long, and can be found by a word."""
    return f"""
import ctypes, os, sys, time
try:
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", {token!r}])
except PermissionError:  # Landlock
    ctypes.CDLL(None).prctl(15, {token.encode()!r})
    time.sleep(600)
"""


def escapee(token: str) -> str:
    """A program that sleeps for long, and of which the kernel has forgotten to end it with its parent."""
    arguments = f'[sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", {token!r}]'
    return f"""
import ctypes, os, sys, threading, time
ctypes.CDLL(None).prctl(1, 0)
leaving = threading.Thread(target=os.execv, args=(sys.executable, {arguments}))
leaving.start()
leaving.join()  # under Landlock, it fails
ctypes.CDLL(None).prctl(15, {token.encode()!r})
time.sleep(600)
"""


FREE: Isolation = "unsafe_no_isolation"
PROGRAMS = pytest.mark.parametrize("program", [sleeper, escapee])


@pytest.fixture(params=["bubblewrap", "namespaces", "landlock", "unsafe_no_isolation"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    try:
        return sandbox.check_isolation(request.param)
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def wait_until(condition) -> bool:
    end = time.monotonic() + 600  # against hanging
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


def children(parent: int | None = None) -> list[int]:
    """The processes that a process has started, by default this one."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(file.read_text(errors="replace").rpartition(")")[2].split()[1]) == (parent or os.getpid()):
                found.append(int(file.parent.name))
    return found


# What comes of a program.


def test_a_program_has_its_output_its_errors_and_its_status():
    result = run_python("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    assert (result.stdout, result.stderr, result.exit_status, result.limit) == ("out\n", "err\n", 3, None)
    assert run_python("", stdin="x" * 10**7).report() == "[no output]"  # and what is not read is no problem
    assert not result.ok
    assert result.report() == "out\n[errors]\nerr\n[exit status 3]"
    assert result.seconds > 0


def test_an_error_shows_the_line():
    assert "line 2, in <module>\n    1 / 0\n" in run_python("x = 1\n1 / 0").stderr


@pytest.mark.parametrize(
    "code", ["x = '\ud800'", "print(1)\0", "def", "\x00", "🙂", "\ufeffprint('", "#" * 10**6 + "\n!"]
)
def test_any_text_is_a_program_though_perhaps_none_that_python_reads(code: str):
    assert run_python(code).exit_status in (0, 1)


@pytest.mark.parametrize("stdin", ["", "one\ntwo\n", "ü🙂" * 10**5])
def test_a_program_reads_its_input_whole_and_its_end(stdin: str):
    result = run_python("import sys\nprint(len(sys.stdin.buffer.read()), sys.stdin.read() == '')", stdin=stdin)
    assert result.stdout == f"{len(stdin.encode())} True\n"


def test_bytes_that_are_no_text_are_replaced():
    assert run_python("import sys\nsys.stdout.buffer.write(b'a\\xffb\\xc3')").stdout == "a\ufffdb\ufffd"


def test_a_signal_that_ends_a_program_is_told():
    result = run_python("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert (result.exit_status, result.report()) == (-11, "[the program was ended by signal 11]")


def test_the_standard_library_is_there():
    names = "json math re collections itertools functools random datetime sqlite3 hashlib decimal asyncio ssl zoneinfo"
    code = "\n".join(f"import {name}" for name in names.split()) + "\nasyncio.run(asyncio.sleep(0))\nprint('all')"
    assert run_python(code).stdout == "all\n"


def test_threads_and_files_work_as_usual():
    code = """
import concurrent.futures, tempfile
with tempfile.TemporaryFile() as file:
    file.write(b"x")
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    print(sum(pool.map(abs, [-1, 2])))
"""
    assert run_python(code).stdout == "3\n"


def test_processes_of_its_own_work_in_namespaces():
    if sandbox.check_isolation() == "landlock":
        pytest.skip("no namespaces here")
    code = """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(abs, [-1, 2]))
"""
    assert run_python(code).stdout == "[1, 2]\n"


def test_the_beginning_and_the_end_of_a_long_output_are_kept():
    result = run_python("for i in range(2000): print(i)\n1 / 0", limits=SandboxLimits(output_kib=1))
    assert result.stdout.startswith("0\n1\n")
    assert result.stdout.endswith("\n1998\n1999\n")
    assert "bytes are left out" in result.stdout
    assert (result.stdout_cut, result.stderr_cut, result.limit, result.exit_status) == (True, False, None, 1)


@given(chunks=st.lists(st.binary(max_size=30)), limit=st.integers(1, 40))
def test_what_is_kept_is_bounded_and_is_the_beginning_and_the_end(chunks: list[bytes], limit: int):
    output = Output(limit)
    for chunk in chunks:
        output.add(chunk)
    whole = b"".join(chunks)
    assert output.is_cut == (len(whole) > limit)
    if not output.is_cut:
        assert output.text() == whole.decode(errors="replace")
    else:
        head, tail = whole[: limit // 2], whole[-(limit - limit // 2) :]
        assert output.text().startswith(head.decode(errors="replace"))
        assert output.text().endswith(tail.decode(errors="replace"))
        assert f"[... {len(whole) - limit:,} bytes" in output.text()


@pytest.mark.parametrize(
    "isolation", ["bubblewrap", "namespaces", "landlock"], indirect=True
)  # else, errors show the folder
def test_the_same_program_gives_the_same_bytes(isolation: Isolation):
    code = "import sys\nprint(sys.argv, sys.flags, sys.path)\n"
    if isolation != "landlock":
        code += "import os, platform\nprint(os.getpid(), os.getcwd(), os.listdir('/'), platform.node())\n"
    first, second = (run_python(f"{code}1 / 0", isolation=isolation) for _ in range(2))
    assert first.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr)


# How it is told what is wrong.


def test_an_isolation_that_does_not_exist_is_refused():
    with pytest.raises(errors.UnknownName, match="'landlock'"):
        run_python("1", isolation="landlok")  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"timeout_s": 0}, {"memory_mib": 1}, {"processes": 0}, {"time": 1}])
def test_limits_without_a_meaning_are_refused(limits: dict):
    with pytest.raises(ValueError, match=next(iter(limits))):
        SandboxLimits(**limits)


def test_without_isolation_there_are_limits_still(processes_with: Find):
    limits = SandboxLimits(timeout_s=0.3)
    result = run_python("import os\nprint(os.path.exists('/etc/passwd'))", isolation="unsafe_no_isolation")
    assert (result.stdout, result.isolation) == ("True\n", "unsafe_no_isolation")
    token = uuid.uuid4().hex
    code = f"import os\nos.fork()\n{sleeper(token)}"
    result = run_python(code, limits=limits, isolation="unsafe_no_isolation")
    assert result.limit == "time"
    assert wait_until(lambda: not processes_with(token))


def test_what_is_no_fault_of_the_program_is_an_error_and_no_result():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as file:
        lowest = file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(SandboxError, match="Too many open files"):
            run_python("print(1)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert run_python("print(1)").stdout == "1\n"


@pytest.mark.matrix
@PROGRAMS
def test_a_launcher_that_is_killed_is_an_error_and_takes_the_program_with_it(
    program: Callable[[str], str], isolation: Isolation, processes_with: Find
):
    token = uuid.uuid4().hex
    before = set(children())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_python, program(token), isolation=isolation)
        assert wait_until(lambda: processes_with(token))
        launchers = set(children()) - before
        for pid in launchers:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="did not report how the program ended"):
            running.result()
    assert wait_until(lambda: not processes_with(token))


@pytest.mark.matrix(every=2)
@PROGRAMS
def test_a_program_ends_when_who_started_it_is_killed(
    program: Callable[[str], str], isolation: Isolation, processes_with: Find
):
    token = uuid.uuid4().hex
    code = f"from envsdk.sandbox import run_python; run_python({program(token)!r}, isolation={isolation!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert wait_until(lambda: processes_with(token))
        process.kill()
    assert wait_until(lambda: not processes_with(token))


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("restricted", ["bubblewrap", "namespaces", "landlock"])
def test_a_program_ends_when_its_launcher_and_who_started_it_are_killed_together(
    restricted: Isolation, processes_with: Find
):
    try:
        sandbox.check_isolation(restricted)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    token = uuid.uuid4().hex
    code = f"from envsdk.sandbox import run_python; run_python({escapee(token)!r}, isolation={restricted!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert wait_until(lambda: processes_with(token))
        together = [process.pid, *children(process.pid)]
        assert len(together) > 1
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in together:
                os.kill(pid, number)
    assert wait_until(lambda: not processes_with(token))


def test_an_interpreter_in_the_temporary_folder_works_in_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    try:
        sandbox.check_isolation("namespaces")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    file = tmp_path / "part_of_the_interpreter"
    file.write_text("found")
    mounts, hidden = shown_files()
    target = f"/tmp/{uuid.uuid4().hex}/part"
    monkeypatch.setattr(isolations, "shown_files", lambda: ([*mounts, (str(file), target)], hidden))
    result = run_python(f"open('own', 'w'); print(open({target!r}).read())", isolation="namespaces")
    assert (result.stdout, result.stderr) == ("found\n", "")


@pytest.mark.full
@pytest.mark.matrix(every=2)
@PROGRAMS
def test_a_launcher_that_stopped_does_not_keep_a_program_beyond_its_time(
    program: Callable[[str], str], isolation: Isolation, processes_with: Find, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sandbox._process, "_STOP_S", 0.3)
    token = uuid.uuid4().hex
    before = set(children())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_python, program(token), isolation=isolation, limits=SandboxLimits(timeout_s=1))
        assert wait_until(lambda: processes_with(token))
        for pid in set(children()) - before:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(SandboxError, match="could not be stopped"):
            running.result()
    assert wait_until(lambda: not processes_with(token))


def test_without_isolation_a_daemon_does_not_outlive_its_program(processes_with: Find):
    token = uuid.uuid4().hex
    code = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", {token!r}], start_new_session=True)
if os.fork() == 0: os._exit(0)
time.sleep(0.3)
print('left')
"""
    assert run_python(code, isolation="unsafe_no_isolation").stdout == "left\n"
    assert not processes_with(token)


WITHOUT = """
import errno, os, sys
from envsdk.errors import SandboxUnavailable
from envsdk.sandbox import _launcher as launcher, run_python

numbers = {forbidden}
rules = [(0x20, 0, 0, 0)]
for number in numbers:
    rules += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM)]
launcher.call("prctl", 38, 1, 0, 0, 0)
launcher.restrict_system_calls(launcher.packed([*rules, (0x06, 0, 0, 0x7FFF0000)], {{}}))
try:
    print(run_python("print(1)").isolation)
    print(run_python("print(1)", isolation="namespaces"))
except SandboxUnavailable as error:
    print(error)
"""
LANDLOCK = 444


@pytest.mark.parametrize("forbidden", [["unshare"], ["mount"]])
def test_where_namespaces_are_forbidden_landlock_takes_over(forbidden: list[str]):
    try:
        sandbox.check_isolation("landlock")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    numbers = [sandbox._system_calls.system_call(name) for name in forbidden]
    said = _python(WITHOUT.format(forbidden=numbers), PATH="")
    assert said.startswith("landlock\nnamespaces: the program could not be confined: PermissionError")
    assert forbidden[0] in said


def test_where_nothing_isolates_it_is_said_and_nothing_is_run():
    said = _python(WITHOUT.format(forbidden=[sandbox._system_calls.system_call("unshare"), LANDLOCK]))
    assert said.startswith("bubblewrap")
    assert "; namespaces: " in said
    assert "; landlock: " in said
    assert "isolation='unsafe_no_isolation'" in said


@pytest.mark.full
def test_bubblewrap_is_preferred_and_its_failure_is_told(tmp_path: Path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n")
    fake.chmod(0o755)
    code = """
from envsdk.errors import SandboxUnavailable
from envsdk.sandbox import check_isolation
try:
    check_isolation("bubblewrap")
except SandboxUnavailable as error:
    print(error)
print(check_isolation())
"""
    said, chosen = _python(code, PATH=str(tmp_path)).splitlines()
    assert said.startswith("bubblewrap: bwrap: setting up uid map: Permission denied. ")
    assert chosen in ("namespaces", "landlock")
    missing, _ = _python(code, PATH="").splitlines()
    assert "bwrap is not on the PATH" in missing


def _python(code: str, **variables: str) -> str:
    command, variables = [sys.executable, "-c", code], {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout


# What is left.


def test_many_runs_leave_no_process_no_file_and_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
):
    count = 100 if is_full else 12
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_python("")
    before, children = _open_files(), _children()
    with ThreadPoolExecutor(4) as pool:
        runs = pool.map(lambda i: run_python(f"print({i})", isolation="auto" if i % 10 else FREE), range(count))
        assert [result.stdout for result in runs] == [f"{i}\n" for i in range(count)]
    assert (_open_files(), list(tmp_path.iterdir())) == (before, [])
    assert _children() <= children  # an earlier test may have left one, such as multiprocessing's resource tracker


def _children() -> set[str]:
    return {child for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()}


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next_one_and_no_other(tmp_path: Path):
    (tmp_path / "envsdk-sandbox-file").write_text("a file is not a folder")
    (tmp_path / "envsdk-sandbox-link").symlink_to(Path(__file__).parent)
    with _runs_for(60, tmp_path) as alive:
        assert wait_until(lambda: len(_folders(tmp_path)) == 1)
        of_alive = _folders(tmp_path)
        with _runs_for(60, tmp_path) as killed:
            assert wait_until(lambda: len(_folders(tmp_path)) == 2)
            killed.kill()
        assert len(_folders(tmp_path)) == 2
        _runs_for(0, tmp_path).wait()
        assert _folders(tmp_path) == of_alive
        alive.kill()
    assert (tmp_path / "envsdk-sandbox-file").exists()
    assert Path(__file__).exists()


def _runs_for(seconds: float, root: Path) -> "subprocess.Popen[bytes]":
    """A process that runs a program in a folder of `root`."""
    code = (
        f"from envsdk.sandbox import run_python as run; run('import time; time.sleep({seconds})', isolation={FREE!r})"
    )
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(root)})


def _folders(root: Path) -> set[Path]:
    return {path for path in root.glob("envsdk-sandbox-*") if path.is_dir() and not path.is_symlink()}


def _open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_a_parent_that_ignores_its_children_changes_nothing():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run_python("raise SystemExit(3)").exit_status == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_file_mask_that_shuts_everybody_out_changes_nothing():
    mask = os.umask(0o777)
    try:
        assert run_python("open('x', 'w').close()\nprint(1)").stdout == "1\n"
    finally:
        os.umask(mask)


def test_a_run_takes_less_than_a_tenth_of_a_second():
    run_python("")
    before = os.times()
    for _ in range(10):
        run_python("print(1)")
    spent = [after - then for after, then in zip(os.times()[:4], before[:4], strict=True)]
    assert sum(spent) / 10 < 0.1  # of processor time: a busy machine takes longer


# Without waiting.


def test_the_event_loop_goes_on_while_programs_run():
    async def go_on() -> tuple[list[str], int]:
        ticks = 0
        runs = asyncio.gather(*(arun_python(f"import time\ntime.sleep(0.2)\nprint({i})") for i in range(3)))
        while not runs.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return [result.stdout for result in await runs], ticks

    results, ticks = asyncio.run(go_on())
    assert results == ["0\n", "1\n", "2\n"]
    assert ticks > 5


def test_a_run_that_is_cancelled_is_stopped(processes_with: Find):
    token = uuid.uuid4().hex

    async def cancel() -> None:
        task = asyncio.create_task(arun_python(sleeper(token)))
        while not processes_with(token):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert wait_until(lambda: not processes_with(token))


def test_too_many_processes_are_known_though_all_of_them_write_at_once() -> None:
    mixed = "Traceback:\n  ^^^^\nBlockingIOError: [Errno 11] Resource temporarily unavailable\nwhile True: os.fork()\n"
    assert limit_in(mixed) == "processes"
    assert limit_in("Traceback:\nMemoryError\n") == "memory"
    assert limit_in("MemoryError\nValueError: it went on\n") is None


@pytest.mark.parametrize(("error", "limit"), [("MemoryError", "memory"), ("ValueError", None)])
def test_an_error_that_python_has_no_memory_left_to_print_is_known(error: str, limit: str | None):
    dumped = f"object refcount : 3\nobject type name: {error}\nobject repr     : {error}()\nlost sys.stderr\n"
    assert limit_in(f"Traceback:\n{dumped}") == limit
    assert limit_in(f"{dumped}ValueError: it went on\n") is None
