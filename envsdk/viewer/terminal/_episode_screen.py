"""The screen with one episode as a conversation."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from ..._visible import on_one_line
from ...errors import EnvsdkError
from .._contents import Hit
from .._drawing import drawing
from .._ranges import Range
from .._resources import Resources
from .._transcript import Entry, transcript
from ._conversation import ConversationLines
from ._dialogs import Question
from ._drawing_screen import DrawingScreen
from ._episodes import Listed
from ._lines import Lines
from ._tokens_screen import TokensScreen
from ._viewer_screen import ViewerScreen


class EpisodeScreen(ViewerScreen):
    """One episode of a list.

    Args:
        resources: The runs.
        listed: The episodes of the list.
        index: Which of them.
        hit: Where a text was found that the cursor is to be at first.
        searched: The text, as `str.casefold` returns it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        Binding("f", "fold_all", "Fold"),
        Binding("n", "step(1)", "Step"),
        Binding("N", "step(-1)", "Step before", show=False),
        Binding("b", "break(1)", "Break"),
        Binding("B", "break(-1)", "Break before", show=False),
        Binding("e", "error(1)", "Next error of a reply", show=False),
        Binding("t", "tokens", "Tokens"),
        Binding("p", "prompt", "Prompt"),
        Binding("c", "contexts", "Contexts"),
        Binding("slash", "search", "Search"),
        Binding("right_square_bracket", "episode(1)", "Next episode", show=False),
        Binding("left_square_bracket", "episode(-1)", "Episode before", show=False),
    ]

    def __init__(
        self, resources: Resources, listed: Sequence[Listed], index: int, hit: Hit | None = None, searched: str = ""
    ) -> None:
        super().__init__()
        self._hit = hit
        self._resources, self._listed, self._index = resources, listed, index
        self._shown: Mapping[str, Any] = {"steps": []}
        self.source = ConversationLines([], 80)
        self._searched = searched

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(id="title")
        yield Lines(self.source)
        yield Static(id="status")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.read_episode()

    @work(exclusive=True)
    async def read_episode(self) -> None:
        """Read the episode, and show it."""
        run, row = self._listed[self._index]
        self.query_one("#title", Static).update(Text(f"reading {on_one_line(row.id)}"))
        try:
            self._shown = await asyncio.to_thread(self._resources.episode, run, row.line)
            trajectory = await asyncio.to_thread(self._resources.trajectory, run, row.line)
            entries = [*transcript(trajectory, self._shown)]
        except (EnvsdkError, OSError) as error:
            self._shown, entries = {"steps": []}, list[Entry]()
            self.query_one("#title", Static).update(Text(on_one_line(str(error)), "red"))
        else:
            self.query_one("#title", Static).update(_title(self._shown, self._index + 1, len(self._listed)))
        lines = self.query_one(Lines)
        self.source = ConversationLines(entries, lines.size.width or 80)
        self.source.searched = self._searched.casefold()
        lines.show(self.source)
        if self._hit is not None and entries:
            self._go_to_hit(self._hit)
            self._hit = None

    def _go_to_hit(self, hit: Hit) -> None:
        place = (hit.context, hit.message)
        entry = self.source.find(-1, 1, lambda entry: (entry.context, entry.message) == place)
        if entry is not None:
            self._show_text(entry)

    def _show_text(self, entry: int) -> None:
        """Go to the line of an entry that has the searched text."""
        line = self.source.open_with(entry, self.source.searched)
        lines = self.query_one(Lines)
        lines.move_to_top(self.source.first_line(entry))
        lines.move_to(line)

    @property
    def entry(self) -> Entry | None:
        """The entry with the cursor, or None."""
        return self.source.entries[self._entry] if len(self.source) else None

    @property
    def _entry(self) -> int:
        return self.source.entry_at(self.query_one(Lines).cursor)

    def on_lines_moved(self) -> None:
        """Describe the entry with the cursor."""
        lines = self.query_one(Lines)
        where = f"line {lines.cursor + 1:,} of {len(self.source):,}"
        facts = [where] if self.entry is None else [where, *_about(self.entry, self._shown)]
        self.query_one("#status", Static).update(Text(on_one_line(" · ".join(facts))))

    def on_lines_chosen(self) -> None:
        """Open or fold the entry with the cursor."""
        self._keep_place(lambda: self.source.toggle(self._entry))

    def action_fold_all(self) -> None:
        """Open all entries, or fold them."""
        self._keep_place(self.source.toggle_all)

    def _keep_place(self, change: Callable[[], None]) -> None:
        if len(self.source):
            entry = self._entry
            change()
            self.query_one(Lines).show(self.source, self.source.first_line(entry))

    def _go(self, direction: int, holds: Callable[[Entry], bool], what: str) -> None:
        found = None if not len(self.source) else self.source.find(self._entry, direction, holds)
        if found is None:
            self.notify(f"There is no further {what}.", markup=False)
        else:
            self.query_one(Lines).move_to_top(self.source.first_line(found))

    def action_step(self, direction: int) -> None:
        """Go to the next step."""
        self._go(direction, lambda entry: bool(entry.steps), "step")

    def action_break(self, direction: int) -> None:
        """Go to the next break."""
        self._go(direction, lambda entry: bool(entry.breaks) or entry.kind == "break", "break")

    def action_error(self, direction: int) -> None:
        """Go to the next reply with errors."""
        self._go(direction, lambda entry: any(part.kind == "error" for part in entry.parts), "error of a reply")

    def action_episode(self, direction: int) -> None:
        """Go to the next episode of the list."""
        if 0 <= self._index + direction < len(self._listed):
            self._index += direction
            self.read_episode()

    def action_search(self) -> None:
        """Ask for a text, and go to the next entry that has it."""
        self.open_screen(Question("Search in the conversation", self._searched), self._search)

    def _search(self, text: str | None) -> None:
        if text:
            self._searched, self.source.searched = text, text.casefold()
            found = self.source.find(self._entry, 1, lambda entry: _has(entry, text.casefold()))
            if found is None:
                self.notify(f"There is no further entry with {on_one_line(text)!r}.", markup=False)
            else:
                self._show_text(found)
            self.query_one(Lines).refresh()

    def action_tokens(self) -> None:
        """Show the tokens of the context with the cursor, from its step on."""
        if self.entry is None or not self._shown["contexts"]:
            return
        name = self.entry.context or self._shown["contexts"][0]["name"]
        steps = self.entry.steps
        start = self._shown["steps"][steps[0]]["action_start"] if steps else 0
        lengths = {context["name"]: context["tokens"] for context in self._shown["contexts"]}
        self._show_tokens(f"tokens of {name}", [Range(name, 0, lengths[name])], start)

    def action_prompt(self) -> None:
        """Show the prompt of the step with the cursor, as the model saw it."""
        if self.entry is None or not self.entry.steps:
            self.notify("Choose a reply first: its step has the prompt.", markup=False)
            return
        step = self.entry.steps[0]
        run, row = self._listed[self._index]
        ranges = [Range(*one) for one in self._resources.prompt(run, row.line, step)["ranges"]]
        self._show_tokens(f"prompt of step {step + 1}", ranges, 0)

    def action_contexts(self) -> None:
        """Show the drawing of the contexts; a step that is chosen there has the cursor here."""
        if self._shown["steps"]:
            steps = () if self.entry is None else self.entry.steps
            screen = DrawingScreen(self._shown["id"], drawing(self._shown), steps[0] if steps else None)
            self.open_screen(screen, self._go_to_step)

    def _go_to_step(self, step: int | None) -> None:
        found = None if step is None else self.source.find(-1, 1, lambda entry: step in entry.steps)
        if found is not None:
            self.query_one(Lines).move_to_top(self.source.first_line(found))

    def _show_tokens(self, title: str, ranges: list[Range], start: int) -> None:
        run, row = self._listed[self._index]
        self.open_screen(
            TokensScreen(
                title,
                ranges,
                lambda context: self._resources.tokens(run, row.line, context),
                start,
                self._shown["images"],
            )
        )


