"""How exceptions, and what was given, are described in messages."""

import reprlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

RENAMED = {
    "compare": "against",
    "concurrency": "max_concurrency",
    "env": "ENV",
    "episodes": "seeds",
    "first_seed": "seeds",
    "idle_timeout": "idle_timeout_s",
    "limit": "max_context_tokens",
    "make_env": "env",
    "max_body": "max_body_mib",
    "max_message": "max_message_mib",
    "method_timeout": "method_timeout_s",
    "num_generations": "group_size",
    "retries": "max_retries",
    "samples": "group_size",
    "seed": "seeds",
    "size": "group_size",
    "timeout": "policy_timeout_s",
    "workers": "n_workers",
}
"""Earlier names of arguments and options, and other libraries' names for them."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def what_is_invalid(error: "ValidationError") -> str:
    """Return the first ten problems of a validation error on one line: field, reason, and what was given."""
    found = error.errors(include_url=False)
    listed = [
        f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']} (got {_REPR.repr(item['input'])[:80]})"
        for item in found[:10]
    ]
    return "; ".join([*listed, f"and {len(found) - 10} more"] if len(found) > 10 else listed)


def message_of(error: BaseException) -> str:
    """Return the message of an exception as `encodable` text, even if its `__str__` fails."""
    try:
        return encodable(str(error))
    except Exception:
        return "it cannot say what is wrong"  # the model may see it, so changing it changes prompts


def encodable(text: str) -> str:
    """Return a string that UTF-8 can encode: each unpaired surrogate becomes a Python escape."""
    return text.encode(errors="backslashreplace").decode()


def around_difference(one: str, other: str, width: int) -> tuple[str, str]:
    """Return two strings, cut around their first difference if one is longer than `width`."""
    if max(len(one), len(other)) <= width:
        return one, other
    same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    start = max((min(len(one), len(other)) if same is None else same) - width // 4, 0)
    first, second = (f"{'...' if start else ''}{text[start : start + width]}" for text in (one, other))
    return first, second


def describe_error(error: BaseException, *, with_notes: bool = True) -> str:
    """Return an exception in the form in which records store it: its type, its message, and its notes."""
    notes: list[str] = getattr(error, "__notes__", []) if with_notes else []
    return " ".join([f"{type(error).__name__}: {message_of(error)}", *(encodable(str(note)) for note in notes)])
