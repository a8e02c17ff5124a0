"""The page: one HTML file, which requests its data from a server, or contains the data.

`page.html` is built from the folder `viewer/` of the repository with `make page`. Data in the page is compressed and
written in base64, whose characters mean nothing in HTML.
"""

import base64
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ImageError, InvalidRecord
from ..trajectories.records import storing, whole_file
from ._filters import Filter
from ._resources import Resources, as_json, error_of

PAGE = Path(__file__).with_name("page.html")
_MARK = b"<!--data-->"


def write_page(path: Path, resources: Resources, chosen: Filter) -> int:
    """Write a page that holds the episodes that a filter chooses, with all their tokens and prompts.

    Args:
        path: The file; it works without a network.
        resources: The runs.
        chosen: The filter.

    Returns:
        The number of episodes in it.

    Raises:
        StorageError: If it cannot be written.
    """
    before, _, after = PAGE.read_bytes().partition(_MARK)
    count = 0
    with whole_file(path) as unfinished, storing(path), unfinished.open("wb") as file:
        file.write(before)
        for name, value in _answers(resources, chosen):
            count += name.startswith("episode/")
            key, data = base64.b64encode(name.encode()), gzip.compress(as_json(value), 6, mtime=0)
            file.write(b'<script type="text/plain" class="data" data-name="%s">' % key)
            file.write(base64.b64encode(data) + b"</script>\n")
        file.write(after)
    return count


def _answers(resources: Resources, chosen: Filter) -> Iterator[tuple[str, Any]]:
    """Yield the data of the page: the name of each request, and its answer. Each image occurs once."""
    written: set[str] = set()
    yield "runs", {**resources.runs(), "follow": False}
    for run, source in enumerate(resources.sources):
        source.refresh()
        rows = [row for row, match in source.search(chosen) if match is not None]
        answer = {"generation": 0, "start": 0, "rows": rows, "more": False, "unread_bytes": source.unread_bytes}
        yield f"rows/{run}", {**answer, "is_complete": source.info.is_complete}
        for line in [row.line for row in rows if not row.is_damaged]:
            try:
                shown = resources.episode(run, line)
                yield f"episode/{run}/{line}", shown
                for context in shown["contexts"]:
                    yield f"tokens/{run}/{line}/{context['name']}", resources.tokens(run, line, context["name"])
                for step in shown["steps"]:
                    yield f"prompt/{run}/{line}/{step['index']}", resources.prompt(run, line, step["index"])
            except InvalidRecord as error:  # the row was readable, but not all of the record is
                yield f"episode/{run}/{line}", error_of(error)
                continue
            for sha256 in shown["images"].keys() - written:
                written.add(sha256)
                try:
                    media_type, data = resources.image(run, line, sha256)
                    image = {"url": f"data:{media_type};base64,{base64.b64encode(data).decode()}"}
                except (ImageError, OSError) as error:
                    image = error_of(error)
                yield f"image/{sha256}", image
