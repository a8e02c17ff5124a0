"""The runs of a tree and its paths show each token what it sees."""

from math import log2
from typing import Any

import numpy as np
from hypothesis import given
from random_trees import branch, trees

from envsdk.tree._paths import paths_of
from envsdk.tree._runs import Runs


@given(tree=trees())
def test_each_token_sees_the_prefixes_of_its_path_and_its_path_up_to_itself(tree: Any):
    index = np.arange(len(tree.parent))
    paths = paths_of(Runs.of(tree))
    members = [index[path.tokens] for path in paths]
    for number, (path, its) in enumerate(zip(paths, members, strict=True)):
        assert all(prefix.path < number for prefix in path.prefixes)
        seen = [token for other, length in path.prefixes for token in members[other][:length].tolist()]
        for place, token in enumerate(its.tolist()):
            assert [*seen, *its[: place + 1].tolist()] == branch(tree, token)


@given(tree=trees())
def test_each_token_is_in_one_path_which_sees_few_others(tree: Any):
    index, runs = np.arange(len(tree.parent)), Runs.of(tree)
    paths = paths_of(runs)
    assert sorted(token for path in paths for token in index[path.tokens].tolist()) == index.tolist()
    assert max(len(path.prefixes) for path in paths) <= log2(len(index))
    assert runs.longest == max(len(branch(tree, token)) for token in index.tolist())


def test_under_strip_a_conversation_is_one_path_and_each_reply_sees_its_beginning():
    turn, reply, turns = 5, 9, 6
    parent: list[int] = []
    last = -1
    for _ in range(turns):
        for length in (turn, reply):
            follows = last
            for _ in range(length):
                parent.append(follows)
                follows = len(parent) - 1
            last = follows if length == turn else last
    tree: Any = type("Tree", (), {"parent": np.array(parent, dtype=np.int32)})
    trunk, *replies = paths_of(Runs.of(tree))
    assert not trunk.prefixes
    # the last reply goes on with the conversation
    assert [path.prefixes for path in replies] == [[(0, turn * (number + 1))] for number in range(turns - 1)]
    assert all(isinstance(path.tokens, slice) for path in replies)
