"""The drawings of the documentation are those that the programs draw now."""

import xml.etree.ElementTree
from collections.abc import Callable

import pytest
from documentation.drawings import DRAWINGS, FOLDER
from documents import PAGES, prose_of


@pytest.mark.parametrize(("name", "draw"), DRAWINGS.items(), ids=DRAWINGS)
def test_a_drawing_is_up_to_date(name: str, draw: Callable[[], str]):
    assert (FOLDER / name).read_text(encoding="utf-8") == draw(), "run `make drawings`"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_valid_has_a_title_and_needs_no_other_file(name: str):
    text = (FOLDER / name).read_text(encoding="utf-8")
    title = xml.etree.ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")


def test_every_drawing_is_shown_on_a_page():
    pages = "\n".join(map(prose_of, PAGES))
    assert {file.name for file in FOLDER.iterdir()} == set(DRAWINGS)
    assert [name for name in DRAWINGS if f"drawings/{name})" not in pages] == []


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_of_a_drawing_is_cut_at_the_right(name: str):
    drawing = xml.etree.ElementTree.fromstring((FOLDER / name).read_text(encoding="utf-8"))
    for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
        if text.get("text-anchor") == "start":
            width = 0.5 * float(text.get("font-size", 0)) * len(text.text or "")
            assert float(text.get("x", 0)) + width <= float(drawing.get("width", 0)), text.text
