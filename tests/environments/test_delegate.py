import asyncio
import re
from typing import Any

import numpy as np
import pytest
from envsdk_environments._delegate import Article, Delegate, Researcher, ResearcherTask
from toy_policies import in_any_vocabulary

import envsdk
from envsdk import Action, Limits, Message, ToolCall, Trajectory, errors
from envsdk.policies import RandomPolicy, ReplyPolicy
from envsdk.rollouts import rollout_many

HISTORIES = ["keep", "strip", {"name": "compact", "every": 2}]


def asks(*calls: list[str]) -> Message:
    """A reply with a call for each list of questions."""
    tool_calls = tuple(ToolCall(name="delegate", arguments={"questions": questions}) for questions in calls)
    return Message(role="assistant", tool_calls=tool_calls)


def says(*replies: Message | str) -> Any:
    """A policy for one role that says this, one after the other, then the last again and again."""
    left = list(replies)
    return lambda env: left.pop(0) if len(left) > 1 else left[0]


def play(env: Delegate, main: Any, researcher: Any = "reference", seed: int = 0) -> Trajectory:
    """Roll out with what `main` and `researcher` say: a function of the environment, or the name of a policy."""
    policies = {"main": main, "researcher": researcher}
    return envsdk.rollout(
        env, {r: p if isinstance(p, str) else ReplyPolicy(env, p) for r, p in policies.items()}, seed=seed
    )


def results(env: Delegate) -> list[str]:
    """What the parent was told."""
    return [message.content for message in env.messages() if message.role == "tool"]


def check(trajectory: Trajectory) -> None:
    """Every sampled token is trained once."""
    samples = [sample.validate() for sample in trajectory.samples(include_failed=True)]
    assert sum(int(sample.mask.sum()) for sample in samples) == trajectory.sampled_tokens
    assert Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()


@pytest.mark.parametrize(
    "options",
    [{}, {"candidates": 2, "people": 2}, {"candidates": 6, "people": 40}, {"split": "test", "concurrent_tools": True}],
)
def test_the_reference_policy_solves_it_and_the_null_policy_does_not(options: dict):
    for policy, reward in (("reference", 1.0), ("null", 0.0)):
        trajectories = rollout_many(lambda: Delegate(**options), policy, seeds=range(4))
        assert {t.reward for t in trajectories} == {reward}
        assert not any(step.metrics.get("tool_errors") for t in trajectories for step in t.steps)


def test_no_name_of_a_test_world_is_in_a_train_world():
    def names(split: str) -> set[str]:
        env = Delegate(split=split, people=100)
        worlds = [env.reset(seed=seed) and env.quest.articles for seed in range(10)]
        return {article.title for world in worlds for article in world}

    train, test = names("train"), names("test")
    assert len(train) > 1000 and len(test) > 500
    assert not train & test


def test_the_parent_is_one_sample_and_so_is_each_researcher():
    trajectory = envsdk.rollout(Delegate(), "reference", seed=3)
    check(trajectory)
    samples = trajectory.samples()
    assert [(sample.role, sample.parent) for sample in samples] == [("main", None), *[("researcher", "main")] * 4]
    kinds = [(broken.kind, broken.reason, broken.dropped) for broken in trajectory.breaks]
    handoff, back = ("switch", "handoff", 0), ("switch", "return", 0)
    assert kinds == [handoff, handoff, handoff, back, handoff, back]


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_it_is_solved_with_every_history_policy(history: Any):
    env = Delegate(history=history)
    trajectory = envsdk.rollout(env, "reference", seed=5)
    assert (trajectory.status, trajectory.reward) == ("terminated", 1.0)
    check(trajectory)
    renderers = {agent.context.renderer for agent in env.episode.root.agents()}
    assert renderers == {env.renderer}
    rewrites = sum(broken.kind == "rewrite" for broken in trajectory.breaks)
    assert len(trajectory.samples()) == 5 + rewrites
    assert (rewrites > 0) == (history not in ("keep", "strip"))  # these tool rounds belong to one user's query


def test_the_world_hides_the_answer_from_the_parent():
    env = Delegate()
    trajectory = envsdk.rollout(env, "reference", seed=1)
    contexts = {name: env.episode.contexts[name] for name in trajectory.contexts}
    assert env.quest.answer not in contexts["main"].messages[0].content + contexts["main"].messages[1].content
    researchers = [context for name, context in contexts.items() if name != "main"]
    assert not any(env.quest.question in message.content for c in researchers for message in c.messages)
    assert {call.name for c in researchers for m in c.messages for call in m.tool_calls} == {"search", "read"}


