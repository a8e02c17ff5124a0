"""Hides what is spelled as text, so that the tags that are left in a text were control tokens.

For readers of text between tags, in families whose tags inside a call are control tokens.
"""

import re

_ESCAPE = "\0"
_HIDDEN = {_ESCAPE: _ESCAPE + "0", "<": _ESCAPE + "1"}
_SHOWN = {hidden: shown for shown, hidden in _HIDDEN.items()}
_ANY_HIDDEN = re.compile("|".join(map(re.escape, _SHOWN)))


def hide(text: str) -> str:
    """Return the text without any `<`, so that it spells no tag."""
    return text.replace(_ESCAPE, _HIDDEN[_ESCAPE]).replace("<", _HIDDEN["<"])


def restore(text: str) -> str:
    """Return the text that was hidden; the tags around it stay as they are."""
    return _ANY_HIDDEN.sub(lambda match: _SHOWN[match[0]], text)
