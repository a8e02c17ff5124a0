"""One episode as entries to read from top to bottom: each message with its steps, calls, errors and breaks.

All strings of an entry are safe to print (see `visible`). Long ones can be folded.
"""

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from .._visible import on_one_line, visible
from ..trajectories._scoring import ending
from ..trajectories._trajectory import Trajectory
from ._contents import Hit
from ._episodes import episode, image_name
from ._json import BreakJSON, ContextJSON, EpisodeJSON, ImageFactsJSON, MessageJSON

Kind: TypeAlias = Literal["reasoning", "text", "reply", "result", "image", "call", "error", "note"]
"""The kind of a part. `reply` is text by the model; `text` is text by the environment that is not a tool's."""
_FOLDED: Mapping[Kind, tuple[int, int]] = {"reasoning": (3, 300), "result": (8, 800), "text": (20, 2000)}
"""The lines and characters of a part that are shown when it is folded. The other kinds are shown in full."""


class TranscriptPart(NamedTuple):
    """A part of the text of an entry. An image is shown by its name, and has its hash."""

    kind: Kind
    text: str
    sha256: str = ""

    def folded(self) -> tuple[str, str]:
        """Return the first lines, and how much is left out, such as `12 lines`; empty if nothing is."""
        most_lines, most_chars = _FOLDED.get(self.kind, (0, 0))
        lines = self.text.split("\n")
        if not most_lines or (len(lines) <= most_lines and len(self.text) <= most_chars):
            return self.text, ""
        shown = "\n".join(lines[:most_lines])
        if len(shown) > most_chars:
            return shown[:most_chars], f"{len(self.text) - most_chars:,} characters"
        return shown, f"{len(lines) - most_lines:,} lines"


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """A block of a transcript: the head of the episode or of a context, a message, or messages of another context.

    Attributes:
        kind: `episode`, `context`, `inherited`, `break`, or the role of a message.
        context: The context that it belongs to; empty for the episode.
        headings: One line for each step that wrote the message; else one line.
        breaks: The break before the message, with its reason and cost, for each of its steps that has one.
        parts: The text.
        steps: The indices of the steps that wrote the message.
        message: The index of the message in its context, or None.
        inherited: The entries that are left out here, since they are the same in the context that this one began from.
    """

    kind: str
    context: str
    headings: tuple[str, ...]
    breaks: tuple[str, ...] = ()
    parts: tuple[TranscriptPart, ...] = ()
    steps: tuple[int, ...] = ()
    message: int | None = None
    inherited: "tuple[TranscriptEntry, ...]" = ()


def transcript(trajectory: Trajectory, shown: EpisodeJSON | None = None) -> Iterator[TranscriptEntry]:
    """Yield the entries of an episode: its head, and for each context a head and its messages.

    Args:
        trajectory: The episode.
        shown: The result of `episode` for it, if the caller has it.

    Raises:
        InvalidRecord: If the steps do not fit the logs.
    """
    shown = episode(trajectory) if shown is None else shown
    end = ending(trajectory.status, trajectory.error or trajectory.stop_reason)
    heading = on_one_line(f"{trajectory.id}: {end}, {trajectory.reward_text}")
    renderer = _renderer_of(trajectory)
    yield TranscriptEntry("episode", "", (heading,), parts=(TranscriptPart("note", renderer),) if renderer else ())
    for context in shown["contexts"]:
        name = context["name"]
        if context["parent"] is not None or context["reward"] is not None:
            reward = None if context["reward"] is None else f"own reward {context['reward']:g}"
            facts = filter(None, [context["role"], context["stop_reason"], context["error"], reward])
            yield TranscriptEntry("context", name, (on_one_line(f"{name}: {', '.join(facts)}"),))
        entries = [_message(shown, context, index) for index in range(len(context["messages"]))]
        count = sum(message["is_inherited"] for message in context["messages"])
        if count:
            what = "1 message" if count == 1 else f"{count} messages"
            heading = on_one_line(f"{name} · {what} of {context['base']}")
            yield TranscriptEntry("inherited", name, (heading,), inherited=tuple(entries[:count]))
        yield from entries[count:]
    if shown["final_break"] is not None:
        text = on_one_line(f"at the end {break_text(shown['final_break'])}")
        yield TranscriptEntry("break", shown["final_break"]["context"] or "", (text,))


