"""Tables, lists, code blocks and links of a Markdown text."""

from __future__ import annotations

import re


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table row but headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for index, row in enumerate(cells) if not _is_rule(row) and not _is_heading(cells, index)]


def _is_rule(row: list[str]) -> bool:
    return set("".join(row)) <= set("- ")


def _is_heading(cells: list[list[str]], index: int) -> bool:
    return index + 1 < len(cells) and "---" in cells[index + 1][0] and _is_rule(cells[index + 1])


def list_items(text: str) -> list[str]:
    """The items of every list that is not inside of another, each on one line, without its bullet."""
    found = re.findall(r"^- (.*(?:\n  +\S.*)*)", text, flags=re.MULTILINE)
    return [" ".join(item.split()) for item in found]


def shown(text: str) -> str:
    """A line as a reader sees it: of a link its text alone."""
    return re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", text)


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def links(text: str) -> list[str]:
    """The targets of all links that stay in the repository."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors(text: str) -> set[str]:
    """Return the names for `#…` in links, as hosts of repositories derive them from headings."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
