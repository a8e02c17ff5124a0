import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from envsdk_environments._sql_analyst import SqlAnalyst
from envsdk_environments._sql_analyst._databases import TRADES, draw_names, make_database, tables_of
from envsdk_environments._sql_analyst._questions import draw_question
from envsdk_environments._sql_analyst._results import is_same
from envsdk_environments._sql_analyst._worker import QueryWorker
from envsdk_environments._sql_analyst.guarded._query import ClocklessFunctions, QueryLimits, reads_the_clock
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Limits, Message, ToolCall, errors
from envsdk.authoring.tasks import split_of
from envsdk.rollouts import rollout_many

DIFFICULTIES = ["easy", "medium", "hard"]
LIMITS = QueryLimits(500_000, 1_000)
SCRIPT = """
CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT, age REAL);
INSERT INTO pets VALUES (1, 'Rex', 3), (2, 'Tom', 7.5), (3, 'Uli', NULL);
"""
OTHER_SCRIPT = SCRIPT.replace("7.5", "2")
TASK = {"question": "Who is the oldest?", "query": "SELECT name FROM pets ORDER BY age DESC LIMIT 1"}


def step(env: SqlAnalyst, content: str = "", *calls: tuple[str, dict[str, Any]]) -> Any:
    tool_calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    return env.step(env.renderer.reply(Message(role="assistant", content=content, tool_calls=tool_calls)))


def said(env: SqlAnalyst) -> str:
    return env.messages()[-1].content


@pytest.fixture(scope="module")
def image() -> bytes:
    return make_database(0, 1, 2, 120)


@pytest.fixture(scope="module")
def worker() -> Iterator[QueryWorker]:
    with closing(QueryWorker()) as worker:
        yield worker


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_questions_are_different_and_no_split_has_one_of_the_other(difficulty: Any, is_full: bool):
    names = [draw_names(trade, np.random.default_rng(0)) for trade in TRADES]
    seen: dict[str, list[str]] = {"train": [], "test": []}
    rng = np.random.default_rng(5)
    count = 13_000 if is_full else 1300
    for number in range(count):
        trade = number % len(TRADES)
        text = draw_question(TRADES[trade], names[trade], difficulty, rng).text
        seen[split_of(text)].append(text)
    assert not {*seen["train"]} & {*seen["test"]}
    assert len(seen["train"]) > 0.77 * count
    for texts in seen.values():
        assert len(texts) - len({*texts}) <= 10


# Answers.


def literal(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_an_answer_that_is_written_into_the_query_matches_only_what_could_be_explored(difficulty: str):
    env = SqlAnalyst(difficulty=difficulty)
    for seed in range(2):
        env.reset(seed=seed)
        rows = [", ".join(map(literal, row)) for row in env.quest.expected[0]]
        _, reward, terminated, *_ = step(env, "VALUES " + ", ".join(f"({row})" for row in rows))
        assert (reward, terminated) == (0.0, True)
        assert env.trajectory.steps[-1].metrics["explored_match"] == 1.0


@pytest.mark.parametrize(
    "answer", ["{};", "```sql\n{}\n```", "So:\n```\n{}\n```\nThat is it.", "```SQL\n{}", "-- it\n{}"]
)
def test_the_answer_is_a_block_or_all_of_the_reply(answer: str):
    env = SqlAnalyst()
    env.reset(seed=3)
    assert step(env, answer.format(env.quest.question.query))[1] == 1.0


def test_what_columns_are_called_does_not_matter_but_their_order_does():
    env = SqlAnalyst(tasks=[{**TASK, "query": "SELECT id, name FROM pets", "databases": [SCRIPT]}])
    for query, reward in (
        ("SELECT id AS x, upper(name) AS name FROM pets", 0.0),
        ("SELECT name, id FROM pets", 0.0),
        ("SELECT id, name, 1 FROM pets", 0.0),
        ("SELECT id * 1.0, name || '' AS y FROM pets ORDER BY 1 DESC", 1.0),
    ):
        env.reset(seed=0)
        assert step(env, query)[1] == reward


def test_an_answer_that_does_not_run_is_answered_with_the_error_until_there_are_too_many():
    env = SqlAnalyst(max_failed_answers=1)
    env.reset(seed=0)
    assert step(env, "I do not know.")[2] is False
    assert said(env) == 'Error: near "I": syntax error. Answer with one SELECT.'
    _, reward, terminated, *_ = step(env, "")
    assert (reward, terminated, said(env)) == (0.0, True, "Error: only a SELECT that reads the tables is allowed")


def test_a_question_with_an_order_wants_it():
    rows = {"question": "Who, by age?", "databases": [SCRIPT]}
    for is_ordered, reward in ((True, 0.0), (False, 1.0)):
        query = "SELECT name FROM pets WHERE age IS NOT NULL ORDER BY age"
        env = SqlAnalyst(tasks=[{**rows, "query": query, "is_ordered": is_ordered}])
        env.reset(seed=0)
        assert step(env, query + " DESC")[1] == reward


VALUES = st.none() | st.integers(-5, 5) | st.floats(-5, 5) | st.sampled_from(["a", "b", "1", b"a", 2**60, 1e300])
ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=6)