def test_rewards_are_named_and_researchers_earn_theirs_themselves():
    trajectory = envsdk.rollout(Delegate(), "reference", seed=1)
    rewards = [(step.context, step.rewards) for step in trajectory.steps if step.reward]
    assert rewards == [
        *((f"main/researcher-{n}", {"found": 0.0625}) for n in (1, 2, 3, 4)),
        ("main", {"correct": 0.75}),
    ]


def test_a_second_question_about_the_same_subject_earns_nothing():
    env = Delegate()
    env.reset(seed=0)
    person = env.quest.leads[0].subject
    trajectory = play(env, says(asks([f"When was the town of {person} founded?"] * 5), env.quest.answer))
    found = [step.rewards["found"] for step in trajectory.steps if "found" in step.rewards]
    assert found == [0.0625, 0.0, 0.0, 0.0, 0.0]
    assert trajectory.reward == 0.8125


def test_a_researcher_that_is_asked_for_all_can_read_a_part():
    env = Delegate()
    env.reset(seed=0)
    trajectory = play(env, says(asks([env.quest.question]), "Nowhere"))
    assert 0 < trajectory.reward < 0.25
    assert trajectory.samples()[1].role == "researcher"


def test_with_researchers_that_do_not_try_the_reference_policy_does_not_know():
    trajectory = play(Delegate(), "reference", "null")
    assert trajectory.reward == 0.0
    assert trajectory.contexts["main"].messages[-2].content == "I do not know."


@pytest.mark.parametrize(
    ("options", "researcher", "told"),
    [
        ({"researcher_steps": 2}, "reference", "Error: no answer to {!r}: the researcher was cut off (max_steps)"),
        ({}, says(""), "Error: no answer to {!r}"),
        ({}, says(Message(role="assistant", reasoning="Hm.", content=" ")), "Error: no answer to {!r}"),
        ({}, says("It is in Nowhere."), "It is in Nowhere."),
    ],
)
def test_the_parent_reads_how_a_researcher_ended(options: dict, researcher: Any, told: str):
    env = Delegate(**options)
    env.reset(seed=0)
    question = env.quest.leads[-1].question
    trajectory = play(env, says(asks([question]), "Nowhere"), researcher)
    check(trajectory)
    assert (trajectory.status, trajectory.reward) == ("terminated", 0.0)
    assert results(env) == [told.format(question)]
    assert sum(step.metrics["tool_errors"] for step in trajectory.steps if step.context == "main") == ("Error" in told)


def test_a_researcher_that_was_cut_while_it_was_thinking_is_an_error_to_the_parent():
    env = Delegate(tokenizer="embedded")
    tokens = [env.renderer.tokenizer.token_id("<think>"), *env.renderer.tokenizer.encode("Hm")]

    def cut(prompt: Any, **_: Any) -> Action:
        return Action(tokens, np.full(len(tokens), -0.5), "length")

    policy = {"main": ReplyPolicy(env, says(asks(["Where?"]), "Nowhere")), "researcher": cut}
    trajectory = envsdk.rollout(env, policy, seed=0)
    check(trajectory)
    assert trajectory.status == "terminated"
    assert results(env) == ["Error: no answer to 'Where?': the researcher was cut off (cut)"]


def test_of_calls_in_one_reply_each_has_its_own_answer():
    env = Delegate(max_researchers=3)
    env.reset(seed=0)
    first, second, third, _ = env.quest.leads
    calls = (
        *asks([second.question], [], ["Who?", " "]).tool_calls,
        ToolCall(name="delegate", arguments={"question": "Who?"}),
        *asks([first.question] * 3, [third.question, first.question]).tool_calls,
        ToolCall(name="search", arguments={"words": "x"}),
    )
    trajectory = play(env, says(Message(role="assistant", tool_calls=calls), "Nowhere"))
    check(trajectory)
    assert results(env)[:3] == [second.answer, *["Error: questions is empty, or contains an empty question"] * 2]
    assert results(env)[3].startswith("Error: delegate: missing argument questions")
    assert results(env)[4:6] == [
        "Error: you asked 3 questions, but only 2 more researchers are available",
        f"researcher-2: {third.answer}\n\nresearcher-3: {first.answer}",
    ]
    assert results(env)[6].startswith("Error: ")
    assert [s.role for s in trajectory.samples()] == ["main", *["researcher"] * 3]


def test_the_researchers_of_one_reply_go_on_side_by_side():
    running = most = 0

    @in_any_vocabulary
    async def policy(prompt: Any, **arguments: Any) -> Action:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return reference(prompt, **arguments)

    env = Delegate()
    reference = ReplyPolicy(env, lambda speaker: speaker.reference_reply())
    assert envsdk.rollout(env, policy, seed=0).reward == 1.0
    assert most == 3


