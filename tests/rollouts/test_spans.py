"""The spans of an episode: a tree of what it spent its time on, recorded only for a tracker that wants them."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from commanded_policies import Commanded
from scripted_sessions import RunningGateway

from envsdk import Message, ToolCall, ToolEnv, Turn, errors, tool
from envsdk._spans import EpisodeSpan, current_span
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.gateway._outside import PlayedSessions
from envsdk.rollouts import Rollouts
from envsdk.rollouts import _trackers as trackers
from envsdk.rollouts._reporting import Reporter

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
EXCHANGE = {"messages": [{"role": "user", "content": "Hi"}], "model": "m"}


class Collected(Reporter):
    name = "collected"
    every_s = end_s = 60.0

    def __init__(self, spans: Any) -> None:
        self.spans = spans
        self.taken: list[EpisodeSpan] = []

    def take(self, spans: Any) -> None:
        self.taken += spans

    def update(self, step: int, values: Mapping[str, float]) -> None:
        pass


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Collected]:
    def made(spans: str = "timing") -> Collected:
        collected = Collected(spans)
        monkeypatch.setitem(trackers._TRACKERS, "mine", lambda where: collected)
        return collected

    return made


class Adds(ToolEnv):
    """The model adds twice, and the second time fails."""

    @tool
    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: A number.
            b: A number.
        """
        if a > 1:
            raise errors.ToolError("too much")
        return a + b

    def start(self) -> Turn:
        return Turn("Add.")

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)

    def reference_reply(self) -> Message:
        done = sum(message.role == "tool" for message in self.messages())
        calls = [ToolCall(name="add", arguments={"a": done + 1, "b": 1})] if done < 2 else []
        return Message(role="assistant", content="" if calls else "Done.", tool_calls=tuple(calls))


def outline(span: EpisodeSpan) -> Any:
    """The kinds and names of a span and of those inside it; they are closed and inside each other."""
    assert span.ended_s is not None
    for child in span.children:
        assert child.root is not None and span.began_s <= child.began_s
    return (span.kind, span.name, [outline(child) for child in span.children])


def test_an_episode_is_a_tree_of_spans(tracker: Callable[..., Collected]) -> None:
    collected = tracker()
    (trajectory,) = Rollouts(Adds, "reference", seeds=[0], log_to="mine").run()
    (span,) = collected.taken
    call, model, method = ("tool", "add", []), ("policy", "ReplyPolicy", []), ("method", "respond")
    assert outline(span) == (
        "episode",
        trajectory.id,
        [
            ("method", "start", []),
            ("step", "main", [model, (*method, [call])]),
            ("step", "main", [model, (*method, [call])]),
            ("step", "main", [model, (*method, [])]),
        ],
    )
    assert span.facts["scored_reward"] == trajectory.reward == 1.0
    steps = span.children[1:]
    assert [step.facts["reward"] for step in steps] == [0.0, 0.0, 1.0]
    sampled = [step.children[0].facts["sampled_tokens"] for step in steps]
    assert sampled == [step.stop - step.action_start for step in trajectory.steps]
    assert [step.children[0].facts["prompt_tokens"] for step in steps] == [
        len(each.prompt) for each in trajectory.prompts()
    ]
    assert [step.children[1].children[0].error for step in steps[:2]] == [None, "tool_error"]
    assert not any("input" in step.children[0].facts for step in steps)


@pytest.mark.full
def test_worker_processes_record_the_same_spans(tracker: Callable[..., Collected]) -> None:
    collected = tracker()
    Rollouts("envsdk/Calculator-v1", "reference", seeds=[0], log_to="mine").run()
    Rollouts("envsdk/Calculator-v1", "reference", seeds=[0], log_to="mine", executor="processes", n_workers=1).run()
    here, there = collected.taken
    assert outline(here) == outline(there)


