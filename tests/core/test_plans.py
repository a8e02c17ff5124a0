"""The cheapest breaks of recorded episodes, against every other schedule, and the online rule against them."""

import itertools
import json
import math
import random
from typing import Any

import pytest
import real_models
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import envsdk
from envsdk import Edit, Env, EnvConfig, Limits, Message, ToolCall, Trajectory, Turn
from envsdk.cli import app
from envsdk.contexts._history import get_history
from envsdk.diagnostics import Prices, cost
from envsdk.diagnostics._plans import plan
from envsdk.errors import ConfigError
from envsdk.history import Planned

LOOK: Any = {"type": "function", "function": {"name": "look", "description": "Look something up."}}
Script = tuple[tuple[int, int, bool, int], ...]


class Scripted(Env):
    """Each reply thinks and answers in a number of words, and may call a tool; the answer to it has a length, too.

    After the reply `night`, only the first turn stays.
    """

    class Config(EnvConfig):
        script: Script
        night: int = 0

    default_limits = Limits(max_steps=1000)

    def start(self) -> Turn:
        self.answered = 0
        return Turn("Go.", system="Look it up.", tools=[LOOK])

    def respond(self, reply: Message) -> Turn:
        text = "word " * self.config.script[self.answered][3]
        self.answered += 1
        if self.answered == self.config.night < len(self.config.script):
            return Turn("Good morning.", edit=Edit(2, "a night"))
        results = [Message(role="tool", name="look", content=text, tool_call_id=call.id) for call in reply.tool_calls]
        return Turn(results or text, reward=1.0, terminated=self.answered == len(self.config.script))

    def reference_reply(self) -> Message:
        thought, answer, calls, _ = self.config.script[self.answered]
        reasoning = "so " * thought if thought else None
        call = (ToolCall(name="look", arguments={}),) * calls
        return Message(role="assistant", reasoning=reasoning, content="yes " * answer, tool_calls=call)


def played(script: Script, history: Any = "keep", renderer: Any = None, seed: int = 0, night: int = 0) -> Trajectory:
    own = {"renderer": "qwen3", "tokenizer": "embedded"} if renderer is None else {"renderer": renderer}
    env = Scripted(script=script, night=night, history=history, **own)
    return envsdk.rollout(env, "reference", seed=seed)


def price_of(trajectory: Trajectory, prices: Prices, limit: int | None = None) -> float:
    prompts = [step.keep + step.action_start - step.start for step in trajectory.steps]
    is_legal = trajectory.status == "terminated" and (limit is None or max(prompts) <= limit)
    return prices.of(cost(trajectory)) if is_legal else math.inf


WORDS = st.sampled_from([0, 1, 3, 10, 40])
SCRIPTS = st.lists(st.tuples(WORDS, WORDS, st.booleans(), WORDS), min_size=2, max_size=5).map(tuple)
PRICES = st.builds(
    Prices,
    input=st.just(1.0),
    cached=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    output=st.sampled_from([0.0, 5.0]),
    training=st.sampled_from([0.0, 3.0]),
    samples=st.sampled_from([0.0, 1.0]),
)
DROPS: Any = st.sampled_from([("thinking",), ("tool_results",), ("thinking", "tool_results"), ("oldest",)])


@given(
    script=SCRIPTS,
    prices=PRICES,
    drops=DROPS,
    keep_last=st.integers(1, 2),
    limit=st.none() | st.integers(60, 300),
    night=st.sampled_from([0, 0, 2, 3]),
)
@settings(max_examples=settings.default.max_examples * 10 if settings.default.max_examples >= 100 else 20)
def test_no_schedule_is_cheaper_than_the_plan(
    script: Script, prices: Prices, drops: Any, keep_last: int, limit: int | None, night: int
):
    """All schedules are played, with real contexts."""
    steps = range(1, len(script))
    schedules = [at for n in range(len(script)) for at in itertools.combinations(steps, n)]
    policies = [Planned(at=at, drops=drops, keep_last=keep_last) for at in schedules]
    best = min(price_of(played(script, policy, night=night), prices, limit) for policy in policies)
    trajectory = played(script, night=night)
    if best == math.inf:
        with pytest.raises(ConfigError, match="even without"):
            plan([trajectory], max_context_tokens=limit, prices=prices, drops=drops, keep_last=keep_last)
        return
    found = plan([trajectory], max_context_tokens=limit, prices=prices, drops=drops, keep_last=keep_last)
    assert found.rows[-1].price == pytest.approx(best, rel=1e-9)
    assert not any("differently" in note for note in found.notes)
    (at,) = found.schedules.values()
    policy = Planned(at=at, drops=drops, keep_last=keep_last)
    assert price_of(played(script, policy, night=night), prices) == pytest.approx(best)


def random_script(seed: int, steps: int) -> Script:
    drawn = random.Random(seed)
    sizes = [0, 5, 20, 60, 200]
    return tuple(
        (drawn.choice(sizes), drawn.choice(sizes), drawn.random() < 0.7, drawn.choice(sizes)) for _ in range(steps)
    )


