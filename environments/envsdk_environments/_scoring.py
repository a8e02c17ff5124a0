"""The parts that environments share: data of tasks, the last word of a reply, and the verdict."""

from pydantic import BaseModel, ConfigDict

from envsdk import Turn


class TaskData(BaseModel):
    """A part of a task, which never changes."""

    model_config = ConfigDict(frozen=True)


def last_word(text: str) -> str:
    """Return the last word of a reply, or an empty string."""
    return text.rsplit(None, 1)[-1] if text.strip() else ""


def end_with_verdict(is_right: bool, answer: object, reward: float = 1.0, **metrics: float) -> Turn:
    """Return the last turn of an episode, which scores the answer and names the right one."""
    text = "Right." if is_right else f"No, it is {answer}."
    return Turn(text, reward={"correct": reward * is_right}, metrics=metrics, terminated=True)


def decline(self: object) -> str:
    """Decline."""
    return "I do not know."