@given(rows=ROWS, data=st.data())
def test_rows_in_any_order_are_the_same_unless_an_order_is_wanted(rows: list, data: st.DataObject):
    other = data.draw(st.permutations(rows))
    assert is_same(rows, other, is_ordered=False)
    assert is_same(rows, rows, is_ordered=True)
    assert is_same(rows, other, is_ordered=True) == all(
        is_same([one], [two], is_ordered=True) for one, two in zip(rows, other, strict=True)
    )


@given(rows=ROWS.filter(bool), data=st.data())
def test_a_row_more_or_less_is_another_result(rows: list, data: st.DataObject):
    left_out = data.draw(st.integers(0, len(rows) - 1))
    fewer = rows[:left_out] + rows[left_out + 1 :]
    assert not is_same(rows, fewer, is_ordered=False)
    assert not is_same(fewer, rows, is_ordered=False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *((1, 1.0, True), (0.1 + 0.2, 0.3, True), (1e9, 1e9 + 1, True), (0, 1e-9, True), (0, -0.0, True)),
        *((1, 1.001, False), (1, "1", False), (None, 0, False), (None, "", False), (None, None, True)),
        *((5.0, float("inf"), False), (float("-inf"), float("inf"), False), (float("inf"), float("inf"), True)),
        *((2**62, 2**62 + 1, False), (5_000_001, 5_000_002, False), (1_600_000_000, 1_600_001_500, False)),
        *((5_000_001, 5_000_002.0, True), (2**62, float(2**62), True)),
        *((True, 1, True), (True, 2, False), (False, None, False), (True, "1", False)),
        *((b"1", 1, False), (b"", None, False), (b"a", b"a", True), (b"a", b"A", False), ("a", b"a", False)),
        *(("a", "A", False), ("1.0", "1.0000000001", False), ("é", "e\u0301", False)),
    ],
)
def test_real_numbers_have_a_tolerance_and_nothing_else_has(one: Any, other: Any, same: bool):
    assert is_same([(one,)], [(other,)], is_ordered=False) == same
    assert is_same([(other, "x")], [(one, "x")], is_ordered=True) == same


def test_rows_whose_first_numbers_differ_by_noise_are_distinguished_by_the_others():
    assert is_same([(0.1 + 0.2, 3), (0.3, 5)], [(0.3, 3), (0.3, 5)], is_ordered=False)
    assert not is_same([(0.1 + 0.2, 3), (0.3, 5)], [(0.3, 3), (0.3, 3)], is_ordered=False)


def test_the_tolerance_does_not_add_up_from_row_to_row():
    rows = [(1.0,), (1.0000009,), (1.0000018,)]
    assert is_same(rows, rows[::-1], is_ordered=False)
    assert not is_same(rows, [(1.0000018,), (1.0000018,), (1.0000018,)], is_ordered=False)
    assert not is_same([(1.0,)], [(1.0000018,)], is_ordered=False)
    assert not is_same([(1.0, 1), (1.0000009, 2)], [(1.0, 2), (1.0000018, 1)], is_ordered=False)


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), data=st.data())
def test_an_integer_that_is_off_by_one_is_wrong(numbers: list[int], data: st.DataObject):
    at = data.draw(st.integers(0, len(numbers) - 1))
    other = [*numbers[:at], numbers[at] + 1, *numbers[at + 1 :]]
    for is_ordered in (True, False):
        assert not is_same([(one,) for one in numbers], [(one,) for one in other], is_ordered)


