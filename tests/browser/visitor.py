"""A visitor of a page: its browser's page, and what went wrong in it."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page

IMAGES = Path(__file__).parents[2] / "docs" / "images"
ANIMATION_PX, FRAME_MS, LAST_FRAMES = 800, 200, 10
SECONDS = 90.0
"""For an image of the demo model on a busy machine."""


@dataclass
class Visitor:
    page: Page
    complaints: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def wait_for(self, selector: str, *, count: int = 1) -> None:
        """Wait until so many elements are visible."""
        self.page.locator(selector).nth(count - 1).wait_for(timeout=SECONDS * 1000)

    def keep_image(self, name: str) -> None:
        """Write the page as an image of the documentation where WRITE_PICTURES is set."""
        if os.environ.get("WRITE_PICTURES"):
            self.page.screenshot(path=IMAGES / f"{name}.jpg", type="jpeg", quality=80)

    def wait_with_frames(self, selector: str, name: str) -> None:
        """Wait until an element is visible; where WRITE_PICTURES is set, write what is seen meanwhile as animation."""
        if not os.environ.get("WRITE_PICTURES"):
            return self.wait_for(selector)
        frames: list[Image.Image] = []
        until = time.monotonic() + SECONDS
        while not self.page.locator(selector).count() and time.monotonic() < until:
            frames.append(self._frame())
        frames += [self._frame()] * LAST_FRAMES
        frames[0].save(
            IMAGES / f"{name}.webp", save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0, quality=60
        )
        return None

    def _frame(self) -> Image.Image:
        image = Image.open(io.BytesIO(self.page.screenshot(type="jpeg", quality=90)))
        image.thumbnail((ANIMATION_PX, ANIMATION_PX), Image.Resampling.LANCZOS)
        return image


@contextmanager
def visitor(browser: Browser, *, width: int = 1280, height: int = 800, is_dark: bool = False) -> Iterator[Visitor]:
    """Yield a visitor with an empty profile."""
    with browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if is_dark else "light"
    ) as context:
        context.set_default_timeout(SECONDS * 1000)
        found = Visitor(context.new_page())
        found.page.on("console", found.on_console)
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        yield found
