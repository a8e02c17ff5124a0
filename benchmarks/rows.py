"""All rows, in the order of the page. Their contenders are registered in `contenders/<environment>/`."""

from .program_rows import PROGRAM_ROWS
from .prompt_rows import PROMPT_ROWS
from .row import Row
from .trajectory_rows import TRAJECTORY_ROWS

ROWS: tuple[Row, ...] = (*PROMPT_ROWS, *TRAJECTORY_ROWS, *PROGRAM_ROWS)
