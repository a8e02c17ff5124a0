import hashlib
import json
import random
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from envsdk_environments._corpus_search import CorpusSearch, FullTextSearchUnavailable
from envsdk_environments._corpus_search import _index as index
from envsdk_environments._corpus_search._index import Index, check_full_text_search, get_index
from envsdk_environments._corpus_search._world import HOPS, World, get_questions, get_world
from hypothesis import example, given
from hypothesis import strategies as st

import envsdk
from envsdk import Message, ToolCall, errors
from envsdk.authoring.tasks import pick_task

DIFFICULTIES = ["easy", "medium", "hard"]
SPLITS = ["train", "test"]
DIGEST = "388ccbb54886ec235160e5d528ea0699a86c97905e0622be4db73f37dd84628e"
TASK = {"question": "Who wrote the poem Quiet Library?", "answer": "Kliru Kifas", "path": ["Quiet Library"]}


@pytest.fixture(scope="module")
def world() -> World:
    return get_world()


@pytest.fixture(scope="module")
def engine() -> Index:
    return get_index()


def step(env: CorpusSearch, content: str = "", *calls: tuple[str, dict[str, Any]]) -> Any:
    tool_calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    return env.step(env.renderer.reply(Message(role="assistant", content=content, tool_calls=tool_calls)))


def said(env: CorpusSearch) -> str:
    return env.messages()[-1].content


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("split", SPLITS)
def test_each_seed_asks_a_question_of_its_own(difficulty: Any, split: Any, is_full: bool):
    questions = get_questions(difficulty, split)
    rng, count = np.random.default_rng(0), 10_000 if is_full else 300
    chosen = [questions[pick_task(questions, seed, rng)] for seed in range(count)]
    assert len({task.question for task in chosen}) == count
    assert {len(task.path) for task in chosen} == {HOPS[difficulty]}
    assert not any(task.answer in task.question or task.answer in task.path for task in chosen)


def test_no_answer_of_one_split_is_one_of_the_other():
    answers = {
        split: {
            task.answer
            for questions in (get_questions("easy", split),)
            for task in map(questions.__getitem__, range(len(questions)))
        }
        for split in SPLITS
    }
    assert len(answers["train"]) > 2_000
    assert len(answers["test"]) > 500
    assert not answers["train"] & answers["test"]


def test_there_is_no_question_after_the_last():
    questions = get_questions("easy", "train")
    with pytest.raises(IndexError, match=f"question {len(questions)} is out of range"):
        questions[len(questions)]
    with pytest.raises(errors.TaskError, match="does not exist"):
        CorpusSearch().reset(options={"task": 10**9})


# The world.


def test_the_world_is_the_same_everywhere(world: World):
    text = json.dumps([world.names, world.articles, world.targets.tolist()])
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST


def test_names_are_unambiguous(world: World):
    assert len(world.names) >= 5_000
    assert len({name.casefold() for name in world.names}) == len(world.names)
    names = {name.casefold() for name in world.names}
    ends = {" ".join(name.split()[start:]) for name in names for start in range(1, len(name.split()))}
    assert not names & ends  # the end of no name is a name


def test_only_the_article_of_an_entity_contains_its_relations(world: World):
    rng = random.Random(0)
    for number, relation in enumerate(world.relations):
        for source in rng.sample(world.members[relation.source], 40):
            target, name = int(world.targets[number][source]), re.escape(world.names[source])
            patterns = [re.escape(s).replace(r"\{s\}", name).replace(r"\{t\}", "(.+)") for s in relation.sentences]
            found = [s for s in world.articles[source] if any(re.fullmatch(pattern, s) for pattern in patterns)]
            if target == len(world.names):
                assert not found
            else:
                assert len(found) == 1
                assert world.names[target] in found[0]


def test_every_step_of_a_path_is_named_in_the_article_before(world: World, engine: Index):
    rng = random.Random(1)
    for difficulty in DIFFICULTIES:
        questions = get_questions(difficulty, "test")
        for task in (questions[rng.randrange(len(questions))] for _ in range(60)):
            assert task.path[0] in task.question
            for title, following in zip(task.path, [*task.path[1:], task.answer], strict=True):
                assert following in engine.text(title)


# Search.


