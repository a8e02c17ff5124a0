"""The edges: odd but legal input is taken, anything else is refused before it does harm, and records stay sound."""

import asyncio
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_models
from pydantic import BaseModel

import envsdk
from envsdk import Action, Env, HistoryPolicy, Message, Trajectory, Turn, UndeclaredBreak, errors
from envsdk.history import History, Rewrite
from envsdk.rollouts import arollout_many, rollout_many
from envsdk.trajectories._context_log import ContextLog
from envsdk.trajectories._steps import Part, Step
from envsdk.trajectories.records import read_jsonl, write_jsonl


class Talks(Env):
    """Says `first`, then `more` for ever."""

    first: object = "Hello."
    more: object = "Go on."
    options: dict = {}  # noqa: RUF012

    def start(self) -> Turn:
        return Turn(self.first, **self.options)

    def respond(self, reply: Message) -> Turn:
        self.reply = reply
        return self.more if isinstance(self.more, Turn) else Turn(self.more)


def says(env: Env, text: str, reasoning: str | None = None, **options: object) -> Action:
    tokens = env.renderer.reply(Message(role="assistant", content=text, reasoning=reasoning))
    return Action(tokens, np.zeros(len(tokens)), **options)


# Actions and their parts.


@pytest.mark.parametrize(
    "options",
    [{"extra": None}, {"extra": [1]}, {"extra": {1: 2}}, {"policy_version": "v3"}, {"policy_version": 2**40}],
    ids=str,
)
def test_a_refused_action_leaves_nothing_behind(options: dict) -> None:
    env = Talks()
    env.reset(seed=0)
    before = env.prompt()
    with pytest.raises(errors.ActionError):
        env.step(says(env, "one", **options))
    assert np.array_equal(env.prompt(), before)
    env.step(says(env, "one"))
    assert env.messages()[1].content == "one"


def test_numpy_scalars_are_numbers() -> None:
    env = Talks(limits={"max_steps": 1})
    env.reset(seed=0)
    env.step(says(env, "one", temperature=np.float32(0.5), policy_version=np.int64(3)))
    (sample,) = env.trajectory.samples()
    assert (sample.temperature.tolist(), sample.policy_version.tolist()) == ([0.5], [3])


def test_parts_of_a_reply_share_the_turns_budget_and_make_a_reply_when_it_is_used_up() -> None:
    env = Talks()
    env.more = Turn("Go on.", reward=1.0, max_tokens=10)
    env.reset(seed=0)
    *_, info = env.step(says(env, "one"))
    assert (info["max_tokens"], info["rewards"]) == (10, {"reward": 1.0})
    *_, info = env.step(Action([5] * 6, finish_reason="abort"))
    assert (info["max_tokens"], info["rewards"]) == (4, {})
    _, _, _, truncated, info = env.step(Action([5] * 4, finish_reason="abort"))
    assert not truncated and info["truncated_reply"]
    trajectory = env.fail(RuntimeError("that is enough"))
    assert [step.finish_reason for step in trajectory.steps] == ["stop", "length"]
    assert [part.stop - trajectory.steps[1].action_start for part in trajectory.steps[1].parts] == [6, 10]


def test_extra_is_the_steps_own() -> None:
    env = Talks(limits={"max_steps": 2})
    env.reset(seed=0)
    buffer = np.ones((len(says(env, "one").tokens), 2), dtype=np.int16)
    env.step(says(env, "one", extra={"routed": buffer, "images": [7]}))
    buffer[:] = 2
    env.step(says(env, "one", extra={"routed": buffer}))
    (sample,) = env.trajectory.samples()
    assert sample.extra["routed"].dtype == np.int16
    assert sample.extra["routed"].shape == (len(sample), 2)
    for step in (0, 1):
        assert (sample.extra["routed"][sample.step_ids == step] == step + 1).all()
    assert (sample.extra["routed"][~sample.mask] == -1).all()  # expert 0 is an expert
    assert sample.extra["images"] == [[7], None]
    for record in (env.trajectory, sample):
        line = record.to_json()
        read = type(record).from_json(line)
        assert read.to_json() == line
    assert read.extra["routed"].dtype == np.int16
    assert Trajectory.from_json(env.trajectory.to_json()).samples()[0].to_json() == sample.to_json()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint64", "longdouble", "complex64", "datetime64[s]", "object"])