def excess(trajectory: Trajectory, drops: Any, cached: float) -> float:
    """Return what a schedule pays beyond the shortest prompts, from a cache except for new messages."""
    shortest = played(trajectory.config["script"], Planned(at=tuple(range(1, 1000)), drops=drops))
    kept = played(trajectory.config["script"])
    total = 0.0
    for own, short, plain in zip(trajectory.steps, shortest.steps, kept.steps, strict=True):
        new = plain.action_start - plain.start
        length = short.keep + short.action_start - short.start
        total += cached * own.keep + own.action_start - own.start - cached * (length - new) - new
    return total


@pytest.mark.full
@given(seed=st.integers(0, 10**6), cached=st.sampled_from([0.02, 0.1, 0.5]), limit=st.sampled_from([None, 900]))
def test_the_online_rule_stays_within_its_bound(seed: int, cached: float, limit: int | None):
    script = random_script(seed, 10)
    prices, drops = Prices(input=1, cached=cached), ("oldest",)
    best = plan([played(script)], prices=prices, drops=drops, max_context_tokens=limit)
    (at,) = best.schedules.values()
    online = played(script, Planned(drops=drops, cached=cached, max_tokens=limit))
    offline = played(script, Planned(drops=drops, at=at))
    replies = [step.stop - step.action_start for step in online.steps[1:-1]]  # a break writes the last one again
    ratio = (max(replies) + 2) / min(replies)
    assert excess(online, drops, cached) <= 2 * ratio * excess(offline, drops, cached) + 1e-6
    assert excess(offline, drops, cached) >= -1e-6


def test_a_schedule_breaks_after_its_steps_and_nowhere_else():
    script = ((9, 1, True, 40),) * 8
    trajectory = played(script, Planned(at=(3, 6)))
    assert [index for index, step in enumerate(trajectory.steps) if step.break_] == [3, 6]
    assert {break_.reason for break_ in trajectory.breaks} == {"compaction"}
    last = list(trajectory.prompts())[-1]
    text = envsdk.make("envsdk/MathChat-v0").renderer.tokenizer.decode(last.prompt)
    assert text.count("dropped to save space") == 5 and text.count("<think>\nso") == 2


def test_a_break_comes_before_the_limit_also_with_a_schedule():
    script = ((30, 1, True, 40),) * 8
    for policy in (Planned(at=(), max_tokens=800), Planned(cached=0.0, max_tokens=800)):
        trajectory = played(script, policy)
        assert {break_.reason for break_ in trajectory.breaks} == {"budget"} and trajectory.status == "terminated"
        assert max(len(prompt.prompt) for prompt in trajectory.prompts()) <= 800
    full = played(script, Planned(max_tokens=100))
    assert full.stop_reason == "context_full"


def test_the_last_replies_stay_whole():
    trajectory = played(((9, 1, True, 9),) * 8, Planned(at=(6,), keep_last=3, drops=("oldest",)))
    (break_,) = trajectory.breaks
    kept = list(trajectory.prompts())[6].prompt
    text = envsdk.make("envsdk/MathChat-v0").renderer.tokenizer.decode(kept)
    assert text.count("so so") == text.count("<tool_response>") * text.count("so so") // 3 > 0
    assert break_.kept + break_.dropped > len(kept)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("planned", Planned()),
        ("planned:cached=0.02,max_tokens=500", Planned(cached=0.02, max_tokens=500)),
        ('planned:drops=["oldest"]', Planned(drops=("oldest",))),
        ('planned:at=[3,9],drops=["oldest"]', Planned(at=(3, 9), drops=("oldest",))),
        ('{"name":"planned","at":[3,9]}', Planned(at=(3, 9))),
    ],
)
def test_the_policy_is_written_as_others_are(text: str, policy: Planned):
    assert get_history(envsdk.cli.specification(text)) == policy


@pytest.mark.parametrize(
    "options", [{"cached": -0.1}, {"cached": 1.1}, {"cached": math.nan}, {"drops": []}, {"at": [0]}, {"max_tokens": 0}]
)
def test_options_that_are_not_valid_are_named(options: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(options))):
        get_history({"name": "planned", **options})


RENDERERS: dict[str, Any] = {
    "qwen3": lambda: envsdk.get_renderer("qwen3", "embedded"),
    "harmony": lambda: envsdk.get_renderer("harmony", real_models.gpt_oss_tokenizer()),
    "fixed_base": lambda: envsdk.get_renderer("fixed_base", real_models.qwen3_folder()),
}


