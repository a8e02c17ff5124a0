"""Damaged lines of records: each is refused with the typed error, or read as exactly what it says.

A small seeded sample runs in every test run; all 20,000 with `--full` (`make test-all`).
"""

import itertools
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envsdk_environments._calculator import Calculator
from trainers.episodes import delegated, kept, stripped, truncated

from envsdk import Edit, Env, Limits, Message, Sample, Trajectory, Turn, make, rollout
from envsdk.errors import CannotReplay, ConfigError, InvalidRecord, UnknownName
from envsdk.policies import ReplyPolicy
from envsdk.trajectories.records import read_jsonl

Record = Trajectory | Sample
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def with_side_data() -> Trajectory:
    """Calls of tools, and each kind of data besides tokens."""
    env = Calculator(renderer="qwen3", tokenizer="embedded")
    policy = ReplyPolicy(env, lambda speaker: speaker.reference_reply())

    def sample(prompt: Any, **asked: Any) -> Any:
        action = policy(prompt, **asked)
        count = len(action.tokens)
        extra = {
            "experts": np.arange(2 * count, dtype=np.int16).reshape(-1, 2),
            "scores": np.full(count, -np.inf, np.float32),
            "request": {"id": "a-1", "tries": [1, 2.5, None, True]},
        }
        return replace(action, logprobs=-np.ones(count, np.float32), policy_version=3, extra=extra)

    return rollout(env, sample, seed=3, options={"group_id": "g"})


class Changing(Env):
    """Changes what a turn may change: the system message, tools, the past, and the last reply."""

    def start(self) -> Turn:
        self.turns = iter(
            (
                Turn("One.", system="Be long.", prefill="So "),
                Turn([Message(role="user", content="Two.")], edit=Edit(2, "new")),
                Turn(" and", continues=True, keep_reply=3),
                Turn("Three.", tools=[], prefill=Message(role="assistant", content="It")),
                Turn(" and", continues=True),
                Turn(" on" * 200, continues=True),
            )
        )
        return Turn("Zero.", system="Be brief.", tools=TOOLS, prefill="Well")

    def respond(self, reply: Message) -> Turn:
        return next(self.turns)


def changed() -> Trajectory:
    """Each item of `Step.turn` that an environment causes, and a `final_turn`."""
    env = Changing(history="strip", limits={"max_context_tokens": 250})
    return rollout(env, ReplyPolicy(env, lambda speaker: Message(role="assistant", content="a b c d e")), seed=0)


def remembered() -> Trajectory:
    """Folds, branches and notes, with what the model said cut off after a few steps."""
    return rollout(make("envsdk/LongErrand-v0", limits={"max_steps": 15}), "reference", seed=0)


TRAJECTORIES = [kept(), stripped(), delegated(), truncated(), with_side_data()]
RECORDS: list[Record] = [*TRAJECTORIES, *(sample for trajectory in TRAJECTORIES for sample in trajectory.samples()[:2])]
LINES: list[tuple[type[Any], bytes]] = [(type(record), record.to_json()) for record in RECORDS]

# Damages: each makes another line of one.

EXTREMES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 10**30, 10**400),
    *(0.5, -0.0, 1e39, -1e39, 1e308, "", "a", "1", "Error", "\ud800", "\x00", "é" * 100),
    *([], [None], [[]], {}, {"a": 1}, [0] * 50, "<U500000000"),
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a record with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def place(rng: random.Random, record: Any) -> tuple[Any, Any]:
    """One of those: mostly a field, sometimes an entry of an array."""
    found = [(value, key) for value, key in places(record) if isinstance(value, dict) or rng.random() < 0.02]
    return rng.choice(found)


def of_json(change: Callable[[random.Random, Any, Any], None]) -> Callable[[random.Random, bytes], bytes]:
    def damage(rng: random.Random, line: bytes) -> bytes:
        record = json.loads(line)
        change(rng, *place(rng, record))
        return json.dumps(record, separators=(",", ":")).encode()

    return damage


def remove(rng: random.Random, value: Any, key: Any) -> None:
    del value[key]


def retype(rng: random.Random, value: Any, key: Any) -> None:
    value[key] = rng.choice(EXTREMES)