@given(rows=st.lists(st.tuples(st.floats(-1e9, 1e9), VALUES), max_size=6), data=st.data())
def test_noise_in_real_numbers_is_no_other_result(rows: list, data: st.DataObject):
    noise = data.draw(st.lists(st.floats(-1e-9, 1e-9), min_size=len(rows), max_size=len(rows)))
    noisy = [(number + more, value) for (number, value), more in zip(rows, noise, strict=True)]
    assert is_same(rows, noisy, is_ordered=True)
    firsts = [(number, "x") for number, _ in rows]
    assert is_same(firsts, data.draw(st.permutations([(number, "x") for number, _ in noisy])), is_ordered=False)


def test_many_rows_are_compared_fast():
    rows = [(0.5 + number * 1e-10, number, f"{number % 3}") for number in range(1000)]
    started = time.thread_time()
    assert is_same(rows, rows[::-1], is_ordered=False)
    assert not is_same(rows, [*rows[1:], (0.5, -1, "0")], is_ordered=False)
    assert time.thread_time() - started < 2


# Tools.


def test_tables_are_listed_and_described():
    env = SqlAnalyst()
    env.reset(seed=0)
    step(env, "", ("list_tables", {}))
    names = [line.split(" (")[0] for line in said(env).splitlines()]
    assert [*tables_of(env.quest.databases[0])] == names
    assert len(names) == 6
    step(env, "", ("describe_tables", {"tables": names[1:3]}))
    assert f"CREATE TABLE {names[1]} (" in said(env)
    assert "REFERENCES" in said(env)
    assert f"CREATE TABLE {names[2]} (" in said(env)
    assert "(the first 3 rows; there are more)" in said(env)
    step(env, "", ("describe_tables", {"tables": [names[0], 'x"; DROP TABLE y']}))
    assert said(env).startswith("Error: there is no table 'x\"; DROP TABLE y'; there are ")


def test_a_result_is_shown_as_far_as_the_limits_go():
    env = SqlAnalyst(max_rows=2, tasks=[{**TASK, "databases": [SCRIPT]}])
    env.reset(seed=0)
    step(env, "", ("run_query", {"query": "SELECT * FROM pets"}))
    assert said(env) == "id | name | age\n1 | Rex | 3.0\n2 | Tom | 7.5\n(the first 2 rows; there are more)"
    step(env, "", ("run_query", {"query": "SELECT name, age, x'00ff' FROM pets WHERE id = 3"}))
    assert said(env) == "name | age | x'00ff'\nUli | NULL | x'00ff'\n(1 row)"
    step(env, "", ("run_query", {"query": "SELECT replace('" + "a" * 100 + "', 'a', 'aaaaa') AS x"}))
    assert said(env) == f"x\n{'a' * 100}...\n(1 row)"
    step(env, "", ("run_query", {"query": "PRAGMA table_info(pets)"}))
    assert "name | TEXT" in said(env)


def test_calls_of_one_reply_may_run_at_the_same_time():
    trajectory = envsdk.rollout(SqlAnalyst(concurrent_tools=True), "reference", seed=4)
    assert trajectory.reward == 1.0
    alone = envsdk.rollout(SqlAnalyst(), "reference", seed=4)
    assert [s.metrics for s in trajectory.steps] == [s.metrics for s in alone.steps]


# Tasks.


