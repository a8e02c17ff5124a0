"""Counts what the tests against other projects compare, and says it at the end."""

from collections import Counter
from collections.abc import Callable

import pytest


@pytest.fixture
def compared(record_property: Callable[[str, object], None]) -> Counter[str]:
    """What a test compared, for the test to count in."""
    counter: Counter[str] = Counter()
    record_property("compared", counter)
    return counter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counters = {report.nodeid: dict(report.user_properties) for report in terminalreporter.getreports("passed")}
    terminalreporter.section("compared")
    for test, properties in counters.items():
        if numbers := properties.get("compared"):
            terminalreporter.write_line(f"{test.split('::')[-1]}: {', '.join(f'{k} {n}' for k, n in numbers.items())}")