def test_a_sub_agent_has_a_span_with_its_steps(tracker: Callable[..., Collected]) -> None:
    collected = tracker()
    (trajectory,) = Rollouts("envsdk/Delegate-v1", "reference", seeds=[0], log_to="mine").run()
    steps = [child for child in collected.taken[0].children if child.kind == "step"]
    agents = [child for step in steps for child in step.children if child.kind == "agent"]
    assert [agent.name for agent in agents] == [name for name in trajectory.contexts if name != "main"]
    for agent in agents:
        taken = sum(step.context == agent.name for step in trajectory.steps)
        assert [child.kind for child in agent.children] == ["method", *["step"] * taken]


def test_content_is_recorded_only_for_a_tracker_that_wants_it(tracker: Callable[..., Collected]) -> None:
    collected = tracker("content")
    Rollouts(Adds, "reference", seeds=[0], log_to="mine").run()
    _, first, second, _ = collected.taken[0].children
    assert [message.content for message in first.children[0].facts["input"][-1:]] == ["Add."]
    assert first.children[0].facts["output"].tool_calls[0].arguments == {"a": 1, "b": 1}
    assert second.children[0].facts["input"][-1].content == "2"
    assert first.children[1].children[0].facts["result"] == "2"


def test_without_a_tracker_nothing_is_recorded(tracker: Callable[..., Collected]) -> None:
    seen: list[EpisodeSpan | None] = []

    class Looks(Adds):
        def start(self) -> Turn:
            seen.append(current_span.get())
            return super().start()

    Rollouts(Looks, "reference", seeds=[0]).run()
    assert seen == [None]


def test_each_attempt_has_a_span_and_the_error_of_its_end(tracker: Callable[..., Collected]) -> None:
    collected = tracker()

    def policy(prompt: Any, **_: Any) -> Any:
        raise ConnectionError("secret")

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    Rollouts(Adds, policy, seeds=[0], log_to="mine", max_retries=1, retry_wait_s=0.01).run()
    assert [span.error for span in collected.taken] == ["ConnectionError"] * 2
    assert [span.children[1].children[0].error for span in collected.taken] == ["ConnectionError"] * 2
    assert "secret" not in repr(collected.taken)


class Program(ProgramEnv):
    def run(self, model: Endpoint) -> float:
        headers = {"authorization": f"Bearer {model.api_key}", "traceparent": TRACEPARENT}
        httpx.post(f"{model.base_url}/chat/completions", json=EXCHANGE, headers=headers).raise_for_status()
        return 1.0


def check_request(program: EpisodeSpan) -> None:
    """A request has the header of its client and the call of the policy that answers it."""
    (request,) = program.children
    assert (request.kind, request.facts["status"]) == ("request", 200)
    assert request.facts["carrier"] == {"traceparent": TRACEPARENT}
    assert [(child.kind, child.facts["sampled_tokens"] > 0) for child in request.children] == [("policy", True)]


def test_the_requests_of_a_program_have_the_calls_of_the_policy(tracker: Callable[..., Collected]) -> None:
    collected = tracker()
    Rollouts(Program, Commanded(), seeds=[0], env_options={"tokenizer": "embedded"}, log_to="mine").run()
    kinds = {child.kind: child for child in collected.taken[0].children}
    assert [*kinds] == ["method", "program", "step"]
    check_request(kinds["program"])


def test_a_session_of_a_gateway_has_spans(tracker: Callable[..., Collected]) -> None:
    collected = tracker()
    env_options = {"renderer": "qwen3", "tokenizer": "embedded"}
    with (
        RunningGateway(PlayedSessions(Commanded(), env_options, log_to="mine")) as url,
        httpx.Client(base_url=url, timeout=600) as client,
    ):
        session = client.post("/sessions", json={}).json()
        headers = {"authorization": f"Bearer {session['key']}", "traceparent": TRACEPARENT}
        client.post("/v1/chat/completions", json=EXCHANGE, headers=headers).raise_for_status()
        client.post(f"/sessions/{session['id']}/close", json={}).raise_for_status()
    (span,) = collected.taken
    check_request(next(child for child in span.children if child.kind == "program"))


def test_a_gateway_refuses_a_tracker_without_spans(tracker: Callable[..., Collected]) -> None:
    tracker(None)  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="expected 'otel'"):
        PlayedSessions("random", {}, log_to="mine")
