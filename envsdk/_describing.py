"""How exceptions, and what was given, are described in messages."""

import difflib
import re
import reprlib
from collections.abc import Collection
from typing import TYPE_CHECKING

from ._visible import shorten

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
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200
_MEANT = {
    "absolute": "atol tolerance",
    "arguments": "args input parameters",
    "content": "text",
    "data": "image path url",
    "every": "n steps",
    "generation_prompt": "add_generation_prompt",
    "group_size": "n num_samples",
    "max_concurrency": "batch_size",
    "max_in_flight": "concurrency max_concurrency",
    "max_steps": "max_episode_steps max_rounds max_turns steps",
    "messages": "content image message obs observation prompt text",
    "n_workers": "max_workers num_workers workers",
    "out": "folder output_dir path run_folder",
    "reasoning": "reasoning_content thinking thought",
    "reward": "rewards score",
    "seeds": "n_episodes num_episodes",
    "task": "goal",
    "terminated": "done end finished is_done",
    "tokenizer": "model model_name",
    "url": "base_url endpoint",
}
"""The names that other libraries have for arguments of ours."""


def likely(name: object, known: Collection[str]) -> list[str]:
    """Return at most three of the known names that are likely meant by a name, the most similar first.

    Namespaces and versions of ids do not count, because unrelated ids have the same.
    """
    names = {_without_version(one): one for one in sorted(known, reverse=True)}
    given = _without_version(str(name))
    near = [one for one in names if one == RENAMED.get(given) or given in _MEANT.get(one, "").split()]
    if not near:
        written = {**{old: new for old, new in RENAMED.items() if new in names}, **{one: one for one in names}}
        near = [written[one] for one in difflib.get_close_matches(given, written, n=3, cutoff=0.65)]
        near += [one for one in names if set(given.split("_")) < set(one.split("_"))]
    return [names[one] for one in dict.fromkeys(near)][:3]


def _without_version(name: str) -> str:
    return re.sub(r"^.*/|-v\d+$", "", name.lower()).strip("-").replace("-", "_")


def what_is_invalid(error: "ValidationError", known: Collection[str] = ()) -> str:
    """Return the first ten problems of a validation error on one line: field, reason, and what was given.

    Args:
        error: The error.
        known: The names of the fields, to suggest similar ones for an unknown name. The error then is for people;
            without them, it may be for the model, so changing it changes prompts.
    """
    found = error.errors(include_url=False)
    listed: list[str] = []
    for item in found[:10]:
        reason, place = item["msg"], [str(part) for part in item["loc"]]
        if known:
            place = [part for part in place if part.isidentifier() or part.isdigit()]  # without the kinds of a union
            reason = reason.removeprefix("Value error, ")
            if item["type"] == "missing":
                listed.append(f"{'.'.join(place)} is missing")
                continue
            if item["type"] == "extra_forbidden":
                near = likely(item["loc"][-1], known) if len(item["loc"]) == 1 else []
                reason = f"it does not exist; did you mean {' or '.join(near)}?" if near else "it does not exist"
        given = f" (got {shorten(_REPR.repr(item['input']), 80)})"
        listed.append(reason if known and not place else f"{'.'.join(place) or 'it'}: {reason}{given}")
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
