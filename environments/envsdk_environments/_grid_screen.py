"""A small screen that the model looks at and clicks on; each click answers with the next picture."""

from typing import ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from envsdk import EnvConfig, ImagePart, Limits, Message, TextPart, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import ToolError
from envsdk.images import Image

from ._pictures import NAMES, Picture, Point, different
from ._scoring import TaskData

COLUMNS, ROWS = 6, 4
CELL = 40
"""The width and height of a cell, in pixels."""
WIDTH, HEIGHT = COLUMNS * CELL, ROWS * CELL
_RADIUS = 14
_SYSTEM = (
    f"You see a screen of {WIDTH} x {HEIGHT} pixels. Click the items in the order in which the user names them. An "
    f"item disappears when you click it, and the others move. A click on any other item ends the task."
)


class GridScreenConfig(ToolEnvConfig):
    """The number of items, and the number of items to click."""

    items: int = Field(default=8, ge=1, le=len(NAMES))
    """The number of items on the first screen."""
    clicks: int = Field(default=3, ge=1, le=len(NAMES))
    """The number of items to click."""
    split: Split = "train"
    """No sequence of screens is in both splits."""

    @model_validator(mode="after")
    def _has_enough_items(self) -> Self:
        if self.clicks > self.items:
            raise ValueError(f"clicks is {self.clicks} and items is {self.items}; expected at most as many clicks")
        return self


class GridScreenTask(TaskData):
    """The items, and where they are on each screen."""

    items: tuple[str, ...]
    """The names of the items, such as "red circle"; the first ones are to be clicked, in this order."""
    screens: tuple[tuple[int, ...], ...]
    """For each click, the cells of the items that are left, in order; cells are counted by rows from the top left."""

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if len({*self.items}) < len(self.items) or not {*self.items} <= {*NAMES}:
            raise ValueError(f"items is {self.items}; expected different ones of {', '.join(NAMES)}")
        if not 1 <= len(self.screens) <= len(self.items):
            raise ValueError(f"there are {len(self.screens)} screens; expected 1 to {len(self.items)}")
        for number, cells in enumerate(self.screens):
            is_inside = all(0 <= cell < COLUMNS * ROWS for cell in cells)
            if len(cells) != len(self.items) - number or len({*cells}) < len(cells) or not is_inside:
                raise ValueError(
                    f"screen {number} has the cells {cells}; expected {len(self.items) - number} different ones from 0 "
                    f"to {COLUMNS * ROWS - 1}"
                )
        return self


class GridScreen(ToolEnv):
    """Click named items on a picture of a small screen, by their coordinates; each click answers with the next picture.

    Exercises: finding things in a picture, giving their coordinates, and looking again after each action. Reward:
    `clicked`, the fraction of the items that were clicked in order before a click on another item. A task, if given, is
    `{"items": ["red circle", "blue square"], "screens": [[0, 5]]}`.
    """

    Config: ClassVar[type[EnvConfig]] = GridScreenConfig
    Task: ClassVar[type[BaseModel] | None] = GridScreenTask
    default_limits: ClassVar[Limits] = Limits(max_steps=24, max_tool_calls=48)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    shows_images: ClassVar[bool] = True

    def start(self) -> Turn:
        """Show the first screen, and name the items to click."""
        config: GridScreenConfig = self.config
        drawn = self.task or draw_in_split(config.split, self._draw, GridScreenTask.model_dump_json)
        self.items, self.screens = drawn.items, drawn.screens
        self.targets = self.items[: len(self.screens)]
        self.clicked = self.rewarded = 0
        self.has_failed = False
        text = f"Click {', then '.join(f'the {name}' for name in self.targets)}."
        parts = [TextPart(text=text), ImagePart(self._picture())]
        return Turn({"role": "user", "content": parts}, system=_SYSTEM)

    @tool
    def click(self, x: int, y: int) -> str | list[str | Image]:
        """Click a point on the screen.

        Args:
            x: Pixels from the left edge.
            y: Pixels from the top edge.
        """
        if not (0 <= x < WIDTH and 0 <= y < HEIGHT):
            raise ToolError(f"the point is outside the screen, which has {WIDTH} x {HEIGHT} pixels")
        if self.is_over:
            raise ToolError("the task is over")
        centers = enumerate(map(_center, self.screens[self.clicked]), self.clicked)
        found = next((item for item, at in centers if max(abs(x - at.x), abs(y - at.y)) <= _RADIUS), None)
        if found is None:
            return ["There is nothing to click at this point.", self._picture()]
        self.has_failed = found != self.clicked
        self.clicked += not self.has_failed
        if self.has_failed:
            return f"That is the {self.items[found]}, not the {self.items[self.clicked]}."
        return "Clicked." if self.is_over else ["Clicked.", self._picture()]

    @property
    def is_over(self) -> bool:
        """True if a wrong item was clicked, or all of the targets."""
        return self.has_failed or self.clicked == len(self.targets)

    def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        """Show the next screen, with a reward for each target that was clicked."""
        new, self.rewarded = self.clicked - self.rewarded, self.clicked
        return Turn(results, reward={"clicked": new / len(self.targets)}, terminated=self.is_over)

    def finish(self, reply: Message) -> Turn:
        """End the episode: the model gave up."""
        return Turn("Not all items were clicked.", reward={"clicked": 0.0}, terminated=True)

    def reference_reply(self) -> Message:
        """Click the middle of the next target."""
        center = _center(self.screens[self.clicked][0])
        name = self.items[self.clicked]
        return Message.calling(
            "click", {"x": center.x, "y": center.y}, reasoning=f"The {name} is at {center.x}, {center.y}."
        )

    def _picture(self) -> Image:
        """Draw the current screen."""
        picture = Picture(WIDTH, HEIGHT)
        picture.lines(CELL)
        for name, cell in zip(self.items[self.clicked :], self.screens[self.clicked], strict=True):
            picture.item(name, _center(cell), _RADIUS)
        return Image.read(picture.image)

    def _draw(self) -> GridScreenTask:
        config: GridScreenConfig = self.config
        items = [NAMES[index] for index in different(self.np_random, config.items, len(NAMES))]
        counts = range(config.items, config.items - config.clicks, -1)
        cells = [different(self.np_random, count, COLUMNS * ROWS) for count in counts]
        return GridScreenTask(items=tuple(items), screens=tuple(map(tuple, cells)))


def _center(cell: int) -> Point:
    row, column = divmod(cell, COLUMNS)
    return Point(column * CELL + CELL // 2, row * CELL + CELL // 2)
