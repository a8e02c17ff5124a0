"""Text that is safe to print: what a terminal would obey, or not show, is written out.

A record holds whatever a model sampled. Printed as it is, it could clear the screen, set the window's title, write to
the clipboard, or reorder what stands around it.
"""

import re

# Control characters but tab and newline (C0, DEL, C1); characters that are not seen, order others, or end lines in
# some programs; tags, which are not seen either; and halves of surrogate pairs, which cannot be written at all. Joiners
# stay: scripts and emoji need them.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return a text in which such characters are written as Python escapes them, such as `\x1b`."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """Return the same for a text that belongs on one line: newlines and tabs are written as escapes, too."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")
