"""Questions about a plot that matplotlib draws from a table."""

import threading
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from envsdk import Env, EnvConfig, ImagePart, Limits, Message, TextPart, Turn
from envsdk._packages import load
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.images import Image

from ._pictures import different
from ._scoring import TaskData, last_word

WIDTH, HEIGHT = 320, 240
"""The size of a plot, in pixels."""
MAX_VALUE = 20
_LABELS = ("Ash", "Birch", "Cedar", "Elm", "Fir", "Larch", "Maple", "Oak", "Pine", "Yew")
_DPI = 80
_SYSTEM = "Answer each question about the plot with one word: a whole number, or a name. All values are whole numbers."
_drawing = threading.Lock()  # matplotlib's settings belong to the process


class ChartReaderConfig(EnvConfig):
    """The contents of the plot, and the number of questions."""

    labels: int = Field(default=5, ge=2, le=len(_LABELS))
    """The number of names in the table."""
    questions: int = Field(default=3, ge=1, le=10)
    """The number of questions about the plot."""
    chart: Literal["bars", "line"] = "bars"
    """The kind of plot."""
    split: Split = "train"
    """No table is in both splits. Tables in `tasks` are used as they are."""


class ChartQuestion(TaskData):
    """A question about the plot."""

    text: str
    answer: str


class ChartReaderTask(TaskData):
    """A table and the questions about it."""

    labels: tuple[str, ...] = Field(min_length=1)
    values: tuple[int, ...]
    questions: tuple[ChartQuestion, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        if len(self.labels) != len(self.values):
            raise ValueError(f"there are {len(self.labels)} labels and {len(self.values)} values; expected as many")
        return self


class ChartReader(Env):
    """Answer questions about a plot.

    Exercises: reading values and comparing them in a plot, and remembering it over several questions. Reward:
    `correct`, the fraction of questions whose answer is the last word of the reply. A task, if given, is
    `{"labels": ["Ash", "Elm"], "values": [3, 7], "questions": [{"text": "How many elms?", "answer": "7"}]}`.
    """

    Config: ClassVar[type[EnvConfig]] = ChartReaderConfig
    Task: ClassVar[type[BaseModel] | None] = ChartReaderTask
    default_limits: ClassVar[Limits] = Limits(max_steps=24)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    shows_images: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _matplotlib()  # its absence is reported here, not in an episode

    def start(self) -> Turn:
        """Show the plot, and ask the first question."""
        config: ChartReaderConfig = self.config
        self.table: ChartReaderTask = self.task or draw_in_split(
            config.split, self._draw, lambda table: f"{table.labels} {table.values}"
        )
        self.asked = 0
        plot = draw_plot(self.table.labels, self.table.values, config.chart)
        parts = [ImagePart(plot), TextPart(text=self.table.questions[0].text)]
        return Turn({"role": "user", "content": parts}, system=_SYSTEM)

    def respond(self, reply: Message) -> Turn:
        """Score the answer, and ask the next question."""
        questions = self.table.questions
        answer = questions[self.asked].answer
        is_right = last_word(reply.content).strip(".*").casefold() == answer.casefold()
        self.asked += 1
        reward = {"correct": is_right / len(questions)}
        if self.asked == len(questions):
            return Turn("Thank you.", reward=reward, terminated=True)
        return Turn(questions[self.asked].text, reward=reward)

    def reference_reply(self) -> str:
        """The answer."""
        return self.table.questions[self.asked].answer

    def _draw(self) -> ChartReaderTask:
        config: ChartReaderConfig = self.config
        labels = tuple(_LABELS[index] for index in sorted(different(self.np_random, config.labels, len(_LABELS))))
        values = tuple(value + 1 for value in different(self.np_random, config.labels, MAX_VALUE))
        ranked = sorted(range(len(labels)), key=lambda index: values[index])
        questions: list[ChartQuestion] = []
        for _ in range(config.questions):
            first, second = different(self.np_random, 2, len(labels))
            match int(self.np_random.integers(4)):
                case 0:
                    text, answer = f"What is the value of {labels[first]}?", str(values[first])
                case 1:
                    text = f"By how much do the values of {labels[first]} and {labels[second]} differ?"
                    answer = str(abs(values[first] - values[second]))
                case 2:
                    text, answer = "Which name has the highest value?", labels[ranked[-1]]
                case _:
                    text, answer = "Which name has the lowest value?", labels[ranked[0]]
            questions.append(ChartQuestion(text=text, answer=answer))
        return ChartReaderTask(labels=labels, values=values, questions=tuple(questions))


def draw_plot(labels: tuple[str, ...], values: tuple[int, ...], chart: str) -> Image:
    """Draw a table as a plot of `WIDTH` x `HEIGHT` pixels, with matplotlib's own font and settings.

    Args:
        labels: The names, shape (n,).
        values: A value for each, shape (n,).
        chart: `bars` or `line`.

    Raises:
        MissingPackage: If matplotlib is not installed.
    """
    matplotlib, figure, agg = _matplotlib()
    with _drawing, matplotlib.rc_context():
        matplotlib.rcdefaults()
        drawn = figure.Figure(figsize=(WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, layout="constrained")
        canvas, axes = agg.FigureCanvasAgg(drawn), drawn.add_subplot()
        positions = range(len(labels))
        if chart == "bars":
            axes.bar(positions, values, color="tab:blue")
        else:
            axes.plot(positions, values, color="tab:blue", marker="o")
        axes.set_xticks(positions, labels)
        axes.set_ylim(0, max(*values, MAX_VALUE) + 1)
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=11, integer=True))
        axes.grid(axis="y", color="0.8")
        axes.set_axisbelow(True)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return Image.read(np.ascontiguousarray(pixels))


def _matplotlib() -> tuple[Any, Any, Any]:
    """Return matplotlib, and its modules of figures and of pictures."""
    names = ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg")
    return tuple(load(name, "envsdk/ChartReader-v0 needs", "pip install 'envsdk[vision,report]'") for name in names)
