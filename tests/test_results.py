"""The page of results is written from the stored logs of its runs."""

from results.page import PAGE, page


def test_the_page_is_what_the_logs_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make results`"
