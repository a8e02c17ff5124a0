"""Questions about a made-up world that need several searches."""

import re
import unicodedata
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk._visible import brief
from envsdk.authoring.tasks import Split
from envsdk.errors import TaskError, ToolError

from .._scoring import decline, end_with_verdict
from ._index import FullTextSearchUnavailable, check_full_text_search, get_index
from ._world import CorpusSearchTask, Difficulty, get_questions

__all__ = ["CorpusSearch", "CorpusSearchConfig", "CorpusSearchTask", "FullTextSearchUnavailable"]

MAX_QUERY_CHARS = 500
_REFERENCE_ROOM = 800
"""The room that the reference policy keeps for the results of a search and an article, in tokens."""
_SYSTEM = (
    "Answer a question about a fictional world that you know nothing about. Search its encyclopedia, and read the "
    "articles that lead from the question to the answer. When you know the answer, reply with just the name, without a "
    "tool call."
)


class CorpusSearchConfig(ToolEnvConfig):
    """The questions that are asked."""

    split: Split = "train"
    """No answer is in both splits."""
    difficulty: Difficulty = "medium"
    """The number of articles that lead to the answer: two (`easy`), three (`medium`) or four (`hard`)."""


class CorpusSearch(ToolEnv):
    """Answer a question about a made-up world by searching its encyclopedia of more than 5,000 articles.

    Exercises: splitting a question into parts, searching, reading, and continuing from what was read. An example of a
    question is "Which town is now the home of the mentor of the author of the poem Quiet Library?". Many irrelevant
    articles name the same people and places.

    Reward: `correct`, 1 if the answer ends with the right name, in upper or lower case. Metrics: `searches` and `reads`
    count the calls of a step; `found`, at the end, is the share of the articles on the path that were read.

    A task, if given, is `{"question": "Who wrote the poem Quiet Library?", "answer": "Kliru Kifas", "path": ["Quiet
    Library"]}`. The articles are always the same.

    Raises:
        FullTextSearchUnavailable: If the sqlite of this Python has no FTS5.
    """

    Config: ClassVar[type[EnvConfig]] = CorpusSearchConfig
    Task: ClassVar[type[BaseModel] | None] = CorpusSearchTask
    default_limits: ClassVar[Limits] = Limits(max_steps=32)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        check_full_text_search()
        if options.get("tasks") is None:
            self.tasks = get_questions(self.config.difficulty, self.config.split)

    def start(self) -> Turn:
        """Ask the question."""
        self.quest: CorpusSearchTask = self.task
        missing = [title for title in self.quest.path if get_index().text(title) is None]
        if missing:
            raise TaskError(
                f"there is no article {missing[0]!r}, which is in the path of the task; use titles of the corpus"
            )
        self.read_titles: set[str] = set()
        return Turn(self.quest.question, system=_SYSTEM)

    @tool
    def search(self, query: str, page: Annotated[int, Field(ge=1, le=1_000)] = 1) -> str:
        """Search the articles by words. The best matches come first, each with a sentence that has some of the words.

        Args:
            query: One or more words, such as a name. Very common words are ignored.
            page: The page of results.
        """
        if len(query) > MAX_QUERY_CHARS:
            raise ToolError(
                f"the query has {len(query):,} characters; use a few words, at most {MAX_QUERY_CHARS} characters"
            )
        found = get_index().search(query, page)
        if not found.hits:
            return "No articles were found." if page == 1 else "No more articles were found."
        lines = [f"- {hit.title}: {hit.snippet}" for hit in found.hits]
        return "\n".join([*lines, f"There are more results on page {page + 1}."] if found.has_more else lines)

    @tool
    def read(self, title: str) -> str:
        """Read an article.

        Args:
            title: Its title.
        """
        text = get_index().text(title)
        if text is None:
            raise ToolError(f"there is no article {brief(title)}; search for a title")
        self.read_titles.add(title.strip().casefold())
        return text

    def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        """Return the results, and count the calls."""
        names = [call.name for call in reply.tool_calls]
        return Turn(results, metrics={"searches": names.count("search"), "reads": names.count("read")})

    def finish(self, reply: Message) -> Turn:
        """Score the answer and end the episode."""
        words, wanted = (
            re.findall(r"[^\W_]+", unicodedata.normalize("NFC", text).casefold())
            for text in (reply.content, self.quest.answer)
        )
        is_right = bool(wanted) and words[-len(wanted) :] == wanted
        titles = {title.casefold() for title in self.quest.path}
        metrics = {"found": len(titles & self.read_titles) / len(titles)} if titles else {}
        return end_with_verdict(is_right, self.quest.answer, **metrics)

    def reference_reply(self) -> Message:
        """Search for the next article of the path, read it, and answer when an article names the answer.

        With the context tool `fold`, it folds the articles whenever a further one might not fit.
        """
        results = [m.content for m in self.messages() if m.role == "tool" and m.name in ("search", "read")]
        path, step = self.quest.path, len(results) // 2
        if len(results) % 2:
            if f"- {path[step]}: " not in results[-1]:
                return _give_up()
            return Message.calling("read", {"title": path[step]}, reasoning="This is the article that I need.")
        known = results[-1] if results else self.quest.question
        wanted = path[step] if step < len(path) else self.quest.answer
        if wanted not in known:
            return _give_up()
        if step == len(path):
            return Message(role="assistant", reasoning="That is the answer.", content=wanted)
        most = self.limits.max_context_tokens
        is_full = most is not None and len(self.prompt()) + _REFERENCE_ROOM > most
        if "fold" in self.config.context_tools and is_full and self.messages()[-1].name == "read":
            summary = f"The articles that I have read lead to {wanted}."
            return Message.calling("fold", {"summary": summary}, reasoning="There is no room for more articles.")
        return Message.calling("search", {"query": wanted}, reasoning=f"I need to know more about {wanted}.")

    null_reply = decline


def _give_up() -> Message:
    return Message(role="assistant", reasoning="I did not find what I need.", content="I do not know.")