def wrap(rng: random.Random, value: Any, key: Any) -> None:
    value[key] = rng.choice([[value[key]], {"a": value[key]}, str(value[key]), value[key] == value[key]])


def nudge(rng: random.Random, value: Any, key: Any) -> None:
    old = value[key]
    is_number = isinstance(old, (int, float)) and not isinstance(old, bool)
    value[key] = old + rng.choice([-1, 1, 1000, -1000, 0.5]) if is_number else rng.choice(EXTREMES)


def add(rng: random.Random, value: Any, key: Any) -> None:
    if isinstance(value, dict):
        value["another"] = rng.choice(EXTREMES)
    else:
        value.insert(key, value[key])


def swap(rng: random.Random, value: Any, key: Any) -> None:
    other = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value[key], value[other] = value[other], value[key]


def flip(rng: random.Random, line: bytes) -> bytes:
    damaged = bytearray(line)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(rng: random.Random, line: bytes) -> bytes:
    return line[: rng.randrange(len(line))]


def cut_out(rng: random.Random, line: bytes) -> bytes:
    start = rng.randrange(len(line))
    return line[:start] + line[start + rng.choice([1, 2, 10, 100]) :]


def repeat(rng: random.Random, line: bytes) -> bytes:
    start = rng.randrange(len(line))
    stop = start + rng.choice([1, 5, 50])
    return line[:stop] + line[start:stop] + line[stop:]


def double_key(rng: random.Random, line: bytes) -> bytes:
    """A key with a value of its own before a field, of which a lenient reader takes the last one."""
    record = json.loads(line)
    value, key = rng.choice([(value, key) for value, key in places(record) if isinstance(value, dict)])
    value[f"\x00{key}"] = value[key]
    return json.dumps(record, separators=(",", ":")).replace("\\u0000", "").encode()


def header(rng: random.Random, line: bytes) -> bytes:
    """A wrong header of an array, or wrong values, where there is one."""
    record = json.loads(line)
    found = [value[key] for value, key in places(record) if isinstance(value[key], dict) and "dtype" in value[key]]
    if not found:
        return flip(rng, line)
    array, part = rng.choice(found), rng.choice(["dtype", "shape", "values"])
    shape = array["shape"]
    array[part] = {
        "dtype": ["<U500000000", "O", "int", "float128", "V9", "M8[s]", "i4,i4", 5, None, "", "uint8", "float16"],
        "shape": [[], [-1], [10**12, 0], [0, 10**30], [len(array["values"])], shape[::-1], [1.0], [True], "2", [2**40]],
        "values": [None, [], ["NaN"], [[]], array["values"][:-1], [*array["values"], 0], [10**30], [None], "12"],
    }[part][rng.randrange(9)]
    return json.dumps(record, separators=(",", ":")).encode()


DAMAGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    **{change.__name__: of_json(change) for change in (remove, retype, wrap, nudge, add, swap)},
    **{damage.__name__: damage for damage in (flip, cut, cut_out, repeat, double_key, header)},
}


def is_read_as_it_is_written(kind: type[Any], line: bytes) -> bool:
    """Whether a line can be read; it is then exactly what it says, and written again it stays what it is."""
    try:
        record = kind.from_json(line)
    except InvalidRecord:
        return False
    again = record.to_json()
    assert says_the_same(json.loads(again), json.loads(line)), line
    assert kind.from_json(again).to_json() == again
    return True


def says_the_same(read: Any, line: Any) -> bool:
    """Whether two values of JSON are equal, with types, but for numbers that float32 rounds."""
    if isinstance(read, dict) and isinstance(line, dict):
        return read.keys() == line.keys() and all(says_the_same(read[key], line[key]) for key in read)
    if isinstance(read, list) and isinstance(line, list):
        return len(read) == len(line) and all(map(says_the_same, read, line))
    if isinstance(read, float) and type(line) in (int, float):
        return read == line or read == float(np.float32(line)) or abs(read - line) < 1e-6 * abs(line) + 1e-37
    return type(read) is type(line) and read == line


def test_damaged_lines_are_refused_or_read_as_they_are_written(is_full: bool) -> None:
    rng, count = random.Random(0), 20_000 if is_full else 150
    damages = itertools.cycle(DAMAGES.values())
    refused = 0
    for number, damage in zip(range(count), damages, strict=False):
        kind, line = LINES[number % len(LINES)] if is_full else LINES[rng.randrange(len(LINES))]
        refused += not is_read_as_it_is_written(kind, damage(rng, line))
    assert refused > count / 2