def test_a_task_brings_its_own_databases():
    env = SqlAnalyst(tasks=[{**TASK, "databases": [SCRIPT, OTHER_SCRIPT]}])
    assert envsdk.rollout(env, "reference", seed=0).reward == 1.0
    assert envsdk.rollout(env, "null", seed=0).reward == 0.0
    env.reset(seed=0)
    assert step(env, "SELECT 'Tom'")[1] == 0.0


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({**TASK, "databases": []}, "databases"),
        ({**TASK, "databases": ["CREATE TABLE"]}, "the script of a database does not run"),
        ({**TASK, "databases": ["ATTACH 'pwned.db' AS p; CREATE TABLE p.x (a);"]}, "the script .* not authorized"),
        ({**TASK, "databases": ["CREATE TABLE t (a); VACUUM INTO 'pwned.db';"]}, "the script of a database does not"),
        (
            {
                **TASK,
                "databases": [
                    "CREATE TABLE t (a); WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                    "INSERT INTO t SELECT count(*) FROM n;"
                ],
            },
            "the script .* interrupted",
        ),
        ({**TASK, "databases": ["CREATE TABLE x (a)"]}, "no such table: pets"),
        ({**TASK, "databases": [SCRIPT], "query": "DELETE FROM pets"}, "only a SELECT"),
        ({"question": "Who?", "databases": [SCRIPT]}, "query"),
    ],
)
def test_a_task_that_cannot_be_solved_is_refused(row: dict, what: str):
    with pytest.raises(errors.TaskError, match=what):
        SqlAnalyst(tasks=[row]).reset(seed=0)


# Options.


def test_questions_whose_query_takes_too_many_steps_are_not_asked():
    trajectories = rollout_many(
        lambda: SqlAnalyst(difficulty="medium", max_steps_per_query=1000), "reference", seeds=range(4)
    )
    assert {(t.reward, t.status) for t in trajectories} == {(1.0, "terminated")}
    assert not any(step.metrics["tool_errors"] for t in trajectories for step in t.steps)


def test_an_option_that_leaves_no_question_is_named():
    env = SqlAnalyst(difficulty="hard", max_steps_per_query=1000)
    with pytest.raises(errors.ConfigError, match="max_steps_per_query=1000 is too small for hard questions"):
        env.reset(seed=0)


# Attacks.

BIG = "a" * 780
COUNT = "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k) SELECT "
ATTACKS = {
    "endless recursion": "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i FROM k) SELECT count(*) FROM k",
    "endless rows in memory": COUNT + f"count(*) FROM (SELECT DISTINCT '{BIG}' || i FROM k)",
    "a large sort": COUNT.replace("FROM k)", "FROM k LIMIT 90000)") + f"'{BIG}' || i FROM k ORDER BY 1 DESC",
    "cross join": "SELECT count(*) FROM " + ", ".join(f"{{table}} t{i}" for i in range(8)),
    "a large blob": "SELECT zeroblob(1e9)",
    "a wide number": "SELECT printf('%1000000000d', 1)",
    "random bytes": "SELECT hex(randomblob(1e9))",
    "a long text": "SELECT group_concat(a.sql || b.sql) FROM sqlite_master a, sqlite_master b",
    "a doubled text": COUNT.replace("k(i)", "k(i, s)")
    .replace("SELECT 1", "SELECT 1, 'ab'")
    .replace("i + 1", "i + 1, s || s")
    + "max(s) FROM k",
    "slow patterns": COUNT + f"sum('{BIG}' || i LIKE '%{'a' * 80}b') FROM k",
    "slow trims": COUNT + f"sum(length(trim('{BIG}' || i, '{'b' * 80}a'))) FROM k",
    "slow dates": COUNT + "sum(julianday('2020-01-01', '+' || i || ' days')) FROM k",
    "chance": "SELECT * FROM {table} ORDER BY random()",
    "the clock": "SELECT datetime('now')",
    "the clock, hidden": "SELECT date('n' || 'OW')",
    "the clock, as bytes": "SELECT date(x'6e6f77')",
    "the clock, behind a null": "SELECT date(CAST(x'6e6f770061' AS TEXT))",
    "the clock, unsaid": "SELECT strftime('%s')",
    "the clock, as a word": "SELECT current_timestamp",
    "the date, as a word": "SELECT Current_Date",
    "the time, as a word": "SELECT CURRENT_TIME",
    "the time zone": "SELECT datetime('2020-01-01', 'localtime')",
    "attach a file": "ATTACH '{path}' AS other",
    "attach memory": "ATTACH ':memory:' AS other",
    "copy to a file": "VACUUM INTO '{path}'",
    "vacuum": "VACUUM",
    "writable schema": "PRAGMA writable_schema = 1",
    "write again": "PRAGMA query_only = 0",
    "limit the process": "PRAGMA hard_heap_limit = 1",
    "pragma as a table": "SELECT * FROM pragma_database_list",
    "pages of the file": "SELECT * FROM dbstat",
    "create": "CREATE TABLE x (a)",
    "create in memory": "CREATE TEMP TABLE x AS SELECT 1",
    "create a view": "CREATE TEMP VIEW x AS SELECT 1",
    "create a trigger": "CREATE TRIGGER x AFTER INSERT ON {table} BEGIN SELECT 1; END",
    "create a virtual table": "CREATE VIRTUAL TABLE x USING fts5(a)",
    "insert": "INSERT INTO {table} DEFAULT VALUES",
    "insert and return": "INSERT INTO {table} DEFAULT VALUES RETURNING *",
    "update": "UPDATE {table} SET rowid = 1",
    "delete": "WITH x AS (SELECT 1) DELETE FROM {table}",
    "drop": "DROP TABLE {table}",
    "alter": "ALTER TABLE {table} RENAME TO x",
    "transaction": "BEGIN EXCLUSIVE",
    "analyze": "ANALYZE",
    "reindex": "REINDEX",
    "extension": "SELECT load_extension('x.so')",
    "read a file": "SELECT readfile('/etc/passwd')",
    "write a file": "SELECT writefile('{path}', 'x')",
    "tokenizer pointer": "SELECT fts3_tokenizer('simple')",
    "two statements": "SELECT 1; DROP TABLE {table}",
    "a null character": "SELECT 1\0",
    "no statement": "-- nothing",
    "a parameter": "SELECT ?",
    "a long query": "SELECT " + "1 + " * 3000 + "1",
    "a deep expression": "SELECT " + "+".join("1" * 500),
    "deep brackets": "SELECT " + "(" * 2000 + "1" + ")" * 2000,
    "many columns": "SELECT " + ", ".join("1" * 500),
    "an overflow": "SELECT abs(-9223372036854775808)",
}


