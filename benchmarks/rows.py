"""All rows, in the order of the page. Their contenders are registered in `contenders/<environment>/`."""

from .prompt_rows import PROMPT_ROWS
from .row import Row

ROWS: tuple[Row, ...] = PROMPT_ROWS