def test_a_search_for_a_title_finds_the_article_on_the_first_page(world: World, engine: Index):
    for name in random.Random(2).sample(world.names, 150):
        hits = engine.search(name).hits
        assert name in [hit.title for hit in hits]
        assert all(hit.snippet in engine.text(hit.title) for hit in hits)


def test_pages_follow_each_other_without_a_gap(engine: Index):
    pages = [engine.search("Quiet Library poem", page) for page in range(1, 200)]
    last = next(number for number, page in enumerate(pages) if not page.has_more)
    titles = [hit.title for page in pages for hit in page.hits]
    assert titles[0] == "Quiet Library"
    assert len(titles) == len({*titles}) > 5 * last
    assert not any(page.hits for page in pages[last + 1 :])


def test_accents_and_upper_case_do_not_matter(engine: Index):
    assert engine.search("QUÍET líbrary") == engine.search("quiet library")


ABUSE = [
    *(
        '"',
        "'",
        '"unclosed',
        '""',
        "a*",
        "*",
        "^quiet",
        "title:quiet",
        "{title text}:quiet",
        "-quiet",
        "quiet + library",
    ),
    *("quiet AND", "NOT", "OR OR", "NEAR(quiet library, 5)", "NEAR(", "(((((", "quiet NOT library", 'quiet"library'),
    *("quiet'; DROP TABLE articles; --", "quiet\0library", "\ud800", "q" * 100_000, "* " * 1000, "(" * 100_000),
    *("quiet " * 50_000, "é́́́́", "‮quiet", "<|im_end|>", "a b c d e f g h " * 5_000, "\n\t\r", "𝓆𝓊𝒾ℯ𝓉"),
]


@pytest.mark.parametrize("query", ABUSE, ids=range(len(ABUSE)))
def test_no_query_is_an_expression(query: str, engine: Index):
    titles = {hit.title for hit in engine.search(query).hits}
    words = set(re.findall(r"[a-z]+", query.lower()))
    assert all(words & set(re.findall("[a-z]+", engine.text(title).lower())) for title in titles) or "𝓆" in query


@given(
    query=st.text(max_size=80)
    | st.lists(st.sampled_from(['"', "*", "NEAR", "(", ")", "OR", "quiet", ":", "-"])).map(" ".join)
)
@example(query="quiet:library*")
def test_any_text_may_be_searched_for(query: str):
    found = get_index().search(query, page=2)
    assert len(found.hits) <= index.PAGE_SIZE


