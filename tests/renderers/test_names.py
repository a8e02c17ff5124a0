"""One regular expression of many names finds what trying them one after another finds."""

import re

from envsdk_renderers._templates._mask import STEM, TextMask, pattern_of_names
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.lists(st.text("<|>.*", min_size=1, max_size=5), max_size=12)
TEXTS = st.text("<|>.*", max_size=40)


@given(NAMES, TEXTS)
def test_the_longest_of_several_names_is_found_as_by_trying_them(names, text):
    tried = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    assert re.findall(pattern_of_names(names), text) == re.findall(tried, text)


@given(NAMES, TEXTS | st.lists(st.sampled_from([*"Qqzxj<|>", STEM, STEM.lower()])).map("".join))
def test_a_masked_text_has_no_name_and_is_restored(names, text):
    mask = TextMask(names)
    hidden = mask.hide(text)
    assert mask.restore(hidden) == text
    assert not [name for name in names if name in hidden]