def test_an_array_that_has_no_value_for_what_is_not_known_is_refused(dtype: str) -> None:
    env = Talks()
    env.reset(seed=0)
    with pytest.raises(errors.ActionError, match=r"extra\['x'\] is an array of .*expected signed integers or floats"):
        env.step(Action([1, 2, 3], extra={"x": np.zeros(3, dtype)}))


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float64", ">i4"])
def test_what_is_not_known_is_minus_one_or_nan_and_survives_the_file(dtype: str) -> None:
    env = Talks(limits={"max_steps": 1})
    env.reset(seed=0)
    action = says(env, "one")
    values = np.arange(2 * len(action.tokens), dtype=dtype).reshape(-1, 2)
    if values.dtype.kind == "f":
        values[0] = -np.inf  # such as the log-probability of what was cut off
    env.step(replace(action, extra={"x": values}))
    (sample,) = env.trajectory.samples()
    assert np.isnan(sample.extra["x"][~sample.mask]).all() or (sample.extra["x"][~sample.mask] == -1).all()
    for record in (env.trajectory, sample):
        line = record.to_json()
        assert type(record).from_json(line).to_json() == line
        assert b"NaN" not in line.replace(b'"NaN"', b"") and b"Infinity" not in line.replace(b'"-Infinity"', b"")
    read = Trajectory.from_json(env.trajectory.to_json()).samples()[0]
    np.testing.assert_array_equal(read.extra["x"], sample.extra["x"])


@pytest.mark.parametrize("extra", [{"x": np.ones(2)}, {"x": np.array(1)}, {"x": np.array(["a"] * 3)}])
def test_an_array_that_is_not_aligned_with_the_tokens_is_refused(extra: dict[str, Any]) -> None:
    env = Talks()
    env.reset(seed=0)
    with pytest.raises(errors.ActionError, match="'x'"):
        env.step(Action([1, 2, 3], extra=extra))


@pytest.mark.parametrize("other", [{}, {"x": np.ones((1, 2))}, {"x": np.ones(1, dtype=np.int64)}, {"x": [1.0]}])
def test_arrays_with_some_actions_and_not_with_others_are_refused(other: dict[str, Any]) -> None:
    env = Talks(limits={"max_steps": 3})
    env.reset(seed=0)
    stop = env.renderer.stop_token_ids[0]
    env.step(Action([stop], extra={"x": np.ones(1)}))
    env.step(Action([]))  # it has no tokens that could have a row
    env.step(Action([stop], extra=other))
    with pytest.raises(errors.InvalidSample, match=r"extra\['x'\]"):
        env.trajectory.samples()


def test_what_an_author_does_to_arguments_does_not_change_the_past() -> None:
    class Pops(Talks):
        def respond(self, reply: Message) -> Turn:
            reply.tool_calls[0].arguments.pop("path")
            return Turn("Done.", terminated=True)

    env = Pops()
    env.reset(seed=0)
    env.step(env.renderer.reply(Message(role="assistant", tool_calls=[{"name": "read", "arguments": {"path": "a"}}])))
    assert env.messages()[1].tool_calls[0].arguments == {"path": "a"}


# Rewrites.


def test_each_reply_keeps_its_own_tokens_though_another_says_the_same() -> None:
    env = Talks(history={"name": "compact", "every": 2})
    tokenizer = env.renderer.tokenizer
    whole = tokenizer.encode("é").tolist()
    split = [
        int(np.flatnonzero([p == bytes([b]) for p in tokenizer.token_bytes(np.arange(256))])[0]) for b in "é".encode()
    ]
    think = [tokenizer.token_id("<think>"), *tokenizer.encode("\nhm\n"), tokenizer.token_id("</think>")]
    stop = tokenizer.token_id("<|im_end|>")
    env.reset(seed=0)
    for text in (split, whole):
        env.step(np.array([*think, *tokenizer.encode("\n\n"), *text, stop], dtype=np.int32))
    prompt = str(env.prompt().tolist())
    assert str([*split, stop])[1:-1] in prompt
    assert str([*whole, stop])[1:-1] in prompt
    assert tokenizer.token_id("<think>") not in env.prompt().tolist()


