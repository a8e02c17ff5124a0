"""One regular expression of many names finds what trying them one after another finds."""

import re

from envsdk_renderers._templates._mask import STEM, TextMask, pattern_of_names, rests_by_first
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.lists(st.text("<|>.*", min_size=1, max_size=5), max_size=12)
TEXTS = st.text("<|>.*", max_size=40)


@given(NAMES, TEXTS)
def test_the_longest_of_several_names_is_found_as_by_trying_them(names, text):
    tried = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    assert re.findall(pattern_of_names(names), text) == re.findall(tried, text)


@given(NAMES, TEXTS)
def test_what_follows_each_first_character_completes_a_name(names, text):
    rests = rests_by_first(names)
    found = [i for i, first in enumerate(text) if first in rests and re.compile(rests[first]).match(text, i + 1)]
    assert found == [i for i in range(len(text)) if any(text.startswith(name, i) for name in names)]


@given(NAMES, TEXTS | st.lists(st.sampled_from([*"Qqzxj<|>", STEM, STEM.lower()])).map("".join))
def test_a_masked_text_has_no_name_and_is_restored(names, text):
    mask = TextMask(names)
    hidden = mask.hide(text)
    assert mask.restore(hidden) == text
    assert not [name for name in names if name in hidden]