def test_a_damaged_turn_is_refused_when_it_is_read_or_when_it_is_replayed(is_full: bool) -> None:
    rng, lines, outcomes = random.Random(0), [one.to_json() for one in (changed(), remembered())], Counter[str]()
    turns = [step["turn"] for line in lines for step in json.loads(line)["steps"] if "turn" in step]
    assert len({key for turn in turns for key in turn}) == 7
    for number in range(10_000 if is_full else 100):
        record = json.loads(lines[number % 2])
        owners = [(step, "turn") for step in record["steps"]] + [(record, "final_turn"), (record, "history")]
        owner, key = rng.choice(owners)
        if number % 3:  # damage one of its items, or give it another step's
            change = rng.choice([remove, retype, wrap, nudge, nudge, add, swap])
            change(rng, *rng.choice([(owner, key), *places(owner[key])] if owner.get(key) else [(record, "steps")]))
        else:
            owner[key] = rng.choice([rng.choice(turns), {"context": "main", **rng.choice(turns)}])
        try:
            read = Trajectory.from_json(json.dumps(record))
            for policy in (read.history, "keep"):
                again = read.under(policy, limits=Limits())
                assert Trajectory.from_json(again.to_json()).to_json() == again.to_json()
            outcomes["replayed"] += 1
        except (InvalidRecord, CannotReplay, ConfigError, UnknownName) as error:
            outcomes[type(error).__name__] += 1
    assert min(outcomes[name] for name in ("InvalidRecord", "CannotReplay", "replayed")) > (20 if is_full else 10)


def test_a_record_without_what_changed_the_past_is_not_replayed() -> None:
    trajectory = changed()
    for index in range(len(trajectory.steps)):  # as it was written before `turn` was recorded
        record = json.loads(trajectory.to_json())
        del record["steps"][index]["turn"]
        with pytest.raises(CannotReplay, match=r"its record lacks how|its messages give other tokens"):
            Trajectory.from_json(json.dumps(record)).under(trajectory.history)


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_lines_that_are_whole_are_read_to_the_byte(kind: type[Any], line: bytes) -> None:
    assert kind.from_json(line).to_json() == line


def fields_of(record: Any) -> Iterator[tuple[Any, str]]:
    """Every field of a record that is the record's own: not of what an author gave, such as a task."""
    given = {"task", "config", "renderer", "history", "limits", "tools", "metadata", "arguments"}
    named = {"rewards", "metrics", "arrays", "values", "turn"}
    for key, value in list(record.items()):
        yield record, key
        for item in [value] if isinstance(value, dict) else value if isinstance(value, list) else ():
            if isinstance(item, dict) and key not in given | named:
                yield from fields_of(item)


