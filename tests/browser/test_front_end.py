"""ComfyUI's own web interface on the engine, as its user works with it, in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.visitor import SECONDS, Visitor, visitor
from tests.engine.server.running_engine import RunningEngine, running_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, WebSocket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHECKPOINT = "v1-5-pruned-emaonly-fp16.safetensors"  # as the template names it
KNOWN = "Cannot read properties of undefined (reading 'id')"
"""Raised by the package itself, 1.28.9, while it registers its settings; until a later one does not."""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Path:
    base = tmp_path_factory.mktemp("front_end")
    (base / "models" / "checkpoints").mkdir(parents=True)
    os.link(small_checkpoint, base / "models" / "checkpoints" / CHECKPOINT)
    return base


@pytest.fixture(scope="session")
def engine(base: Path) -> Iterator[RunningEngine]:
    pytest.importorskip("comfyui_frontend_package", reason="the extra front-end is not installed")
    with running_engine(base, "--front-end", "--preview-method", "auto") as running:
        yield running


class Interface:
    """The interface in a visitor's browser, and what its WebSocket brought."""

    def __init__(self, guest: Visitor, url: str) -> None:
        self.guest = guest
        self.page = guest.page
        self.messages: list[str] = []
        self.num_previews = 0
        self.url = url
        self.page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framereceived", self._take)

    def _take(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self.num_previews += 1
        else:
            self.messages.append(json.loads(frame)["type"])

    def open(self) -> None:
        """Load the page, and wait for the workflow of the last visit."""
        self.page.goto(self.url)
        self.guest.wait_for("textarea.comfy-multiline-input")

    def widget(self, class_type: str, name: str) -> Any:
        return self.page.evaluate(
            "([type, name]) => app.graph.nodes.find((node) => node.type === type)"
            ".widgets.find((widget) => widget.name === name).value",
            [class_type, name],
        )

    def edit_number(self, class_type: str, name: str, value: str) -> None:
        """Double-click a number on the canvas and type another."""
        place = self.page.evaluate(
            """([type, name]) => {
                const node = app.graph.nodes.find((node) => node.type === type);
                const widget = node.widgets.find((widget) => widget.name === name);
                const corner = app.canvas.canvas.getBoundingClientRect();
                const at = [node.pos[0] + node.size[0] / 2, node.pos[1] + widget.last_y + 12];
                const [x, y] = app.canvas.ds.convertOffsetToCanvas(at);
                return [corner.x + x, corner.y + y];
            }""",
            [class_type, name],
        )
        self.page.mouse.dblclick(*place)
        self.page.locator(".graphdialog input.value").fill(value)
        self.page.keyboard.press("Enter")

    def run(self) -> None:
        """Queue the workflow and wait until its picture is shown."""
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.wait_for_function(
            "() => app.graph.nodes.find((node) => node.type === 'SaveImage').imgs?.length", timeout=SECONDS * 1000
        )

    def complaints(self) -> list[str]:
        """What the browser complained of, but for addresses of the Internet that cannot be reached."""
        own = (line for line in self.guest.complaints if KNOWN not in line)
        return [line for line in own if self.url in line or "http" not in line]


def test_a_template_is_loaded_edited_drawn_saved_and_found_in_the_history(
    browser: Browser, engine: RunningEngine, base: Path
) -> None:
    with visitor(browser, width=1500, height=900) as guest:
        interface, page = Interface(guest, engine.url), guest.page
        page.goto(engine.url)  # the first visit opens the templates
        page.get_by_placeholder("Search...").fill("Image Generation")
        page.get_by_text("Image Generation", exact=True).last.click()
        guest.wait_for("textarea.comfy-multiline-input", count=2)
        interface.edit_number("KSampler", "steps", "3")
        interface.edit_number("EmptyLatentImage", "width", "128")
        interface.edit_number("EmptyLatentImage", "height", "128")
        page.locator("textarea.comfy-multiline-input").first.fill("a lighthouse")
        interface.run()
        assert {"execution_start", "progress", "progress_state", "executed", "execution_success"} <= set(
            interface.messages
        )
        assert interface.num_previews >= 2
        assert interface.widget("KSampler", "steps") == 3

        page.keyboard.press("Control+s")
        name = page.get_by_role("dialog").get_by_role("textbox")
        name.fill("my lighthouse")
        page.keyboard.press("Enter")
        page.get_by_text("my lighthouse").first.wait_for()
        stored = json.loads((base / "user" / "default" / "workflows" / "my lighthouse.json").read_text())
        assert "a lighthouse" in json.dumps(stored)

        interface.open()
        interface.edit_number("KSampler", "steps", "7")
        page.get_by_role("button", name="Queue").first.click()
        page.locator(".task-item img, .sidebar-content-container img").first.click(button="right")
        page.get_by_text("Load Workflow").click()
        page.wait_for_function(
            "() => app.graph.nodes.find((node) => node.type === 'KSampler')"
            ".widgets.find((widget) => widget.name === 'steps').value === 3"
        )
        guest.keep_picture("front_end")
        assert not interface.complaints()
