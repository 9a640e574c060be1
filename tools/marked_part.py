"""The part of a page between two marks, which a script generates."""

from __future__ import annotations


def with_part(text: str, part: str, begin: str, end: str) -> str:
    """Return `text` with `part` between the marks. Raises ValueError without them."""
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"no {begin} ... {end} in the text")
    return f"{before}{begin}\n{part}\n{end}{after}"