def chain(body: str, count: int = 40) -> str:
    """A query in which each subquery has uses of the one before it."""
    bodies = (f"c{i} AS ({body.format(before=f'c{i - 1}')})" for i in range(1, count))
    return ", ".join(["WITH c0 AS (SELECT 1 AS z)", *bodies]) + f" SELECT z FROM c{count - 1}"


EXPLOSIONS = {
    "copied subqueries": chain("SELECT l.z FROM {before} l, {before} r"),
    "copied expressions": chain("SELECT z + z AS z FROM {before}"),
    "quoted names": chain('SELECT "z" + [z] AS z FROM {before}'),
    "names of symbols": chain("SELECT \u263a + \u263a AS \u263a FROM {before}").replace("z", "\u263a"),
    "names as texts": chain("SELECT l.z FROM '{before}' l, '{before}' r"),
    "behind comments": chain("SELECT l./**/z FROM {before}/**/l, {before}--\nr").replace("AS (", "AS/**/("),
    "in conditions": chain("SELECT 1 AS z WHERE EXISTS (SELECT 1 FROM {before}) AND EXISTS (SELECT 1 FROM {before})"),
    "in lists": chain("SELECT 1 AS z WHERE 1 IN {before} AND 1 IN {before}"),
    "in a union": chain("SELECT z FROM {before} UNION ALL SELECT z FROM {before}"),
    "in parts": chain("SELECT * FROM (SELECT z FROM {before}) JOIN (SELECT z AS y FROM {before})"),
    "with column names": chain("SELECT z + z FROM {before}").replace(" AS (", "(z) AS NOT MATERIALIZED ("),
    "without names": "SELECT z FROM "
    + "(SELECT z + z + z + z + z + z + z + z AS z FROM " * 8
    + "(SELECT 1 AS z)"
    + ")" * 8,
}


@pytest.fixture(scope="module")
def attacked() -> Iterator[SqlAnalyst]:
    with closing(SqlAnalyst(limits=Limits())) as env:
        env.reset(seed=11)
        yield env


# Each of these takes half a second, and others that stay grow in the same places, written in another way.
OTHER_WAYS = set(EXPLOSIONS) - {"without names"}