@pytest.mark.parametrize(("kind", "line"), [LINES[1], LINES[4], LINES[-1]])
def test_a_field_that_is_missing_is_never_filled_in(kind: type[Any], line: bytes) -> None:
    names: set[str] = set()
    for number, (_, key) in enumerate(fields_of(json.loads(line))):
        if key in names or key == "turn":  # a step without it only appended messages
            continue
        names.add(key)
        record = json.loads(line)
        value, _ = next(itertools.islice(fields_of(record), number, None))
        del value[key]
        with pytest.raises(InvalidRecord):
            kind.from_json(json.dumps(record))
            pytest.fail(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(status="Error"), "status: Input should be 'terminated'"),
        (lambda r: r.update(status="error"), "status is 'error', but stop_reason is 'terminated'"),
        (lambda r: r.update(stop_reason="tired"), "stop_reason: .*'tired' is not a valid StopReason"),
        (lambda r: r.update(error="x"), "status is 'terminated', but there is an error"),
        (lambda r: r.update(schema=True), "schema version True"),
        (lambda r: r["steps"][0].update(reward="abc"), "steps.0.reward: .*expected a number"),
        (lambda r: r["steps"][0].update(reward=True), "steps.0.reward: .*expected a number"),
        (lambda r: r["steps"][0]["parts"][0].update(temperature="1"), "steps.0.parts.0.temperature: "),
        (lambda r: r["steps"][0]["parts"][0].update(policy_version=10**30), "steps.0.parts.0.policy_version: "),
        (lambda r: r["steps"][0].update(reply=0), "step 1 has the reply 0, which is not a message of the assistant"),
        (lambda r: r["steps"][0].update(finish_reason="done"), "steps.0.finish_reason: "),
        (
            lambda r: r["contexts"]["main"]["tokens"].__setitem__(3, 10**30),
            "main.tokens: .* does not fit int32",
        ),
        (lambda r: r["contexts"]["main"]["tokens"].__setitem__(3, 4096), "contexts.main.tokens.3 is 4096; expected an"),
        (lambda r: r["contexts"]["main"]["tokens"].__setitem__(3, True), "contexts.main.tokens: .*at 3 it holds True"),
        (lambda r: r["contexts"]["main"]["tokens"].append(1), "context 'main' has .* tokens and .* logprobs"),
        (lambda r: r["contexts"]["main"]["logprobs"].__setitem__(0, -1), "step 1 has log-probabilities on its obs"),
        (
            lambda r: r["contexts"]["main"]["logprobs"].__setitem__(-1, -1e39),
            "at .* it holds -1e.39; expected a number",
        ),
        (lambda r: r["contexts"]["main"]["logprobs"].__setitem__(-1, 0.5), "contexts.main.logprobs.* is 0.5"),
        (lambda r: r["contexts"]["main"]["logprobs"].__setitem__(-1, None), "for some tokens of an action"),
        (lambda r: r["contexts"]["main"]["messages"][1].pop("content"), "contexts.main.messages.1: .*see content"),
        (lambda r: r["steps"][1]["break_"].update(dropped=1), "step 2 has the break .*; expected"),
        (lambda r: r["steps"][1]["break_"].update(reason="handoff"), "for the reason 'handoff'"),
        (lambda r: r["steps"][1].update(break_=None), "no break declares it"),
        (lambda r: r.pop("seed"), "seed: Field required"),
        (lambda r: r.update(sead=1), "sead: Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_is_named_with_the_file_the_line_and_the_field(
    tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    record = json.loads(stripped().to_json())
    change(record)
    path = tmp_path / "t.jsonl"
    path.write_bytes(kept().to_json() + b"\n" + json.dumps(record).encode() + b"\n")
    with pytest.raises(InvalidRecord, match=rf"t\.jsonl, line 2: .*{message}"):
        list(read_jsonl(path, Trajectory))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"seed":0', b'"seed":0,"seed":1', "the key 'seed' occurs twice"),
        (b'"seed":0', b'"seed":NaN', "NaN is not a number of JSON"),
        (b'"seed":0', b'"seed":1e999', "seed: "),
        (b'"keep":0', b'"keep":0,"keep":0', "the key 'keep' occurs twice"),
        (b'"config":{', b'"config":{"a":"\\ud800",', "surrogates not allowed"),
        (b'"config":{', b'"config":{"a":1e999,', "config: .*cannot be written as JSON"),
        (b'"config":{', b'"config":{"a":"\xed\xa0\x80",', "not JSON: 'utf-8'"),
    ],
    ids=str,
)
def test_what_lenient_readers_of_json_let_through_is_refused(old: bytes, new: bytes, message: str) -> None:
    line = kept().to_json()
    assert old in line
    with pytest.raises(InvalidRecord, match=message):
        Trajectory.from_json(line.replace(old, new, 1))


def test_the_header_of_an_array_makes_no_memory(tmp_path: Path) -> None:
    line = with_side_data().to_json().replace(b'"dtype":"int16"', b'"dtype":"<U500000000"')
    tracemalloc.start()
    with pytest.raises(InvalidRecord, match=r"of the array 'experts', its dtype is '<U500000000'"):
        Trajectory.from_json(line)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * len(line)


def test_numbers_that_are_not_finite_in_a_task_are_written_as_texts() -> None:
    trajectory = kept()
    task = {"a": float("nan"), "b": [np.float64("inf"), (1, -float("inf"))], "c": 10**400 // 10**300}
    line = replace(trajectory, task=task).to_json()
    assert Trajectory.from_json(line).task == {"a": "nan", "b": ["inf", [1, "-inf"]], "c": 10**100}
