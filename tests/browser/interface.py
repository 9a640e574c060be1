"""ComfyUI's web interface in a visitor's browser: what a user does on its canvas, and what its WebSocket brought."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.browser.visitor import SECONDS, Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Response, WebSocket

TEMPLATE, TEMPLATE_TITLE = "sdxlturbo_example", "SDXL Turbo"
TEMPLATE_CHECKPOINT = "sd_xl_turbo_1.0_fp16.safetensors"  # as the template names it


class Interface:
    """The interface of one engine, opened by one visitor."""

    def __init__(self, guest: Visitor, url: str) -> None:
        self.guest = guest
        self.page = guest.page
        self.messages: list[str] = []
        self.num_previews = 0
        self.url = url
        self.refused: list[str] = []
        self.page.on("websocket", self._listen)
        self.page.on("response", self._note)

    def _note(self, response: Response) -> None:
        if response.status >= 400 and response.url.startswith(self.url):
            self.refused.append(f"{response.status} {response.url}")

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

    def choose_template(self) -> None:
        """Find a template among those that the first visit shows, and load it."""
        self.page.get_by_placeholder("Search ...").last.fill(TEMPLATE_TITLE)
        self.page.get_by_text(TEMPLATE_TITLE, exact=True).last.click()
        self.guest.wait_for("textarea.comfy-multiline-input", count=2)

    def save(self, name: str) -> None:
        """Save the workflow under a name, and wait until its tab has it."""
        self.page.keyboard.press("Control+s")
        self.page.get_by_role("dialog").get_by_role("textbox").fill(name)
        self.page.keyboard.press("Enter")
        self.page.get_by_text(name).first.wait_for()

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
        field = self.page.locator(".graphdialog input.value")
        field.fill(value)
        field.press("Enter")
        field.wait_for(state="detached")  # a second dialog beside the first is ambiguous

    def run(self) -> None:
        """Queue the workflow and wait until its image is shown."""
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.wait_for_function(
            "() => app.graph.nodes.find((node) => node.type === 'SaveImage').imgs?.length", timeout=SECONDS * 1000
        )

    def complaints(self) -> list[str]:
        """Return the complaints of the browser, but for addresses of the Internet that cannot be reached."""
        return [line for line in self.guest.complaints if self.url in line or "http" not in line]
