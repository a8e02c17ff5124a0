"""Replaces a generated table in a page, between two comments."""


def replaced(text: str, block: str, table: str) -> str:
    """Return the page with a table between the comments of its block."""
    begin, end = f"<!-- {block}: begin -->\n", f"<!-- {block}: end -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{table}{end}{after}"
