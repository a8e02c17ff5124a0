"""What was said in an episode, where two episodes differ, and what an exception says: for a reader."""

import json
import re
import traceback
from pathlib import Path

from ..messages import Message
from ..trajectories.trajectory import Trajectory


def transcript(trajectory: Trajectory) -> list[str]:
    """All that was said, a text for each message."""
    return [f"{name}, {written(message)}" for name, log in trajectory.contexts.items() for message in log.messages]


def written(message: Message) -> str:
    """A message on one line."""
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    parts = [message.content, *([message.reasoning] if message.reasoning else []), *([calls] if calls else [])]
    return f"{message.role}: {json.dumps(parts[0] if len(parts) == 1 else parts, ensure_ascii=False)}"


def difference(first: Trajectory, second: Trajectory) -> str:
    """Where two trajectories differ, for a reader."""
    texts = transcript(first), transcript(second)
    for one, other in zip(*texts, strict=False):
        if one != other:
            return f"{_around(one, other)!r}, and {_around(other, one)!r}"
    if len(texts[0]) != len(texts[1]):
        more = max(texts, key=len)[min(map(len, texts))]
        return f"{len(texts[0])} messages, and {len(texts[1])}; behind the same ones comes {more!r:.120}"
    rewards = first.reward, second.reward
    if rewards[0] != rewards[1]:
        return f"the same was said, for the rewards {rewards[0]:g} and {rewards[1]:g}"
    records = first.to_json().decode(), second.to_json().decode()
    return f"the same was said; of the records {_around(*records)!r}, and {_around(*records[::-1])!r}"


def _around(text: str, other: str) -> str:
    """What of a text stands where another begins to differ."""
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, same - 30)
    return f"{'...' if start else ''}{text[start : same + 50]}"


def cause_of(error: BaseException) -> str:
    """What tells the cause of a failure from others: an exception's type, place, and text without values."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "", str(error))
    return f"{type(error).__name__} {where} {text}"


def told(error: BaseException) -> str:
    """An exception on one line: what it says, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"] if frames else []
    notes = [str(note).removesuffix(".") for note in getattr(error, "__notes__", ())]
    told_of = "; ".join([*where, *notes])
    return f"{type(error).__name__}: {str(error) or 'without a message':.300}" + (f" ({told_of})" if told_of else "")
