"""Descriptions for a reader: of an episode, of the difference between two episodes, and of an exception."""

import json
import re
import traceback
from pathlib import Path

from ..messages import Message
from ..trajectories._trajectory import Trajectory


def transcript(trajectory: Trajectory) -> list[str]:
    """Return all messages of an episode, one string each."""
    return [f"{name}, {written(message)}" for name, log in trajectory.contexts.items() for message in log.messages]


def written(message: Message) -> str:
    """Return a message as one line, with its images by their hashes."""
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    parts = [message.content, *([message.reasoning] if message.reasoning else []), *([calls] if calls else [])]
    parts += [f"<image {image.sha256[:12]}>" for image in message.images]
    return f"{message.role}: {json.dumps(parts[0] if len(parts) == 1 else parts, ensure_ascii=False)}"


def difference(first: Trajectory, second: Trajectory) -> str:
    """Describe the first difference between two trajectories."""
    texts = transcript(first), transcript(second)
    for one, other in zip(*texts, strict=False):
        if one != other:
            return f"{_around(one, other)!r} and {_around(other, one)!r}"
    if len(texts[0]) != len(texts[1]):
        more = max(texts, key=len)[min(map(len, texts))]
        return f"{len(texts[0])} messages and {len(texts[1])}; the first additional one is {more!r:.120}"
    rewards = first.reward, second.reward
    if rewards[0] != rewards[1]:
        return f"the messages are the same, but the rewards are {rewards[0]:g} and {rewards[1]:g}"
    records = first.to_json().decode(), second.to_json().decode()
    return f"the messages are the same, but the records have {_around(*records)!r} and {_around(*records[::-1])!r}"


def _around(text: str, other: str) -> str:
    """Return the part of a text around the first character that differs from another text."""
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, same - 30)
    return f"{'...' if start else ''}{text[start : same + 50]}"


def cause_of(error: BaseException) -> str:
    """Return an identifier of a failure's cause: the exception's type, place, and text without values."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "", str(error))
    return f"{type(error).__name__} {where} {text}"


def described(error: BaseException) -> str:
    """Describe an exception on one line: its type, its text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"] if frames else []
    notes = [str(note).removesuffix(".") for note in getattr(error, "__notes__", ())]
    details = "; ".join([*where, *notes])
    return f"{type(error).__name__}: {str(error) or 'without a message':.300}" + (f" ({details})" if details else "")