def _renderer_of(trajectory: Trajectory) -> str:
    """Return the renderer's name and options, and why it was chosen."""
    if not trajectory.renderer:
        return ""
    name, *options = (
        value if key == "name" else f"{key}={reprlib.repr(value)}" for key, value in trajectory.renderer.items()
    )
    facts = [" ".join(["renderer", str(name), *options])]
    if trajectory.renderer_chosen_because:
        facts.append(f"chosen because {trajectory.renderer_chosen_because}")
    if trajectory.renderer_rewrites:
        facts.append(f"the template rewrites earlier text: {trajectory.renderer_rewrites}")
    return on_one_line("; ".join(facts))


def _message(shown: EpisodeJSON, context: ContextJSON, index: int) -> TranscriptEntry:
    message = context["messages"][index]
    who = f"{context['name']} · {message['role']}"
    if message["answers"] is not None:
        reply, number = message["answers"]
        who += f" · result of {context['messages'][reply]['calls'][number]['name']}"
    steps = [] if message["is_inherited"] else [shown["steps"][number] for number in message["steps"]]
    headings: list[str] = []
    for step in steps:
        reward = "not scored" if step["reward"] is None else f"reward {step['reward']:g}"
        named = ", ".join(f"{name} {value:g}" for name, value in step["rewards"].items() if name != "reward")
        facts = f"step {step['index'] + 1} · {step['sampled']} tokens · {reward}" + (f" ({named})" if named else "")
        headings.append(on_one_line(f"{who} · {facts}"))
    return TranscriptEntry(
        kind=message["role"],
        context=context["name"],
        headings=tuple(headings) or (on_one_line(who),),
        breaks=tuple(on_one_line(break_text(step["break"])) for step in steps if step["break"] is not None),
        parts=tuple(_parts(message, shown["images"])),
        steps=tuple(step["index"] for step in steps),
        message=index,
    )


def hit_text(hit: Hit) -> str:
    """Describe a match: its place, and the text around it."""
    step = [] if hit.step is None else [f"step {hit.step + 1}"]
    where = " · ".join([*step, hit.context, hit.role if hit.part == "text" else hit.part])
    return on_one_line(f"found in {where}: {hit.before}{hit.found}{hit.after}")


def break_text(break_: BreakJSON) -> str:
    """Return the reason of a break, and what it cost."""
    again = f", {break_['observed_again']:,} of them observed again" if break_["observed_again"] else ""
    detail = f" ({break_['detail']})" if break_["detail"] else ""
    return f"{break_['reason']}: {break_['kept']:,} kept, {break_['dropped']:,} dropped{again}{detail}"


def _parts(message: MessageJSON, images: Mapping[str, ImageFactsJSON]) -> Iterator[TranscriptPart]:
    if message["reasoning"] is not None:
        yield TranscriptPart("reasoning", visible(message["reasoning"]))
    kinds: Mapping[str, Kind] = {"assistant": "reply", "tool": "result"}
    for part in message["parts"] or [{"text": message["content"]}]:
        if "image" in part:
            yield TranscriptPart(
                "image", visible(f"[{image_name(part['image'], images[part['image']])}]"), part["image"]
            )
        elif part["text"]:
            yield TranscriptPart(kinds.get(message["role"], "text"), visible(part["text"]))
    for call in message["calls"]:
        failed = f" ! {call['error']}" if call["error"] else ""
        yield TranscriptPart("call", visible(f"-> {call['name']}({call['arguments']}){failed}"))
    for error in message["errors"]:
        yield TranscriptPart("error", visible(f"! {error}"))