def test_a_reply_is_never_cut_inside_a_token() -> None:
    tokenizer = envsdk.load_tokenizer(real_models.qwen3_folder())
    env = Talks(tokenizer=tokenizer, renderer={"name": "qwen3", "enable_thinking": False}, history="strip")
    pieces = tokenizer.token_bytes(np.arange(20_000, dtype=np.int32))
    odd = [token for token, piece in enumerate(pieces) if piece[:1] == b"\n" and piece.strip(b"\n")]
    assert odd
    for token in odd:
        env.reset(seed=0)
        env.step(np.array([token, *tokenizer.encode("x"), tokenizer.token_id("<|im_end|>")], dtype=np.int32))
        said = env.episode.root.context.view[1].content
        assert f"<|im_start|>assistant\n{said}<|im_end|>" in tokenizer.decode(env.prompt())


class Returns(HistoryPolicy):
    """Returns the given object once there is a reply."""

    what: Any = None

    def view(self, history: History) -> Any:
        if not history.steps:
            return None
        return self.what(history) if callable(self.what) else self.what


@pytest.mark.parametrize(
    "what",
    [
        True,
        [],
        Rewrite(0, [], "edit"),
        Rewrite(99, [], "edit"),
        Rewrite(0, ["text"], "edit"),
        Rewrite(0, [Message(role="user", content="a")], "because"),
    ],
    ids=str,
)
def test_a_policy_that_returns_nonsense_is_refused(what: object) -> None:
    env = Talks(history=Returns(what=what))
    env.reset(seed=0)
    before = env.prompt()
    action = says(env, "one")
    with pytest.raises(UndeclaredBreak, match="Returns returned") as refused:
        env.step(action)
    ((_, prompt, sampled),) = env.fail(refused.value).prompts()
    assert (prompt.tolist(), sampled.tolist()) == (before.tolist(), list(action.tokens))


def test_a_policy_cannot_change_the_messages_that_it_sees() -> None:
    env = Talks(history=Returns(what=lambda history: history.messages.pop(0)))
    env.reset(seed=0)
    with pytest.raises(AttributeError, match="pop"):
        env.step(says(env, "one"))


def test_a_message_put_before_all_others_leaves_one_list_of_tools() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    first = Message(role="system", content="Be brief.")
    env = Talks(history=Returns(what=lambda history: Rewrite(0, [first, *history.messages[0:]], "edit")))
    env.options = {"tools": [tool]}
    env.reset(seed=0)
    observation, *_ = env.step(says(env, "one"))
    expected = env.renderer.render(env.episode.root.context.view, tools=[tool], history="keep", generation_prompt=True)
    assert observation.keep == 0
    assert env.prompt().tolist() == expected.tokens.tolist()


def test_a_budget_keeps_the_whole_first_turn() -> None:
    shots = [{"role": "user", "content": "example"}, {"role": "assistant", "content": "shown " * 9}]
    env = Talks(history={"name": "budget", "max_tokens": 110, "order": ["oldest"]})
    env.first = [*shots, {"role": "user", "content": "THE REAL TASK"}]
    env.reset(seed=0)
    info: dict = {}
    while "break" not in info:
        *_, info = env.step(says(env, "a guess " * 4))
    assert "THE REAL TASK" in env.renderer.tokenizer.decode(env.prompt())


# Ends before the start.


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"limits": {"max_context_tokens": 5}}, "max_context_tokens"),
        ({"history": {"name": "budget", "max_tokens": 5}}, "context_full"),
    ],
)
def test_a_first_prompt_that_does_not_fit_ends_the_episode_gracefully(options: dict, reason: str) -> None:
    env = Talks(**options)
    _, info = env.reset(seed=0)
    assert info["stop_reason"] == reason
    observation, reward, terminated, truncated, info = env.step([5])
    assert (len(observation.tokens), reward, terminated, truncated, info["stop_reason"]) == (
        0,
        0.0,
        False,
        True,
        reason,
    )
    assert env.trajectory.steps == []
    assert envsdk.rollout(Talks(**options), "null", seed=0).stop_reason == reason
    with pytest.raises(errors.EpisodeError):
        env.step([5])


