"""The answers to a page as JSON: runs, rows, an episode, its tokens, and the prompt of a step."""

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from ..errors import EnvsdkError, InvalidRecord, UnknownName
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory
from ._contents import Hit
from ._episodes import ImageFile, episode, image_file
from ._filters import parse_filter
from ._json import EpisodeJSON, MatchJSON, PromptJSON, RowsAnswerJSON, RunsAnswerJSON, SearchAnswerJSON, TokensJSON
from ._ranges import prompt_of
from ._rows import EpisodeRow
from ._sources import RunInfo, Source
from ._tokens import context_tokens

_BATCHES_AT_ONCE = 500
_MATCHES_AT_ONCE, _SEARCH_S = 500, 0.2
"""The maximum number of matches in an answer, and about how long it takes: the page shows partial results."""
_KEPT = 4
"""The number of episodes that stay in memory, since a page sends several requests about each."""


@dataclass(eq=False, repr=False)
class Resources:
    """Answers the requests of a page. It may be called from several threads.

    Args:
        sources: The runs to show.
        follow: Whether the page polls for new episodes.
    """

    sources: Sequence[Source]
    follow: bool = field(kw_only=True, default=False)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _episodes: OrderedDict[tuple[int, int, int], Trajectory] = field(
        default_factory=OrderedDict[tuple[int, int, int], Trajectory]
    )

    def runs(self) -> RunsAnswerJSON:
        """Return a description of each run."""
        return {"follow": self.follow, "runs": [source.info for source in self.sources]}

    def rows(self, run: int, after: int = 0, generation: int = 0) -> RowsAnswerJSON:
        """Return the next rows of a run.

        Args:
            run: The index of the run.
            after: The number of rows that the page has.
            generation: The generation of these rows; if the run's differs, the page begins again.

        Raises:
            UnknownName: If there is no such run.
            OSError: If its file cannot be read.
        """
        source = self._source(run)
        with self._mutex:
            if after >= len(source.rows) or generation != source.generation:
                source.refresh(most=_BATCHES_AT_ONCE)
            start = after if generation == source.generation else 0
            rows = source.rows[start : start + 4 * _BATCHES_AT_ONCE]
            stop = start + len(rows)
            return {
                "generation": source.generation,
                "start": start,
                "rows": rows,
                "more": stop < len(source.rows) or len(rows) >= _BATCHES_AT_ONCE,
                "unread_bytes": source.unread_bytes if stop == len(source.rows) else 0,
                "is_complete": source.info.is_complete,
            }

    def search(self, run: int, text: str, after: int = 0, generation: int = 0) -> SearchAnswerJSON:
        """Search the next rows of a run, for about 0.2 seconds.

        Args:
            run: The index of the run.
            text: A filter.
            after: The number of rows that were searched before.
            generation: The generation of these rows; if the run's differs, the search begins again.

        Returns:
            `matches`, `searched` (the number of rows searched), `more` (whether rows are left), and `generation`.

        Raises:
            UnknownName: If there is no such run.
            InvalidFilter: If the filter is not valid.
            OSError: If its file cannot be read.
        """
        source, chosen = self._source(run), parse_filter(text)
        with self._mutex:
            searched = after if generation == source.generation else 0
            found, now, count = source.search(chosen, searched), source.generation, len(source.rows)
        matches, until = list[MatchJSON](), time.monotonic() + _SEARCH_S
        for row, match in found:
            searched = row.line
            if match is not None:
                matches.append({"line": match.line, "count": match.count, "hits": list(match.hits)})
            if len(matches) == _MATCHES_AT_ONCE or time.monotonic() > until:
                break
        return {"generation": now, "searched": searched, "more": searched < count, "matches": matches}

    def episode(self, run: int, line: int) -> EpisodeJSON:
        """Return an episode without its tokens.

        Raises:
            UnknownName: If there is no such run.
            InvalidRecord: If there is no such line, or it is damaged.
        """
        return episode(self.trajectory(run, line))

    def tokens(self, run: int, line: int, context: str) -> TokensJSON:
        """Return the tokens of a context as columns.

        If the stored samples are not those of the episode, the columns do not have them, and `problem` states why.

        Raises:
            UnknownName: If there is no such run.
            InvalidRecord: If there is no such line or context, or the line is damaged.
        """
        source, trajectory = self._source(run), self.trajectory(run, line)
        if context not in trajectory.contexts:
            raise InvalidRecord(f"{trajectory.id!r} has no context {context!r}")
        tokenizer = source.tokenizer_of(trajectory, context)
        try:
            samples = [Sample.from_json(line) for line in source.sample_lines(trajectory.id)]
            return {**context_tokens(trajectory, context, tokenizer, samples), "problem": None}
        except (InvalidRecord, OSError) as error:
            return {**context_tokens(trajectory, context, tokenizer), "problem": str(error)}

    def prompt(self, run: int, line: int, step: int) -> PromptJSON:
        """Return the ranges of the logs that make up the prompt of a step.

        Raises:
            UnknownName: If there is no such run.
            InvalidRecord: If there is no such line or step, or the line is damaged.
        """
        ranges = prompt_of(self.trajectory(run, line), step)
        return {"ranges": [(own.context, own.start, own.stop) for own in ranges]}

    def image(self, run: int, line: int, sha256: str) -> ImageFile:
        """Return an image of an episode by its hash.

        Raises:
            UnknownName: If there is no such run or image.
            InvalidRecord: If there is no such line, or it is damaged.
            ImageError: If the bytes of the image are missing or wrong.
        """
        return image_file(self.trajectory(run, line), sha256)

    def _source(self, run: int) -> Source:
        if not 0 <= run < len(self.sources):
            raise UnknownName(f"there is no run {run}; expected 0 to {len(self.sources) - 1}")
        return self.sources[run]

    def trajectory(self, run: int, line: int) -> Trajectory:
        """Return an episode as it is stored.

        Raises:
            UnknownName: If there is no such run.
            InvalidRecord: If there is no such line, or it is damaged.
        """
        source = self._source(run)
        key = (run, source.generation, line)
        with self._mutex:
            if key not in self._episodes:
                while line > len(source.rows) and source.refresh():  # for a link to an episode
                    pass
                self._episodes[key] = source.trajectory(line)
            self._episodes.move_to_end(key)
            while len(self._episodes) > _KEPT:
                self._episodes.popitem(last=False)
            return self._episodes[key]


def as_json(value: Any) -> bytes:
    """Return values as JSON; integers that orjson cannot write, which a record may hold, become strings."""

    def writable(value: Any) -> Any:
        match value:
            case EpisodeRow() | Hit() | RunInfo():
                return writable(asdict(value))
            case dict():
                return {str(key): writable(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            case list() | tuple():
                return [writable(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            case int() if abs(value) >= 2**63:
                return str(value)
            case _:
                return value

    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an integer beyond 64 bits
        return orjson.dumps(writable(value), option=orjson.OPT_NON_STR_KEYS)


def error_of(error: EnvsdkError | OSError) -> dict[str, Any]:
    """Return an error as JSON."""
    return {"error": {"type": type(error).__name__, "message": str(error)}}
