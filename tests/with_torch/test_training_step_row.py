"""All contenders of the row about a training step compute the same loss over one episode."""

import pytest
import torch

from benchmarks.contender import SetUp
from benchmarks.contenders.trl.training import Gradients, episode, in_rows, model, over_rows, over_tree, packed, runs
from envsdk.tree import tree_batch

STEPS = 4


def gradients_of(step: Gradients) -> tuple[float, list[torch.Tensor]]:
    """The loss of a step, and the gradients that it leaves."""
    model().zero_grad(set_to_none=True)
    loss = step()
    return loss, [parameter.grad.clone() for parameter in model().parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", ["runs", "dense", "packed"])
def test_every_contender_computes_the_loss_and_the_gradients_of_separate_samples(name: str):
    samples = episode(STEPS, "strip").samples()
    steps = {
        "runs": lambda: over_tree(STEPS, "runs"),
        "dense": lambda: over_tree(STEPS, "dense"),
        "packed": lambda: over_rows(list(packed(samples))),
    }
    loss, gradients = gradients_of(steps[name]())
    expected, expected_gradients = gradients_of(over_rows([[sample] for sample in samples]))
    assert loss == pytest.approx(expected, rel=1e-5)
    for found, own in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(found, own, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("set_up", [runs, in_rows])
def test_our_contenders_of_a_training_step_run(set_up: SetUp):
    threads = torch.get_num_threads()
    try:
        set_up(STEPS)()
    finally:
        torch.set_num_threads(threads)


def test_the_tree_has_fewer_tokens_than_the_samples():
    assert len(tree_batch(episode(STEPS, "strip"))) < sum(map(len, episode(STEPS, "strip").samples()))
