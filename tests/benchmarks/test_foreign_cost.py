"""What it costs to build a trajectory from the steps that another system logged, token for token of their prompts."""

from time import process_time

import pytest
from logged_steps import KINDS, made_log

from envsdk.trainers.foreign import from_steps


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_a_long_log_costs_no_more_than_one_of_a_short_log(benchmark, report, kind):
    def seconds_a_token(count: int) -> float:
        steps = made_log(kind, count)
        started = process_time()
        from_steps(steps)
        return (process_time() - started) / sum(len(step.prompt_tokens) for step in steps)

    def ratio() -> tuple[float, float]:
        few, many = (min(seconds_a_token(count) for _ in range(3)) for count in (250, 1500))
        return many / few, many

    if benchmark.enabled:
        growth, many = benchmark.pedantic(ratio)
        note = f"{1e9 * many:.0f} ns a token of 1,500 steps"
        report(f"from_steps() of 1,500 steps beside 250, {kind}", growth, "x a token", at_most=3, note=note)
    else:
        assert benchmark(from_steps, made_log(kind, 10)).contexts