@pytest.mark.parametrize(
    "attack",
    [pytest.param(name, marks=pytest.mark.full) if name in OTHER_WAYS else name for name in (*ATTACKS, *EXPLOSIONS)],
)
def test_an_attack_is_answered_with_an_error_and_the_episode_goes_on(attack: str, attacked: SqlAnalyst, tmp_path: Any):
    query = {**ATTACKS, **EXPLOSIONS}[attack]
    if attack in ATTACKS:
        table = next(iter(tables_of(attacked.quest.databases[0])))
        query = query.format(table=table, path=tmp_path / "file")
    started = time.thread_time()
    _, _, terminated, truncated, _ = step(attacked, "", ("run_query", {"query": query}))
    assert time.thread_time() - started < 1.0
    assert not (terminated or truncated)
    assert said(attacked).startswith("Error: ")
    assert "run_query:" not in said(attacked)  # it is not a crash of the tool
    assert "takes too long" not in said(attacked)  # no attack has to wait until the process is killed
    assert not [*tmp_path.iterdir()]
    step(attacked, "", ("run_query", {"query": attacked.quest.question.query}))
    assert said(attacked).endswith(("row)", "rows)"))


TIME_FUNCTIONS = ["date", "datetime", "julianday", "time", "unixepoch"]
CLOCK_WORDS = ["now", "NOW", b"now", "now\0", "subsec", "SubSec", "subsecond", b"SUBSECOND"]
CLOCK_CALLS = [
    *((name, ()) for name in TIME_FUNCTIONS),
    *((name, (word,)) for name in TIME_FUNCTIONS for word in CLOCK_WORDS),
    *((name, (word, "+1 day")) for name in TIME_FUNCTIONS for word in CLOCK_WORDS),
    *((name, ("2020-01-01", word)) for name in TIME_FUNCTIONS for word in ("localtime", "UTC")),
    ("strftime", ("%s",)),
    *(("strftime", ("%s", word)) for word in CLOCK_WORDS),
]


@pytest.mark.parametrize("library", ["sqlite3", "pysqlite3"])
def test_no_call_reads_the_clock_whatever_the_version_of_sqlite_takes_for_the_present(library: str):
    """A newer sqlite knows more words for the present time than that of this interpreter may know."""
    sqlite = pytest.importorskip(library)
    with closing(sqlite.connect(":memory:", isolation_level=None)) as connection:
        functions = ClocklessFunctions(connection)
        for name, arguments in CLOCK_CALLS:
            try:
                value = functions.call(name, arguments)
            except sqlite.OperationalError as error:
                assert reads_the_clock(error)
            else:  # the words of a newer version
                assert (sqlite.sqlite_version_info < (3, 42, 0), value) == (True, None)
        assert functions.call("date", ("2020-01-31", "+1 day")) == "2020-02-01"
        assert functions.call("strftime", ("%H:%M", "2020-01-01 12:30:15")) == "12:30"
        assert functions.call("julianday", (2458849.5,)) == 2458849.5


@pytest.mark.parametrize("attack", ["endless recursion", "two statements"])
def test_an_attack_as_the_answer_is_an_answer_that_does_not_run(attack: str):
    env = SqlAnalyst()
    env.reset(seed=1)
    query = ATTACKS[attack].format(table=next(iter(tables_of(env.quest.databases[0]))))
    _, reward, terminated, *_ = step(env, query)
    assert (reward, terminated) == (0.0, False)
    assert said(env).startswith("Error: ")
    assert step(env, env.quest.question.query)[1] == 1.0


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (ATTACKS["endless recursion"], "the query takes more than 500,000 steps; make it simpler"),
        ("SELECT random()", "the function random is not available"),
        ("SELECT date('now')", "date may not use the current time, which changes; give a date"),
        ("SELECT 'a' || sqlite_version()", "the function sqlite_version is not available"),
        ("PRAGMA user_version = 3", "only a SELECT that reads the tables is allowed, no PRAGMA user_version"),
        ("SELECT * FROM sqlite_temp_master", "the table 'sqlite_temp_master' may not be read"),
        (EXPLOSIONS["without names"], "the query is too large; make it simpler"),
        ("SELECT replace('" + "a" * 500 + "', 'a', 'aaa') AS x", "a string is longer than 1,000 bytes"),
        ("SELECT colour FROM sqlite_master", "no such column: colour"),
    ],
)
def test_an_error_names_what_is_wrong(query: str, told: str, image: bytes, worker: QueryWorker):
    with pytest.raises(errors.ToolError) as error:
        worker.run(image, query, LIMITS, 3)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM (SELECT 1 UNION SELECT 2)",
        "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < 9) SELECT count(*), sum(i) FROM k",
        "SELECT julianday('2020-03-01') - julianday('2020-02-28'), strftime('%Y', '2021-05-06'), date(0, '+1 month')",
        "SELECT name, sql FROM sqlite_schema WHERE name LIKE '%S%' AND sql LIKE 'create_table%' ESCAPE '!'",
        "SELECT upper(trim('  x ')), instr('abc', 'c'), replace('aba', 'a', 'c'), coalesce(NULL, 1), round(2.567, 1)",
        "SELECT rank() OVER (ORDER BY name), lag(name) OVER (ORDER BY name) FROM sqlite_master",
        "SELECT CAST(x'ff' AS TEXT)",
        "EXPLAIN QUERY PLAN SELECT 1",
        "VALUES (1, 'a'), (2, NULL)",
        "PRAGMA table_list",
    ],
)
def test_what_an_analyst_needs_is_allowed(query: str, image: bytes, worker: QueryWorker):
    assert worker.run(image, query, LIMITS, 50).rows


