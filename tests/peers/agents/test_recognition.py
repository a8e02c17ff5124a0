"""Where the requests of all agents are placed, one agent after the other and all at once in one session."""

from collections import Counter

from agent_programs.all_cases import RUNNABLE
from agent_programs.cases import played
from agent_programs.recognition import recognized


def test_each_agent_alone_is_recognized(compared: Counter[str]) -> None:
    for case in RUNNABLE:
        found = recognized([played(case)], None)
        assert (found.missed, found.merged, found.twins) == ([], [], 0), case.name
        assert found.found == found.continuations
        compared["continuations"] += found.continuations


def test_the_requests_of_all_agents_at_once_are_recognized(compared: Counter[str]) -> None:
    runs = [played(case) for case in RUNNABLE]
    for seed in range(20):
        found = recognized(runs, seed)
        assert found.merged == [], seed
        assert found.found + found.twins >= 0.99 * found.continuations, found.missed
        compared["continuations"] += found.continuations
        compared["recognized"] += found.found
        compared["of a twin"] += found.twins