def _title(shown: Mapping[str, Any], number: int, count: int) -> Text:
    facts = (
        f"{shown['status']} ({shown['stop_reason']})",
        f"not scored ({shown['not_scored']})" if shown["reward"] is None else f"reward {shown['reward']:g}",
        f"{len(shown['steps'])} steps",
        f"{shown['observed_tokens'] + shown['sampled_tokens']:,} tokens",
        f"{number} of {count}",
    )
    return Text(on_one_line(shown["id"]), "bold").append("  " + on_one_line(" · ".join(facts)), "not bold")


def _about(entry: Entry, shown: Mapping[str, Any]) -> list[str]:
    if not entry.steps:
        return []
    step = shown["steps"][entry.steps[0]]
    left = [f"{name} {count:,}" for name, count in step["left"].items()]
    metrics = [f"{name} {value:g}" for name, value in step["metrics"].items()]
    return [
        f"step {step['index'] + 1} of {len(shown['steps'])}",
        f"prompt {step['prompt_tokens']:,} tokens",
        *(["left: " + ", ".join(left)] if left else []),
        *metrics,
    ]


def _has(entry: Entry, text: str) -> bool:
    own = (*entry.headings, *entry.breaks, *(part.text for part in entry.parts))
    return any(text in one.casefold() for one in own) or any(_has(one, text) for one in entry.inherited)
