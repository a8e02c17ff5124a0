"""A large picture that the model sees small, and from which it requests crops to read details."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from envsdk import EnvConfig, ImagePart, Limits, Message, TextPart, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import ToolError
from envsdk.images import Image

from ._pictures import NAMES, Picture, Point, different
from ._scoring import TaskData, end_with_verdict, last_word

SHOWN = 320
"""The width and height of the picture as the model sees it, in pixels. A crop is at most as large."""
SCALE = 4
"""The number of pixels of the large picture per pixel of the small one, in each direction."""
MIN_CROP = 16
"""The smallest width and height of a crop, in pixels of the small picture."""
_CELLS = 5  # in each direction; each has at most one item
_CELL = SHOWN * SCALE // _CELLS
_RADIUS, _DOT = 36, 2
_LOOK = 40  # the width and height of the crop that the reference policy requests
_SYSTEM = (
    f"You see a picture that was scaled down to {SHOWN} x {SHOWN} pixels, so the numbers in it are too small to read. "
    "Request crops to see parts of it enlarged. Then answer with the number alone."
)


class CropZoomConfig(ToolEnvConfig):
    """The contents of the picture."""

    items: int = Field(default=12, ge=1, le=len(NAMES))
    """The number of items, each with a number next to it."""
    split: Split = "train"
    """No picture is in both splits."""


class CropZoomItem(TaskData):
    """An item of the picture."""

    name: str
    """A color and a shape, such as "red circle"."""
    number: int = Field(ge=0, le=999)
    """The number under it."""
    x: int = Field(ge=_RADIUS, lt=SHOWN * SCALE - _RADIUS)
    """Its center in the large picture, in pixels from the left."""
    y: int = Field(ge=_RADIUS, lt=SHOWN * SCALE - 2 * _RADIUS)
    """Its center in the large picture, in pixels from the top."""


class CropZoomTask(TaskData):
    """The items of the picture; the question is about the first one."""

    items: tuple[CropZoomItem, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        names = [item.name for item in self.items]
        if len({*names}) < len(names) or not {*names} <= {*NAMES}:
            raise ValueError(f"the items are {names}; expected different ones of {', '.join(NAMES)}")
        return self


class CropZoom(ToolEnv):
    """Read a number in a picture that is too large to be shown, by requesting crops of it.

    Exercises: deciding where to look, requesting a part of a picture, and reading details in a second picture. Reward:
    `correct`, 1 if the last word of the answer is the number. A task, if given, is
    `{"items": [{"name": "red circle", "number": 417, "x": 300, "y": 200}]}`.
    """

    Config: ClassVar[type[EnvConfig]] = CropZoomConfig
    Task: ClassVar[type[BaseModel] | None] = CropZoomTask
    default_limits: ClassVar[Limits] = Limits(max_steps=12, max_tool_calls=24)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    shows_images: ClassVar[bool] = True

    def start(self) -> Turn:
        """Show the small picture, and ask for a number in it."""
        config: CropZoomConfig = self.config
        drawn = self.task or draw_in_split(config.split, self._draw, CropZoomTask.model_dump_json)
        self.items: tuple[CropZoomItem, ...] = drawn.items
        self.has_looked = False
        overview = ImagePart(self._large().reduce(SCALE))
        question = TextPart(text=f"Which number is under the {self.items[0].name}?")
        return Turn({"role": "user", "content": [overview, question]}, system=_SYSTEM)

    @tool
    def crop(self, left: int, top: int, right: int, bottom: int) -> list[str | Image]:
        """Show a part of the picture enlarged. The smaller the part, the more detail is visible.

        Args:
            left: The left edge, in pixels of the first picture.
            top: The top edge.
            right: The right edge.
            bottom: The bottom edge.
        """
        if not (0 <= left < right <= SHOWN and 0 <= top < bottom <= SHOWN):
            raise ToolError(
                f"the crop is not inside the picture: expected 0 <= left < right <= {SHOWN} and 0 <= top < bottom <= "
                f"{SHOWN}"
            )
        width, height = right - left, bottom - top
        if min(width, height) < MIN_CROP:
            raise ToolError(f"the crop has {width} x {height} pixels; expected at least {MIN_CROP} x {MIN_CROP}")
        self.has_looked = True
        part = self._large().crop(tuple(edge * SCALE for edge in (left, top, right, bottom)))
        longest = max(part.size)
        if longest > SHOWN:  # in the largest size that is shown: whole multiples, or whole fractions
            part = part.reduce(-(-longest // SHOWN))
        else:
            factor = SHOWN // longest
            part = part.resize((part.width * factor, part.height * factor), resample=0)  # the nearest pixel
        return [f"The part from ({left}, {top}) to ({right}, {bottom}):", Image.read(part)]

    def finish(self, reply: Message) -> Turn:
        """Score the answer and end the episode."""
        number = self.items[0].number
        return end_with_verdict(last_word(reply.content).strip(".*") == str(number), number)

    def reference_reply(self) -> Message:
        """Look at the item, then answer."""
        target = self.items[0]
        if self.has_looked:
            return Message(role="assistant", reasoning="Now I can read it.", content=str(target.number))
        left, top = (min(max(0, at // SCALE - _LOOK // 2), SHOWN - _LOOK) for at in (target.x, target.y))
        edges = {"left": left, "top": top, "right": left + _LOOK, "bottom": top + _LOOK}
        return Message.calling("crop", edges, reasoning=f"I look at the {target.name}.")

    def _large(self) -> Any:
        """Draw the large picture."""
        picture = Picture(SHOWN * SCALE, SHOWN * SCALE)
        for item in self.items:
            picture.item(item.name, Point(item.x, item.y), _RADIUS)
            picture.number(str(item.number), Point(item.x - 6 * _DOT, item.y + _RADIUS + 2 * _DOT), _DOT)
        return picture.image

    def _draw(self) -> CropZoomTask:
        """Draw items, each with a number and a place in its own cell."""
        config: CropZoomConfig = self.config
        names = [NAMES[index] for index in different(self.np_random, config.items, len(NAMES))]
        items, margin = list[CropZoomItem](), 2 * _RADIUS
        for name, cell in zip(names, different(self.np_random, config.items, _CELLS**2), strict=True):
            row, column = divmod(cell, _CELLS)
            x, y = (int(self.np_random.integers(margin, _CELL - margin)) for _ in range(2))
            number = int(self.np_random.integers(100, 1000))
            items.append(CropZoomItem(name=name, number=number, x=column * _CELL + x, y=row * _CELL + y))
        return CropZoomTask(items=tuple(items))
