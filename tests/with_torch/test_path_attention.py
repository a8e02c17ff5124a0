"""Attention path by path gives what attention run by run gives, and so do its gradients."""

from typing import Any

import pytest

pytest.importorskip("torch.nn")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trees import trees

from envsdk.tree import _path_attention as path_attention
from envsdk.tree._path_attention import attend_by_paths
from envsdk.tree._run_attention import TreeRuns, attend, attend_by_runs
from envsdk.tree._runs import Runs

if not path_attention._GROUPED:
    pytest.skip("a key head serves several heads: torch 2.9 or newer", allow_module_level=True)


def tensors(count: int, heads: int, key_heads: int, dtype: Any = torch.float64) -> list[Any]:
    """Queries, keys, values and sinks."""
    torch.manual_seed(count)
    shapes = [(1, heads, count, 8), (1, key_heads, count, 8), (1, key_heads, count, 8), (heads,)]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def results(attention: Any, given_tensors: list[Any], has_sinks: bool) -> list[Any]:
    output = attention(*given_tensors)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    needed = given_tensors if has_sinks else given_tensors[:3]
    return [output, *torch.autograd.grad((output * weights).sum(), needed)]


@settings(deadline=None, max_examples=25)
@given(tree=trees(), has_sinks=st.booleans(), heads=st.sampled_from([(2, 2), (4, 2), (4, 1)]))
def test_path_by_path_gives_what_run_by_run_gives(tree: Any, has_sinks: bool, heads: tuple[int, int]) -> None:
    tree_runs, given_tensors = TreeRuns(Runs.of(tree)), tensors(len(tree.parent), *heads)

    def by_paths(query: Any, key: Any, value: Any, sinks: Any) -> Any:
        return attend_by_paths(query, key, value, sinks if has_sinks else None, tree_runs.paths("cpu"), 0.4)

    def by_runs(query: Any, key: Any, value: Any, sinks: Any) -> Any:
        chosen = sinks if has_sinks else None
        return attend_by_runs(query, key, value, tree_runs, 0.4, window=None, softcap=None, sinks=chosen)

    found, expected = (results(attention, given_tensors, has_sinks) for attention in (by_paths, by_runs))
    for first, second in zip(found, expected, strict=True):
        # run by run, a softmax with sinks is computed in float32
        torch.testing.assert_close(first, second, atol=1e-5 if has_sinks else 1e-12, rtol=1e-4 if has_sinks else 1e-9)


@settings(deadline=None, max_examples=4)
@given(tree=trees(max_tokens=8), has_sinks=st.booleans())
def test_its_gradients_are_those_of_small_differences(tree: Any, has_sinks: bool) -> None:
    query, key, value, sinks = tensors(len(tree.parent), 4, 2)
    paths = TreeRuns(Runs.of(tree)).paths("cpu")
    chosen = (query, key, value, sinks if has_sinks else None)
    assert torch.autograd.gradcheck(lambda *each: attend_by_paths(*each, paths, 0.4), chosen)


@pytest.mark.parametrize("threads", [1, 4])
def test_the_number_of_threads_changes_how_queries_are_grouped_and_not_what_comes_out(threads: int) -> None:
    tree_runs = TreeRuns(Runs([6, 5, 5, 5], [-1, 0, 0, 2]))
    given_tensors, before = tensors(21, 4, 2), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = attend(*given_tensors[:3], tree_runs)
    finally:
        torch.set_num_threads(before)
    expected = attend_by_runs(*given_tensors[:3], tree_runs, 8**-0.5, window=None, softcap=None, sinks=None)
    torch.testing.assert_close(found, expected)


def test_a_window_that_no_branch_exceeds_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    plain = path_attention.attend_by_paths
    monkeypatch.setattr(path_attention, "attend_by_paths", lambda *each: called.append(1) or plain(*each))
    tree_runs, given_tensors = TreeRuns(Runs([4, 3, 3], [-1, 0, 0])), tensors(10, 2, 2)[:3]
    wide, all_of_it, narrow = (attend(*given_tensors, tree_runs, sliding_window=size) for size in (7, None, 6))
    assert len(called) == 2
    assert torch.equal(wide, all_of_it) and not torch.allclose(wide, narrow)


def test_in_half_precision_it_is_as_near_as_run_by_run() -> None:
    tree_runs, given_tensors = TreeRuns(Runs([40, 30, 30, 20], [-1, 0, 0, 2])), tensors(120, 4, 2)
    halves = [each.detach().to(torch.bfloat16).requires_grad_() for each in given_tensors]

    def by_paths(*each: Any) -> Any:
        return attend(*each[:3], tree_runs)

    def by_runs(*each: Any) -> Any:
        return attend_by_runs(*each[:3], tree_runs, 8**-0.5, window=None, softcap=None, sinks=None)

    exact = results(by_paths, given_tensors, False)
    for what, first, second in zip(
        exact, results(by_paths, halves, False), results(by_runs, halves, False), strict=True
    ):
        assert first.dtype == torch.bfloat16
        assert (first - what).norm() < 1.5 * (second - what).norm()


def test_under_autocast_all_tensors_have_its_type_as_for_torchs_own_attention() -> None:
    query, key, value = tensors(120, 4, 2, torch.float32)[:3]
    tree_runs = TreeRuns(Runs([40, 30, 30, 20], [-1, 0, 0, 2]))
    halves = [each.detach().bfloat16() for each in (query, key, value)]
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(query, key, value.bfloat16(), tree_runs)
    assert torch.equal(found, attend_by_paths(*halves, None, tree_runs.paths(query.device), 8**-0.5))


def test_tensors_of_several_types_or_head_sizes_go_run_by_run() -> None:
    query, key, value, _ = tensors(10, 2, 2, torch.float32)
    assert path_attention.supports(query, key, value)
    assert not path_attention.supports(query, key, value.bfloat16())
    assert not path_attention.supports(query, key, value[..., :4])