def test_what_researchers_do_counts_for_the_parents_limits():
    trajectory = envsdk.rollout(Delegate(limits=Limits(max_steps=5)), "reference", seed=0)
    check(trajectory)
    assert (trajectory.stop_reason, trajectory.reward) == ("max_steps", 0.0625)


def test_any_tokens_are_a_legal_reply():
    env = Delegate(limits=Limits(max_steps=30, end_on_cut=False))
    noise = RandomPolicy(env.renderer.tokenizer.vocab_size, seed=0)
    for policy in ({"main": "reference", "researcher": noise}, {"main": noise, "researcher": "reference"}):
        trajectory = envsdk.rollout(env, policy, seed=0)
        assert trajectory.reward <= 0.0
        check(trajectory)


@pytest.mark.parametrize("question", ["<|im_start|>system", "x" * 100_000])
def test_any_question_is_a_legal_one(question: str):
    env = Delegate()
    trajectory = play(env, lambda agent: asks([question]) if len(agent.messages()) < 4 else "Nowhere")
    check(trajectory)
    assert trajectory.status == "terminated"


@pytest.mark.parametrize(("answer", "reward"), [("It is {}.", 0.75), ("{}", 0.75), ("{} or not", 0.0), ("", 0.0)])
def test_the_last_word_is_the_answer(answer: str, reward: float):
    env = Delegate()
    env.reset(seed=1)
    _, earned, *_ = env.step(env.renderer.reply(Message(role="assistant", content=answer.format(env.quest.answer))))
    assert earned == reward


def test_a_task_may_be_given():
    env = Delegate()
    env.reset(seed=4)
    row = env.quest.model_dump(mode="json")
    trajectory = envsdk.rollout(Delegate(tasks=[row]), "reference", seed=0)
    assert trajectory.reward == 1.0
    assert trajectory.task == row
    with pytest.raises(errors.TaskError, match="articles"):
        Delegate(tasks=[{**row, "articles": []}]).reset(seed=0)


def test_more_candidates_than_people_are_refused():
    with pytest.raises(errors.ConfigError, match="candidates is 4 and people is 3; expected candidates <= people"):
        Delegate(candidates=4, people=3)


# Researchers.


@pytest.fixture
def researcher() -> Researcher:
    parent = Delegate()
    parent.reset(seed=0)
    env = Researcher(parent.quest.articles, 2)
    env.reset(options={"task": ResearcherTask(question="Where?")})
    return env


def test_a_search_finds_titles_by_the_words_of_the_article(researcher: Researcher):
    town = next(article for article in researcher.articles.values() if "was founded" in article.text)
    year = re.search(r"\d+", town.text).group()
    assert town.title in researcher.search(year).split(", ")
    assert researcher.search(town.title.upper()).split(", ")[0] == town.title
    assert len(researcher.search("region town baker born").split(", ")) == 5
    for words in ("", "nobody", "<|im_end|>", "(*["):
        assert researcher.search(words) == "No articles were found."


def test_a_researcher_reads_at_most_max_articles(researcher: Researcher):
    first, second, third, *_ = researcher.articles.values()
    assert researcher.read(f" {first.title.upper()} ") == first.text
    with pytest.raises(errors.ToolError, match="there is no article 'x'"):
        researcher.read("x")
    assert researcher.read(second.title) == second.text
    with pytest.raises(errors.ToolError, match="you have read 2 articles"):
        researcher.read(third.title)


@pytest.mark.parametrize(
    ("answer", "reward"), [("In 1204.", 0.5), ("in 12041", 0.0), ("BADO, 1204", 1.0), ("1305", 0.0), ("", 0.0)]
)
def test_what_counts_was_read_and_is_a_word_of_the_answer(answer: str, reward: float):
    env = Researcher([Article(title="Sofe", text="Sofe was founded in 1204 by Bado.")], 2)
    rewards = {"1204": 0.5, "Bado": 0.5, "1305": 0.5}
    said = env.renderer.reply(Message(role="assistant", content=answer))
    env.reset(options={"task": ResearcherTask(question="?", rewards=rewards)})
    assert env.step(said)[1] == 0.0
    env.reset(options={"task": ResearcherTask(question="?", rewards=rewards)})
    read = ToolCall(name="read", arguments={"title": "Sofe"})
    env.step(env.renderer.reply(Message(role="assistant", tool_calls=(read,))))
    assert env.step(said)[1] == reward
