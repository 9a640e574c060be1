"""ComfyUI's own web interface on the engine, as its user works with it, in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.interface import Interface
from tests.browser.visitor import visitor
from tests.engine.server.running_engine import RunningEngine, running_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHECKPOINT = "v1-5-pruned-emaonly-fp16.safetensors"  # as the template names it


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
