"""Removal of the server's folders from texts that an engine of ours sends about a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from darkroom.worker.errors import Problem


def prefixes_of(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the prefixes to remove before names in these folders: their parents, the longest first.

    A folder in the root itself is removed whole.
    """
    absolute = {folder.absolute() for folder in folders}
    shown = {folder if len(folder.parts) <= 2 else folder.parent for folder in absolute}
    return tuple(sorted((f"{folder}/" for folder in shown), key=len, reverse=True))


def without_folders(text: str, prefixes: Sequence[str]) -> str:
    """Return a message with names relative to where the engine's folders lie."""
    for prefix in prefixes:
        if prefix in text:
            text = re.sub(rf"(?<![\w.~/-]){re.escape(prefix)}", "", text)
    return text


def problems_without_folders(problems: Iterable[Problem], prefixes: Sequence[str]) -> list[Problem]:
    """Return problems whose messages name no folder of the server."""
    return [replace(problem, message=without_folders(problem.message, prefixes)) for problem in problems]