# Many episodes.


def test_episodes_of_one_seed_are_a_group_with_ids_of_their_own() -> None:
    make = lambda: Talks(limits={"max_steps": 2})  # noqa: E731
    trajectories = rollout_many(make, "random", seeds=[7, 7, 8])
    assert [trajectory.id for trajectory in trajectories] == ["Talks/7", "Talks/7#1", "Talks/8"]
    assert [trajectory.group_id for trajectory in trajectories] == ["Talks/7", "Talks/7", "Talks/8"]
    tokens = [trajectory.contexts["main"].tokens.tolist() for trajectory in trajectories]
    assert tokens[0] != tokens[1]
    assert trajectories[1].samples()[0].group_id == "Talks/7"


def test_an_episode_that_cannot_begin_is_recorded_as_itself() -> None:
    class Row(BaseModel):
        question: str

    class Asks(Talks):
        Task = Row

    rows = [{"question": "Which?"}, {"question": 7}, {"question": "Why?"}]
    trajectories = rollout_many(
        lambda: Asks(tasks=rows, limits={"max_steps": 1}), "null", seeds=[0, 1, 2], max_concurrency=1
    )
    assert [t.id for t in trajectories] == ["Asks/0", "Asks/1", "Asks/2"]
    assert sorted(t.status for t in trajectories) == ["error", "truncated", "truncated"]


def test_a_shared_environment_is_refused_by_rollout_many() -> None:
    env = Talks()
    with pytest.raises(errors.ConfigError, match=r"the same environment object twice"):
        rollout_many(lambda: env, "null", seeds=range(2))


def test_inside_an_event_loop_the_plain_functions_do_what_the_others_do() -> None:
    async def inside() -> list[Trajectory]:
        one = envsdk.rollout(Talks(limits={"max_steps": 1}), "null", seed=0)
        make = partial(Talks, limits={"max_steps": 1})
        return [one, *rollout_many(make, "null", seeds=[0]), *await arollout_many(make, "null", seeds=[0])]

    assert (
        len({trajectory.to_json() for trajectory in asyncio.run(inside())}) == 2
    )  # those of rollout_many have a group


def test_an_ended_episode_cannot_fail() -> None:
    env = Talks(limits={"max_steps": 1})
    envsdk.rollout(env, "null", seed=0)
    with pytest.raises(errors.EpisodeError, match="has ended already"):
        env.fail(ValueError("late"))
    assert env.trajectory.status == "truncated"


def test_environments_share_a_tokenizer_across_threads() -> None:
    results: dict[int, bytes] = {}

    def run(index: int) -> None:
        results[index] = envsdk.rollout(
            envsdk.make("envsdk/MathChat-v0", history="strip"), "reference", seed=1
        ).to_json()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results.values())) == 1


# Records.


def with_base(keep: int) -> Trajectory:
    def log(role: str, parent: str | None, tokens: list[int], logprobs: list[float]) -> ContextLog:
        return ContextLog(role, parent, np.array(tokens, np.int32), np.array(logprobs, np.float32), [])

    logs = {"main": log("main", None, [1, 2, 3, 4], [0, 0, -1, -1]), "child": log("child", "main", [5, 6], [0, -1])}
    steps = [
        Step("main", "main", 0, False, 0, 2, (Part(4),)),
        Step("child", "main", keep, False, 0, 1, (Part(2),), break_=None),
    ]
    return Trajectory("t", "e", 0, "terminated", "terminated", logs, steps, vocab_size=10)


