"""Several small arithmetic questions in one conversation, for models that think before they answer."""

from typing import ClassVar

from pydantic import BaseModel, Field, model_validator

from envsdk import Env, EnvConfig, Limits, Message, Turn
from envsdk.authoring.tasks import Split, draw_in_split

from ._scoring import TaskData, decline, last_word


class MathChatConfig(EnvConfig):
    """The length of the conversation, and the size of the numbers."""

    questions: int = Field(default=6, ge=1)
    """The number of questions."""
    max_number: int = Field(default=99, ge=2)
    """The largest number in a question."""
    split: Split = "train"
    """No conversation is in both splits."""


class MathChatTask(TaskData):
    """The questions of one conversation, and their answers."""

    questions: tuple[str, ...] = Field(min_length=1)
    answers: tuple[int, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_an_answer_each(self) -> "MathChatTask":
        if len(self.questions) != len(self.answers):
            raise ValueError(
                f"there are {len(self.questions)} questions and {len(self.answers)} answers; give one each"
            )
        return self


class MathChat(Env):
    """Answer arithmetic questions, each in a new user message, so that Qwen3's template drops earlier thinking.

    Exercises: arithmetic over a conversation whose thinking the history policy keeps, strips at every question, or
    compacts every N steps. Reward: `correct`, 1 / questions for each question if the last word of the reply is the
    answer. A task, if given, has `questions` and `answers`.
    """

    Config: ClassVar[type[EnvConfig]] = MathChatConfig
    Task: ClassVar[type[BaseModel] | None] = MathChatTask
    default_limits: ClassVar[Limits] = Limits()
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Ask the first question."""
        config: MathChatConfig = self.config
        self.chat: MathChatTask = self.task or draw_in_split(
            config.split, self._draw, lambda chat: " ".join(chat.questions)
        )
        self.asked = 0
        return Turn(self.chat.questions[0], system="Think, then answer with the number alone.")

    def respond(self, reply: Message) -> Turn:
        """Score the answer, and ask the next question."""
        answer = str(self.chat.answers[self.asked])
        is_right = last_word(reply.content).rstrip(".") == answer
        verdict = "Right." if is_right else f"No, it is {answer}."
        reward = {"correct": 1.0 / len(self.chat.questions) if is_right else 0.0}
        self.asked += 1
        if self.asked == len(self.chat.questions):
            return Turn(f"{verdict} Thank you.", reward=reward, terminated=True)
        return Turn(f"{verdict} {self.chat.questions[self.asked]}", reward=reward)

    def reference_reply(self) -> Message:
        """Reason, then answer."""
        question, answer = self.chat.questions[self.asked], self.chat.answers[self.asked]
        reasoning = f"The question is: {question} I work it out step by step, and the result is {answer}."
        return Message(role="assistant", reasoning=reasoning, content=str(answer))

    null_reply = decline

    def _draw(self) -> MathChatTask:
        config: MathChatConfig = self.config
        questions, answers = list[str](), list[int]()
        for _ in range(config.questions):
            a, b = (int(number) for number in self.np_random.integers(2, config.max_number + 1, size=2))
            sign, answer = (("+", a + b), ("-", a - b), ("*", a * b))[int(self.np_random.integers(3))]
            questions.append(f"What is {a} {sign} {b}?")
            answers.append(answer)
        return MathChatTask(questions=tuple(questions), answers=tuple(answers))
