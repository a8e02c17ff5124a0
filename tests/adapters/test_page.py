"""The page about adapters: the code that needs no other package runs; the rest is run in tests/peers/adapters."""

from adapters import page


def test_the_code_of_its_page_runs():
    page.run(sections=2)