def test_a_context_that_starts_from_another_is_a_sample_with_that_prefix() -> None:
    trajectory = with_base(3)
    assert [prompt.tolist() for _, prompt, _ in trajectory.prompts()] == [[1, 2], [1, 2, 3, 5]]
    main, child = (sample.validate() for sample in trajectory.samples())
    assert (main.tokens.tolist(), main.mask.tolist()) == ([1, 2, 3, 4], [False, False, True, True])
    assert (child.tokens.tolist(), child.mask.tolist()) == ([1, 2, 3, 5, 6], [False] * 4 + [True])
    assert trajectory.tree_size() == 6
    assert Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()


def test_a_step_that_keeps_more_than_there_is_is_refused() -> None:
    for read in (Trajectory.samples, Trajectory.tree_size, lambda t: list(t.prompts())):
        with pytest.raises(errors.InvalidRecord, match=r"keeps 9 tokens of 'main'"):
            read(with_base(9))


def test_long_integers_in_tasks_stay_exact(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"answer": 1180591620717411303424}\n')
    env = Talks(tasks=str(file), limits={"max_steps": 1})
    trajectory = envsdk.rollout(env, "null", seed=2**70)
    assert env.task == {"answer": 2**70}
    assert Trajectory.from_json(trajectory.to_json()).task == {"answer": 2**70}


def test_what_an_author_does_to_a_task_does_not_change_the_data() -> None:
    class Writes(Talks):
        def start(self) -> Turn:
            self.task["log"].append(1)
            return Turn("Hello.")

    env = Writes(tasks=[{"log": []}], limits={"max_steps": 1})
    assert len({envsdk.rollout(env, "null", seed=0).to_json() for _ in range(3)}) == 1


def test_writing_over_the_file_that_is_being_read_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    trajectories = rollout_many(lambda: envsdk.make("envsdk/GuessNumber-v1"), "null", seeds=range(3))
    write_jsonl(path, trajectories)
    assert write_jsonl(path, (t for t in read_jsonl(path, Trajectory) if t.seed)) == 2
    assert [trajectory.seed for trajectory in read_jsonl(path, Trajectory)] == [1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_the_record_says_how_its_prompts_were_made() -> None:
    env = envsdk.make(
        "envsdk/MathChat-v0", renderer={"name": "qwen3", "enable_thinking": False}, questions=2, limits={"max_steps": 9}
    )
    trajectory = envsdk.rollout(env, "null", seed=0)
    assert trajectory.renderer == {"name": "qwen3", "enable_thinking": False}
    assert trajectory.config["questions"] == 2
    assert trajectory.limits == {"max_steps": 9}


# Options and tokenizers.


@pytest.mark.parametrize("option", ["enable_thinking", "unsafe_content"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_switches_are_true_or_false(option: str, value: object) -> None:
    with pytest.raises(errors.ConfigError, match=option):
        envsdk.get_renderer("qwen3", **{option: value})


def test_the_command_line_reads_switches_in_either_spelling() -> None:
    from envsdk.cli import specification

    assert specification("qwen3:enable_thinking=False") == specification("qwen3:enable_thinking=false")
    assert specification("qwen3:enable_thinking=False")["enable_thinking"] is False


def test_a_misspelt_history_of_render_is_refused() -> None:
    with pytest.raises(errors.RenderError, match="templte"):
        envsdk.get_renderer("qwen3").render([Message(role="user", content="a")], history="templte")


def test_gymnasiums_own_step_limit_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="max_steps"):
        envsdk.make("envsdk/MathChat-v0", max_episode_steps=2)


def test_a_text_with_many_spaces_is_encoded() -> None:
    tokenizer, text = envsdk.load_tokenizer("embedded"), " " * 200_000 + "x"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("parameters", [None, {"required": None}, {}])
def test_tools_without_parameters_can_be_called(parameters: object) -> None:
    env = Talks()
    env.options = {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}
    env.reset(seed=0)
    env.step(env.renderer.reply(Message(role="assistant", tool_calls=[{"name": "f"}])))
    assert env.reply.errors == ()


@pytest.mark.parametrize("options", [{"history": None}, {"history": envsdk.history.Keep}, {"renderer": 3}], ids=str)
def test_options_of_a_wrong_type_are_named(options: dict) -> None:
    with pytest.raises(errors.ConfigError, match=next(iter(options))):
        Talks(**options)
