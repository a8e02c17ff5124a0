"""The site of `make docs` in a browser: accessible, readable on a telephone, and found by its search."""

import functools
import http.server
import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

CHECKOUT = Path(__file__).parents[3]
SITE = CHECKOUT / ".cache" / "docs" / "site"
IMPORTANT = (
    *("", "start/", "tutorials/first-environment/", "environments/", "history/", "rollouts/", "samples/"),
    *("trainers/", "comparison/", "reference/envsdk/"),
)
"""The ten pages that axe examines."""
FIRST = {
    "train test split": "how-to/data-and-judges/",
    "judge": "how-to/data-and-judges/",
    "OOM": "training/",
    "out of memory": "training/",
    "wandb": "how-to/scale/",
    "resume": "how-to/scale/",
}
"""What a reader types, and the page that has to come first."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    subprocess.run(["make", "docs"], cwd=CHECKOUT, check=True, capture_output=True)
    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def pages() -> list[str]:
    return sorted(page.parent.relative_to(SITE).as_posix().removeprefix(".") for page in SITE.rglob("index.html"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing_on_the_ten_most_important_pages(browser, url, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    for name in IMPORTANT:
        page.goto(url + name)
        found = Axe().run(page)
        assert found.violations_count == 0, (name, found.generate_report())
    page.close()


def test_no_page_scrolls_sideways_on_a_telephone(browser, url):
    page = browser.new_page(viewport={"width": 400, "height": 800})
    widths = {}
    for name in pages():
        page.goto(f"{url}{name}/")
        widths[name] = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert len(widths) > 100 and {name: width for name, width in widths.items() if width > 400} == {}


def test_the_search_leads_to_the_right_page_first(browser, url):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    first = {}
    for words in FIRST:
        page.goto(url)
        box = page.locator("dialog[aria-label=Search][aria-hidden=false] input").first
        while not box.is_visible():  # the page listens to its key a moment after it was loaded
            page.keyboard.press("/")
            page.wait_for_timeout(200)
        box.fill(words)
        found = page.locator(f'[role=option][href*="?h={quote_plus(words)}"]').first
        first[words] = found.get_attribute("href").removeprefix(url).partition("?")[0]
    page.close()
    assert first == FIRST


def test_no_two_pages_have_one_title(url):
    items = json.loads((SITE / "search.json").read_text(encoding="utf-8"))["items"]
    titles = Counter(item["title"] for item in items if "#" not in item["location"])
    assert [title for title, count in titles.items() if count > 1] == []