def test_functions_that_are_metered_do_what_those_of_sqlite_do(image: bytes, worker: QueryWorker):
    values = ["'Ab c'", "'%B_'", "'a%'", "NULL", "''", "3", "2.5", "'b'"]
    with closing(sqlite3.connect(":memory:")) as plain:
        for one, two in itertools.product(values, values):
            query = (
                f"SELECT {one} LIKE {two}, instr({one}, {two}), trim({one}, {two}), replace({one}, {two}, 'x'), "
                f"date({one})"
            )
            assert worker.run(image, query, LIMITS, 1).rows == plain.execute(query).fetchall()


def test_a_program_that_grew_too_large_is_refused_by_sqlite_itself(image: bytes, worker: QueryWorker):
    table = [*tables_of(image)][-1]
    query = chain(f"SELECT {'~' * 12}z + {'~' * 12}z AS z FROM {{before}}", 12)
    query = query.replace("SELECT 1 AS z", f"SELECT rowid AS z FROM {table}")
    with pytest.raises(errors.ToolError, match="the query is too large; make it simpler"):
        worker.run(image, query, LIMITS, 1)


BIG_QUERIES = {
    "the same name in many subqueries": (chain("SELECT z FROM {before} GROUP BY 1, 1, 1, 1"), [(1,)]),
    "a thousand uses of a subquery": (chain("SELECT l.z FROM {before} l, {before} r", 11), [(1,)]),
    "expressions copied four thousand times": (chain("SELECT z + z AS z FROM {before}", 13), [(2**12,)]),
    "many rows": (COUNT.replace("FROM k)", "FROM k LIMIT 20000)") + "count(*), sum(i) FROM k", [(20_000, 200_010_000)]),
    "many rows in memory": (
        COUNT.replace("FROM k)", "FROM k LIMIT 20000)") + f"count(*) FROM (SELECT DISTINCT '{BIG}' || i FROM k)",
        [(20_000,)],
    ),
}


@pytest.mark.parametrize("size", BIG_QUERIES)
def test_a_query_that_is_merely_big_is_answered(size: str, image: bytes, worker: QueryWorker):
    query, rows = BIG_QUERIES[size]
    assert worker.run(image, query, LIMITS, 1).rows == rows


def test_a_large_result_comes_back_whole(image: bytes, worker: QueryWorker):
    columns = ", ".join(f"'{'é' * 400}' || i" for _ in range(10))
    query = COUNT.replace("FROM k)", "FROM k LIMIT 1000)") + f"{columns}, x'00ff', NULL, 1e300 * 1e300, 0.1, i FROM k"
    found = worker.run(image, query, LIMITS, 1000)
    assert found.rows == [(*["é" * 400 + str(i)] * 10, b"\x00\xff", None, float("inf"), 0.1, i) for i in range(1, 1001)]


@given(query=st.text(max_size=60) | st.text(alphabet="selctfromwhavu ()'\"*,;.-/[]`01z\n", max_size=120))
def test_no_text_does_anything_but_find_rows_or_be_refused(image: bytes, worker: QueryWorker, query: str):
    try:
        found = worker.run(image, query, LIMITS, 3)
    except errors.ToolError as error:
        assert str(error)
    else:
        assert found.columns
