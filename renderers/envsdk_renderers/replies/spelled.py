"""Hides text that spells a tag, so that every tag that is left in a text was sampled as a control token."""

import re

_ESCAPE = "\0"
_ANY_TAG = "<"
_HIDDEN = re.compile(f"{_ESCAPE}[01]")


def hide(text: str, spelling: str = _ANY_TAG) -> str:
    """Return the text without any `spelling`; without `<`, it spells no tag at all."""
    return text.replace(_ESCAPE, _ESCAPE + "0").replace(spelling, _ESCAPE + "1")


def restore(text: str, spelling: str = _ANY_TAG) -> str:
    """Return a hidden text as it was; tags around it stay as they are."""
    return _HIDDEN.sub(lambda found: _ESCAPE if found[0].endswith("0") else spelling, text)