@pytest.mark.matrix
@pytest.mark.parametrize("family", RENDERERS)
@pytest.mark.parametrize("drops", [("thinking", "tool_results"), ("oldest",)])
def test_the_plan_costs_what_its_replay_costs(family: str, drops: Any):
    renderer = RENDERERS[family]()
    trajectories = [played(random_script(seed, 12), renderer=renderer, seed=seed) for seed in range(3)]
    prices = Prices(input=1, cached=0.3, output=4, training=0.5, samples=0.1)
    found = plan(trajectories, renderer, drops=drops, prices=prices)
    assert any(found.schedules.values()) and not found.left_out
    if family == "fixed_base":  # it renders whole conversations, so a length in another place is an estimate
        assert all("other lengths" in note for note in found.notes)
    else:
        assert not found.notes
        fixed = [row.price for row in found.rows if not row.name.startswith("budget")]  # a budget drops more
        assert found.rows[-1].price == min(fixed)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("envsdk/LongErrand-v0", {"context_tools": ("note", "recall"), "limits": {"max_context_tokens": None}}),
        ("envsdk/Delegate-v1", {}),
        ("envsdk/CorpusSearch-v1", {}),
    ],
)
def test_edits_of_the_environment_and_sub_agents_have_a_place_in_the_plan(env: str, options: dict[str, Any]):
    trajectory = envsdk.rollout(envsdk.make(env, tokenizer="embedded", **options), "reference", seed=0)
    found = plan([trajectory], drops=["thinking", "tool_results"], prices=Prices(input=1, cached=0.5, training=0.2))
    (at,) = found.schedules.values()
    assert not found.notes and not found.left_out
    assert bool(at) == (env != "envsdk/Delegate-v1")
    assert found.rows[-1].price == min(row.price for row in found.rows if not row.name.startswith("budget"))


def test_episodes_that_cannot_be_planned_are_counted():
    class Edits(Scripted):
        def respond(self, reply: Message) -> Turn:
            turn = super().respond(reply)
            return Turn(turn.messages, system="Look again.") if self.answered == 2 else turn

    script = ((9, 3, False, 9),) * 5
    failed = played(script)
    failed.status = failed.stop_reason = "error"
    edited = envsdk.rollout(Edits(script=script, renderer="qwen3", tokenizer="embedded"), "reference", seed=0)
    found = plan([played(script), failed, edited])
    assert found.left_out == {"it failed": 1, "its environment or its template changes the past, and keeps replies": 1}
    assert "left out: 1 (it failed)" in str(found)
    with pytest.raises(ConfigError, match=r"no episode can be planned. Left out: 1 \(it failed\)"):
        plan([failed])
    with pytest.raises(ConfigError, match="there are no episodes"):
        plan([])


def test_an_episode_of_a_policy_that_exchanges_text_has_no_training():
    trajectory = played(random_script(3, 12))
    for log in trajectory.contexts.values():
        log.is_trainable = False
    found = plan([trajectory], prices=Prices(input=1, cached=0.3, training=5, samples=1))
    assert found.schedules == plan([trajectory], prices=Prices(input=1, cached=0.3)).schedules and not found.notes


def test_summaries_are_not_part_of_a_plan():
    script = random_script(4, 30)
    trajectory = played(script, {"name": "summarize", "threshold": 1500, "summarizer": lambda messages: "So far."})
    assert trajectory.breaks
    found = plan([trajectory])
    assert found.rows[0].name == "now: summarize" and found.rows[-1].price == plan([played(script)]).rows[-1].price


# The command.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs") / "notes"
    options = {"difficulty": "easy", "tokenizer": "embedded"}
    envsdk.rollouts.Rollouts(
        "envsdk/LongNotes-v1", "reference", env_options=options, seeds=range(2), group_size=1, out=folder
    ).run()
    return str(folder)


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_command_prints_a_table_a_drawing_and_the_option_to_copy(run: str):
    lines = printed(run, "--max-context-tokens", "1500").splitlines()
    heads = ["history", "now: keep", "every", "budget:max_tokens=1500", "planned:max_tokens=1500", "the plan: oldest"]
    assert all(line.startswith(head) for line, head in zip(lines, heads, strict=False))
    assert any("more than the limit" in line for line in lines)
    bars = [line.split()[-1] for line in lines if "█" in line or "▁" in line]
    assert len(bars) == 5 and len({*map(len, bars)}) == 1
    option = lines[-1].partition("--history ")[2].strip("'")
    assert get_history(envsdk.cli.specification(option)) == Planned(max_tokens=1500, drops=("oldest",))


def test_the_command_prints_json(run: str):
    found = json.loads(printed(run, "--json", "--price", "input=2,cached=0.2,training=3", "--keep-last", "2"))
    assert [row["name"].split()[0] for row in found["rows"]][-1] == "the" and len(found["schedules"]) == 2
    assert found["online"]["cached"] == pytest.approx(0.2 / 5) and found["online"]["keep_last"] == 2
    assert found["left_out"] == {} and found["rows"][-1]["breaks"]["compaction"]["breaks"] > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--max-context-tokens", "50"],
            "no episode can be planned. Left out: 2 .a prompt has more than 50 tokens even without",
        ),
        (["--price", "input=-1"], "the price input is -1"),
        (["--price", "input=NaN"], "the price input is nan"),
        (["--price", "prefill=1"], "--price is 'prefill=1'; expected some of input, cached, output, training"),
        (["--price", "input=1,cached=2"], "expected the first to be at most the second"),
        (["--price", "output=2"], "not all prices to be 0"),
        (["--drops", "thoughts"], "drops"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(run: str, arguments: list[str], error: str):
    with pytest.raises(ConfigError, match=error):
        printed(run, *arguments)
