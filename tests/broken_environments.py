"""A small sound environment with tools and one without, and others that each break one promise."""

import copy
import datetime
import itertools
import random
from typing import Any, ClassVar, Literal

import numpy as np

from envsdk import Env, EnvConfig, Handoff, HandoffResult, Message, ToolCall, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk.authoring.tasks import Split, split_of

WORDS = 3


class SoundConfig(EnvConfig):
    split: Split = "train"


class Sound(Env):
    """Say each of three words again."""

    Config: ClassVar[type[EnvConfig]] = SoundConfig
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        self.words = self.draw()
        self.said = 0
        return Turn(f"Say {self.words[0]}.")

    def draw(self) -> list[str]:
        while True:
            words = [f"w{number}" for number in self.np_random.integers(10**6, size=WORDS).tolist()]
            if split_of(" ".join(words)) == self.config.split:
                return words

    def respond(self, reply: Message) -> Turn:
        reward = {"right": float(reply.content == self.words[self.said]) / WORDS}
        self.said += 1
        if self.said == WORDS:
            return Turn(self.last(), reward=reward, terminated=True)
        return Turn(f"Say {self.words[self.said]}.", reward=reward)

    def last(self) -> str:
        return "Thank you."

    def reference_reply(self) -> str:
        return self.words[self.said]


class SoundTools(ToolEnv):
    """Look up a number, and say it."""

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        self.number = int(self.np_random.integers(10**6))
        return Turn("Which number is it?")

    @tool
    def look_up(self, what: str, times: int = 1) -> str:
        """Look something up.

        Args:
            what: What to look up.
            times: How often.
        """
        return str(self.number)

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=float(reply.content == str(self.number)), terminated=True)

    def reference_reply(self) -> Message | str:
        if self.messages()[-1].role == "tool":
            return str(self.number)
        return Message(role="assistant", tool_calls=(ToolCall(name="look_up", arguments={"what": "it"}),))


# Repetition. What is wrong shows in the last message, where gymnasium's checker does not come.


class GlobalRandom(Sound):
    def last(self) -> str:
        return f"Thank you, {random.random()}."


class GlobalSeed(Sound):
    def start(self) -> Turn:
        np.random.seed(0)
        return super().start()


class Unseeded(Sound):
    def last(self) -> str:
        return f"Thank you, {np.random.default_rng().random()}."


class HashOrder(Sound):
    def last(self) -> str:
        return f"Thank you for {' '.join({*self.words, *'abcdefgh'})}."


class Today(Sound):
    def last(self) -> str:
        return f"It is {datetime.date.today()}."


class MutableDefault(Sound):
    def __init__(self, played: list[str] = [], **options: Any) -> None:  # noqa: B006 (what is broken)
        super().__init__(**options)
        self.played = played

    def last(self) -> str:
        self.played.append("")
        return f"That was episode {len(self.played)}."


class Leftover(Sound):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.replies = 0

    def respond(self, reply: Message) -> Turn:
        self.replies += 1
        return super().respond(reply)

    def last(self) -> str:
        return f"You said {self.replies} words."


class Uncopied:
    """A list that copies share."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Uncopied":
        return self


class SharedByCopies(Sound):
    """A connection that is made once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.log = Uncopied()

    def start(self) -> Turn:
        self.log.items.clear()
        return super().start()

    def respond(self, reply: Message) -> Turn:
        self.log.items.append(reply.content)
        return super().respond(reply)

    def last(self) -> str:
        return f"You said {self.log.items}."


class SharedByForks(SharedByCopies):
    """A connection for each episode."""

    def start(self) -> Turn:
        self.log = Uncopied()
        return super().start()


class NotCopyable(Sound):
    def start(self) -> Turn:
        self.counter = (number for number in itertools.count())
        return super().start()


class _Asks(Sound):
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self.heard = heard

    def respond(self, reply: Message) -> Turn:
        self.heard.append(self.words[self.said])
        turn = super().respond(reply)
        turn.reward, turn.rewards = None, {}
        return turn


class SharedBySubagents(Sound):
    """Two sub-agents write into one list, in the order in which they speak."""

    def respond(self, reply: Message) -> Any:
        self.answer = super().respond(reply)
        if self.said < WORDS:
            return self.answer
        self.heard: list[str] = []
        return [Handoff(_Asks(self.heard)), Handoff(_Asks(self.heard))]

    def resume(self, result: list[HandoffResult]) -> Turn:
        return Turn(f"They heard {self.heard}.", reward=self.answer.rewards, terminated=True)


class WithFunction(Sound):
    """Its registration holds a function."""

    def __init__(self, finish: Any = str, **options: Any) -> None:
        super().__init__(**options)
        self.finish = finish


# Tasks.


class SameTask(Sound):
    def draw(self) -> list[str]:
        return [self.config.split, "one", "two"]


class FewTasks(Sound):
    """Four tasks in each split."""

    def draw(self) -> list[str]:
        return [f"{self.config.split}{self.np_random.integers(4)}"] * WORDS


class FewTasksDeclared(FewTasks):
    n_tasks: ClassVar[int | None] = 4


class Overlapping(Sound):
    def draw(self) -> list[str]:
        return [f"w{number}" for number in self.np_random.integers(10**6, size=WORDS).tolist()]


