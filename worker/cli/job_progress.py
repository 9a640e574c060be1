"""JobProgress: a job's progress on a terminal: node and step, time, and the unfinished image where it can be shown."""

from __future__ import annotations

import base64
import binascii
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from darkroom.client import Event
from darkroom.worker.cli.terminal_images import ImageProtocol, drawn, erased

ROWS: Final = 14
"""Lines of the image, which stands above the bar."""

LEAST_HEIGHT: Final = ROWS + 4


class JobProgress:
    """A bar on the console while its block runs, without a trace after it. Nothing off a terminal."""

    def __init__(self, console: Console, protocol: ImageProtocol | None) -> None:
        self._console = console
        is_shown = console.is_terminal and not console.quiet
        self._protocol = protocol if is_shown and console.height >= LEAST_HEIGHT else None
        self._has_room = False
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not is_shown)
        self._task = self._bar.add_task("queued", total=100)

    @property
    def wants_previews(self) -> bool:
        """True if unfinished images can be shown."""
        return self._protocol is not None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()
        if self._has_room and self._protocol is not None:
            self._write(f"{erased(self._protocol)}\x1b[{ROWS}A\r\x1b[J")

    def show(self, event: Event) -> None:
        """Show an event of the job."""
        self._bar.update(self._task, description=escape(words_of(event)), completed=event.percent)
        if self._protocol is not None and (image := preview_of(event)) is not None:
            self._draw(image, self._protocol)

    def _draw(self, image: bytes, protocol: ImageProtocol) -> None:
        """Draw an image above the bar, which is stopped meanwhile: it moves the cursor itself."""
        try:
            picture = drawn(image, protocol, ROWS)
        except ValueError:
            return  # the next one may be readable
        self._bar.stop()
        up = f"\x1b[{ROWS}A\r" if self._has_room else ""
        self._write(f"{up}{erased(protocol)}\x1b[J{chr(10) * ROWS}\x1b[{ROWS}A\r\x1b7{picture}\x1b8\x1b[{ROWS}B\r")
        self._has_room = True
        self._bar.start()

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


def words_of(event: Event) -> str:
    """Return an event in words: its node and step where it has them, else its place in the queue or its message.

    >>> words_of(Event("a", "generating", node_class="Draw", raw={"progress": {"value": 3, "max": 20}}))
    'Draw 3/20'
    """
    if event.node_class:
        progress: Any = event.raw.get("progress") or {}
        value, most = progress.get("value"), progress.get("max")
        return f"{event.node_class} {value:g}/{most:g}" if value is not None and most else event.node_class
    if event.position is not None and event.status in ("queued", "pending"):
        return f"{event.position}. in the queue"
    return event.message or event.status


def preview_of(event: Event) -> bytes | None:
    """Return the unfinished image of an event; None without one."""
    preview = event.raw.get("preview")
    data = preview.get("data") if isinstance(preview, dict) else None
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except binascii.Error:
        return None
