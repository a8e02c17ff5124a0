"""The process in which queries run: a query that exceeds a limit ends at most that process."""

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from envsdk_environments._sql_analyst import SqlAnalyst
from envsdk_environments._sql_analyst import _worker as worker
from envsdk_environments._sql_analyst._databases import run_script
from envsdk_environments._sql_analyst._worker import QueryWorker, TooManySteps
from envsdk_environments._sql_analyst.guarded._query import QueryLimits

import envsdk
from envsdk.errors import SandboxError, ToolError

IMAGE = run_script("CREATE TABLE pets (name TEXT)")
LIMITS = QueryLimits(500_000, 1_000)
UNLIMITED = QueryLimits(10**15, 1_000)
ENDLESS = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k) SELECT count(*) FROM k"
COPIES = "WITH c0 AS (SELECT 1 AS z), " + ", ".join(
    f"c{i} AS (SELECT l.z FROM c{i - 1} l, c{i - 1} r)" for i in range(1, 40)
)


def answer(worker: QueryWorker, number: int = 7) -> int:
    """The answer of a worker that works."""
    [(found,)] = worker.run(IMAGE, f"SELECT {number}", LIMITS, 1).rows
    assert isinstance(found, int)
    return found


def pid_of(worker: QueryWorker) -> int:
    process = worker._process
    assert process is not None
    return process._popen.pid


def is_gone(pid: int) -> bool:
    """Whether there is no such process, not even one that has ended and was not waited for."""
    return not Path(f"/proc/{pid}").exists()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def queries() -> Iterator[QueryWorker]:
    with closing(QueryWorker()) as worker:
        yield worker


def test_the_process_starts_with_the_first_query_and_stays(queries: QueryWorker):
    assert queries._process is None
    answer(queries)
    pid = pid_of(queries)
    assert answer(queries) == 7
    with pytest.raises(ToolError):
        queries.run(IMAGE, "SELECT nothing", LIMITS, 1)
    assert pid_of(queries) == pid


@pytest.mark.full
def test_a_query_that_takes_too_much_memory_is_refused_and_the_process_stays(queries: QueryWorker):
    answer(queries)
    pid = pid_of(queries)
    with pytest.raises(ToolError, match="the query is too large; make it simpler"):
        queries.run(IMAGE, f"{COPIES} SELECT z FROM c39", LIMITS, 1)
    long = f"(SELECT replace('{'a' * 300}', 'a', '{'a' * 300}') AS text)"
    many = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k LIMIT 5000)"
    with pytest.raises(ToolError, match="the query is too large; make it simpler"):
        queries.run(IMAGE, f"{many} SELECT text || i FROM k, {long} ORDER BY 1", QueryLimits(10**9, 100_000), 1)
    assert (answer(queries), pid_of(queries)) == (7, pid)


@pytest.mark.full
def test_a_query_that_takes_too_much_time_is_killed_and_the_next_one_is_answered(queries: QueryWorker):
    answer(queries)
    pid = pid_of(queries)
    with pytest.raises(TooManySteps, match="the query takes too long; make it simpler"):
        queries.run(IMAGE, ENDLESS, UNLIMITED._replace(max_cpu_s=1), 1)
    assert is_gone(pid)
    assert answer(queries) == 7


@pytest.mark.full
def test_time_is_counted_for_each_query_alone(queries: QueryWorker):
    limits = QueryLimits(10_000_000, 1_000, max_cpu_s=1)
    for _ in range(4):
        with pytest.raises(TooManySteps, match="the query takes more than 10,000,000 steps"):
            queries.run(IMAGE, ENDLESS, limits, 1)


def test_a_process_that_does_not_answer_is_killed(queries: QueryWorker, monkeypatch: pytest.MonkeyPatch):
    answer(queries)
    pid = pid_of(queries)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(worker, "_EXTRA_WAIT_S", 0.2)
    with pytest.raises(TooManySteps, match="the query takes too long; make it simpler"):
        queries.run(IMAGE, "SELECT 1", LIMITS._replace(max_cpu_s=0), 1)
    assert is_gone(pid)
    assert answer(queries) == 7


def test_a_process_that_was_killed_between_queries_is_started_again(queries: QueryWorker):
    answer(queries)
    pid = pid_of(queries)
    os.kill(pid, signal.SIGKILL)
    while queries._process is not None and queries._process._popen.poll() is None:
        time.sleep(0.01)
    assert answer(queries) == 7
    assert pid_of(queries) != pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_is_killed_during_a_query_makes_it_fail(queries: QueryWorker, number: int):
    answer(queries)
    timer = threading.Timer(0.3, os.kill, (pid_of(queries), number))
    timer.start()
    with pytest.raises(ToolError, match="the query is too large; make it simpler"):
        queries.run(IMAGE, ENDLESS, UNLIMITED, 1)
    timer.join()
    assert answer(queries) == 7


def test_a_process_that_fails_by_itself_is_not_the_models_fault(queries: QueryWorker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(SandboxError, match="ended with status 3"):
        answer(queries)
    monkeypatch.undo()
    assert answer(queries) == 7


def test_an_interrupted_query_does_not_answer_the_next_one(queries: QueryWorker):
    answer(queries)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            queries.run(IMAGE, ENDLESS, UNLIMITED, 1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert answer(queries, 8) == 8


def test_threads_share_a_process_and_each_gets_its_own_answer(queries: QueryWorker):
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda number: answer(queries, number), range(200))] == [*range(200)]


def test_it_answers_inside_an_event_loop(queries: QueryWorker):
    async def ask() -> int:
        return await asyncio.to_thread(answer, queries) + answer(queries)

    assert asyncio.run(ask()) == 14


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_has_a_process_of_its_own(queries: QueryWorker, copied):
    answer(queries)
    with closing(copied(queries)) as other:
        assert answer(other) == 7
        assert pid_of(other) != pid_of(queries)
    assert answer(queries) == 7


def test_a_child_process_starts_its_own(queries: QueryWorker):
    answer(queries)
    pid = pid_of(queries)
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(BaseException):
            status = int((answer(queries, 8), pid_of(queries) == pid) != (8, False))
            queries.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (answer(queries), pid_of(queries)) == (7, pid)


def test_closing_ends_the_process_and_a_later_query_starts_another(queries: QueryWorker):
    files = open_files()
    answer(queries)
    pid = pid_of(queries)
    queries.close()
    queries.close()
    assert is_gone(pid)
    assert open_files() == files
    assert answer(queries) == 7


def test_a_worker_that_was_not_closed_leaves_no_process_and_no_file():
    gc.collect()
    files = open_files()
    queries = QueryWorker()
    answer(queries)
    pid = pid_of(queries)
    cycle: list[object] = [queries]
    cycle.append(cycle)  # so that only the garbage collector frees it
    del queries, cycle
    gc.collect()
    assert is_gone(pid)
    assert open_files() == files


def test_an_environment_closes_its_process_and_so_does_the_garbage_collector():
    pids: list[int] = []
    for closes in (True, False):
        env = SqlAnalyst()
        assert envsdk.rollout(env, "reference", seed=0).reward == 1.0
        pids.append(pid_of(env.worker))
        if closes:
            env.close()
        del env
    gc.collect()
    assert all(map(is_gone, pids))