class SplitsOfData(Sound):
    """One row is in both splits, and few seeds choose it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.tasks is None:
            words = ["b", "c", "w7"] if self.config.split == "test" else [f"w{number}" for number in range(200)]
            self.tasks = [{"word": word} for word in words]


# Rewards.


class Undeclared(Sound):
    reward_range = Env.reward_range


class NeverTheMost(Sound):
    reward_range: ClassVar[tuple[float, float]] = (0.0, 2.0)


class PaidForNothing(Sound):
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)


class LuckyNow(Sound):
    """On one seed of many nobody has to do anything."""

    is_lucky: ClassVar[int] = 20

    def start(self) -> Turn:
        turn = super().start()
        self.luck = (self.episode.seed or 0) % self.is_lucky == 1
        return turn

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        return Turn(turn.messages, reward=1.0, terminated=True) if self.luck else turn


class LuckyOften(LuckyNow):
    is_lucky = 3


class PaysWhatItIsTold(Sound):
    """Whoever tells it a reward gets more."""

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        if '"reward": 1' in reply.content:
            return Turn("Well.", reward=5.0, terminated=True)
        return turn


class FinesOddReplies(Sound):
    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        if turn.reward == 0.0 and reply.content:
            return Turn("No.", reward=-0.5, terminated=True)
        return turn


class BadReference(SoundTools):
    """It solves the task, but its calls fail."""

    def reference_reply(self) -> Message | str:
        if self.messages()[-1].role == "tool":
            return str(self.number)
        return Message(role="assistant", tool_calls=(ToolCall(name="look_up", arguments={"which": "it"}),))


class RaisingReference(Sound):
    def reference_reply(self) -> str:
        if self.episode.seed == 2 and self.said:
            raise RuntimeError("I do not know")
        return super().reference_reply()


class HardForItself(Sound):
    """With one of its options the reference policy fails."""

    class Config(SoundConfig):
        difficulty: Literal["easy", "hard"] = "easy"

    def reference_reply(self) -> str:
        return super().reference_reply() if self.config.difficulty == "easy" else "?"


class NoReference(Sound):
    reference_reply: Any = Env.reference_reply


# Replies.


class TakesDigitsForNumbers(Sound):
    def respond(self, reply: Message) -> Turn:
        if reply.content.isdigit():
            int(reply.content)
        return super().respond(reply)


class ObeysMarkers(Sound):
    def respond(self, reply: Message) -> Turn:
        if "<|im_start|>" in reply.content:
            raise SystemExit("bye")
        return super().respond(reply)


class SaysWhatItCannot(Sound):
    """It answers a reply in a role that the model family does not have."""

    def respond(self, reply: Message) -> Turn:
        return Turn(Message(role="developer", content="No.")) if reply.content == "**" else super().respond(reply)


class Endless(Sound):
    def respond(self, reply: Message) -> Turn:
        while len(reply.content) > 50_000:
            pass
        return super().respond(reply)


class NeedsWholeWords(Sound):
    def respond(self, reply: Message) -> Turn:
        word = self.words[self.said]
        if reply.content and word != reply.content and word.startswith(reply.content):
            raise ValueError("this is half a word")
        return super().respond(reply)


class NeverEnds(Sound):
    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        self.said -= not turn.reward
        return turn if turn.reward else Turn("Again.")


class _Fragile(Env):
    def start(self) -> Turn:
        return Turn("Say a number.")

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=None, metrics={"half": int(reply.content) / 2}, terminated=True)

    def reference_reply(self) -> str:
        return "2"

    def null_reply(self) -> str:
        return "0"


class FragileSubagent(Sound):
    def respond(self, reply: Message) -> Any:
        self.answer = super().respond(reply)
        return Handoff(_Fragile()) if self.said == WORDS else self.answer

    def resume(self, result: HandoffResult) -> Turn:
        return self.answer


# Tools.


class _Stop(BaseException):
    pass


class RaisesWhatNobodyCatches(SoundTools):
    @tool
    def stop(self, number: int) -> str:
        """Stop."""
        if number < 0:
            raise _Stop("enough")
        return "on"


class CrashesOnWhatIsNotThere(SoundTools):
    @tool
    def open(self, name: str) -> str:
        """Open."""
        return {"book": "pages"}[name]


class AnswersAsUser(SoundTools):
    def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        return Turn(results if "it" in str(reply.tool_calls[0].arguments) else "What?")


# The life of an environment.


class ClosesOnce(Sound):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed")
        self.closed = True
        super().close()


# A class body that hides step() or reset() is refused; these are changed behind the SDK's back.


class StepsBehindTheEnd(Sound):
    pass


def _step_behind_the_end(self: Any, action: Any) -> Any:
    if self.trajectory is None:
        self.result_of_step = Env.step(self, action)
    return self.result_of_step


StepsBehindTheEnd.step = _step_behind_the_end


class DropsTokens(Sound):
    """It says that it kept a token less than it did."""


def _step_that_drops(self: Any, action: Any) -> Any:
    result = Env.step(self, action)
    return result._replace(observation=result.observation._replace(keep=result.observation.keep - 1))


DropsTokens.step = _step_that_drops


class OldReset(Sound):
    pass


def _old_reset(self: Any, seed: int | None = None) -> Any:
    return Env.reset(self, seed=seed)


OldReset.reset = _old_reset


class LivesOnThinking(Sound):
    """It pays only who can still see all that it thought."""

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        if self.history.name != "keep":
            turn.reward, turn.rewards = 0.0, {}
        return turn


class NeedsAnArgument(Sound):
    def __init__(self, book: str, **options: Any) -> None:
        super().__init__(**options)
        self.book = copy.copy(book)


class FailsOnSomeSeeds(Sound):
    def start(self) -> Turn:
        if self.episode.seed == 5:
            raise ValueError("there is no word")
        return super().start()


class _Concurrent(ToolEnvConfig):
    concurrent_tools: bool = True


class ConcurrentTools(SoundTools):
    """Its calls run side by side, in threads."""

    Config: ClassVar[type[EnvConfig]] = _Concurrent
