"""The part of a page between two marks, which a script generates."""

from __future__ import annotations

import textwrap

PAGE_WIDTH = 120


def with_part(text: str, part: str, begin: str, end: str) -> str:
    """Return `text` with `part` between the marks. Raises ValueError without them."""
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"no {begin} ... {end} in the text")
    return f"{before}{begin}\n{part}\n{end}{after}"


def list_item(text: str, width: int = PAGE_WIDTH) -> str:
    """Return an item of a Markdown list, on lines of at most `width` characters."""
    return textwrap.fill(
        text,
        width=width,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