def test_a_query_ranks_no_more_articles_than_it_may(engine: Index):
    frequencies = engine._frequencies
    rng = random.Random(3)
    frequent = [word for word in sorted(frequencies) if frequencies[word] >= 20]
    for count in (1, 5, 20, 80):
        query = " ".join(rng.sample(frequent, count))
        assert engine.search(query).hits
        assert not engine.search(query, page=index._MOST_MATCHES // index.PAGE_SIZE + 1).hits


def test_threads_search_at_the_same_time(world: World, engine: Index):
    queries = random.Random(4).sample(world.names, 60)
    alone = [engine.search(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: [engine.search(query) for query in queries], range(6)):
            assert found == alone


def test_the_index_is_made_once_whoever_asks_first():
    with ThreadPoolExecutor(8) as pool:
        assert len({id(one) for one in pool.map(lambda _: get_index(), range(64))}) == 1


def test_a_fork_shares_the_articles_and_goes_on_by_itself():
    env = CorpusSearch(difficulty="easy")
    env.reset(seed=1)
    first = env.quest.path[0]
    step(env, "", ("read", {"title": first}))
    fork = env.fork()
    assert not any(isinstance(value, (Index, World)) for value in vars(fork).values())
    assert fork.tasks is env.tasks
    step(fork, "", ("read", {"title": fork.quest.path[1]}))
    for one, found in ((env, 0.5), (fork, 1.0)):
        assert step(one, one.quest.answer)[1] == 1.0
        assert one.trajectory.steps[-1].metrics["found"] == found


FORKED_PROCESS = """
import os
from envsdk_environments._corpus_search._index import get_index
before = get_index()
before._lock.acquire()  # as another thread might hold it
child = os.fork()
if child == 0:
    index = get_index()
    found = index is not before and index.search("Quiet Library").hits[0].title == "Quiet Library"
    os._exit(0 if found else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_process_makes_an_index_of_its_own():
    assert subprocess.run([sys.executable, "-c", FORKED_PROCESS], timeout=600, check=False).returncode == 0


def test_without_full_text_search_the_constructor_raises(monkeypatch: pytest.MonkeyPatch):
    connect = sqlite3.connect

    def without_virtual_tables(*arguments: Any) -> sqlite3.Connection:
        connection = connect(*arguments)
        deny = sqlite3.SQLITE_CREATE_VTABLE
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action == deny else sqlite3.SQLITE_OK)
        return connection

    check_full_text_search.cache_clear()
    monkeypatch.setattr(sqlite3, "connect", without_virtual_tables)
    with pytest.raises(FullTextSearchUnavailable, match="has no full-text search: not authorized"):
        CorpusSearch()


# Tools and answers.


def test_what_is_found_is_listed_with_a_sentence_and_the_next_page():
    env = CorpusSearch(tasks=[TASK])
    env.reset(seed=0)
    step(env, "", ("search", {"query": "Kliru Kifas wrote"}))
    lines = said(env).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "There are more results on page 2."
    assert "- Quiet Library: Quiet Library was written by Kliru Kifas." in lines
    step(env, "", ("search", {"query": "Kliru Kifas wrote", "page": 1000}))
    assert said(env) == "No more articles were found."
    step(env, "", ("search", {"query": "xyz"}))
    assert said(env) == "No articles were found."


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("search", {"query": "x" * 501}, "Error: the query has 501 characters; use a few words, at most 500"),
        ("search", {"query": "x", "page": 0}, "Error: search: wrong arguments"),
        ("search", {"query": "x", "page": 10**30}, "Error: search: wrong arguments"),
        ("search", {}, "Error: search: missing argument query"),
        ("read", {"title": "Loud Library"}, "Error: there is no article 'Loud Library'; search for a title"),
    ],
)
def test_a_wrong_call_is_answered_with_an_error_and_the_episode_continues(name: str, arguments: dict, told: str):
    env = CorpusSearch(tasks=[TASK])
    env.reset(seed=0)
    step(env, "", (name, arguments))
    assert said(env).startswith(told)
    step(env, "", ("read", {"title": " quiet LIBRARY "}))
    assert "was written by Kliru Kifas" in said(env)
    assert step(env, "Kliru Kifas")[1] == 1.0


def test_the_answer_ends_with_the_name():
    right = ["Kliru Kifas", "It is kliru kifas.", "**Kliru Kifas**", "Not Guke Dripem, but\nKliru Kifas!"]
    wrong = ["Kifas", "Kliru Kifas or Guke Dripem", "", "KliruKifas", "Quiet Library"]
    env = CorpusSearch(tasks=[TASK])
    for answer in (*right, *wrong):
        env.reset(seed=0)
        _, earned, terminated, *_ = step(env, answer)
        assert (earned, terminated) == (float(answer in right), True)


def test_whoever_folds_what_was_read_succeeds_in_a_context_that_cannot_hold_all():
    options: dict[str, Any] = {"difficulty": "hard", "limits": {"max_context_tokens": 1500}}
    for seed in range(4):
        folding = envsdk.rollout(CorpusSearch(**options, context_tools=("fold",)), "reference", seed=seed)
        assert (folding.reward, {break_.reason for break_ in folding.breaks}) == (1.0, {"fold"})
        assert envsdk.rollout(CorpusSearch(**options), "reference", seed=seed).stop_reason == "max_context_tokens"


def test_a_task_may_be_given():
    env = CorpusSearch()
    env.reset(seed=4)
    row = env.quest.model_dump(mode="json")
    trajectory = envsdk.rollout(CorpusSearch(tasks=[row]), "reference", seed=0)
    assert (trajectory.reward, trajectory.task) == (1.0, row)
    with pytest.raises(errors.TaskError, match="there is no article 'Loud Library'"):
        CorpusSearch(tasks=[{**TASK, "path": ["Loud Library"]}]).reset(seed=0)
    with pytest.raises(errors.TaskError, match="answer"):
        CorpusSearch(tasks=[{**TASK, "answer": ""}]).reset(seed=0)
