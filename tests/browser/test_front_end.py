"""ComfyUI's own web interface on the engine, as its user works with it, in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.interface import TEMPLATE_CHECKPOINT, Interface
from tests.browser.visitor import visitor
from tests.engine.server.running_engine import RunningEngine, running_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, small_checkpoint: Path) -> Path:
    base = tmp_path_factory.mktemp("front_end")
    (base / "models" / "checkpoints").mkdir(parents=True)
    os.link(small_checkpoint, base / "models" / "checkpoints" / TEMPLATE_CHECKPOINT)
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
        interface.choose_template()
        interface.edit_number("SDTurboScheduler", "steps", "3")
        interface.edit_number("EmptyLatentImage", "width", "128")
        interface.edit_number("EmptyLatentImage", "height", "128")
        page.locator("textarea.comfy-multiline-input").first.fill("a lighthouse")
        interface.run()
        assert {"execution_start", "progress", "progress_state", "executed", "execution_success"} <= set(
            interface.messages
        )
        assert interface.num_previews >= 2
        assert interface.widget("SDTurboScheduler", "steps") == 3

        interface.save("my lighthouse")
        stored = json.loads((base / "user" / "default" / "workflows" / "my lighthouse.json").read_text())
        assert "a lighthouse" in json.dumps(stored)

        interface.open()
        interface.edit_number("SDTurboScheduler", "steps", "7")
        page.get_by_test_id("queue-overlay-toggle").click()
        page.get_by_test_id("job-assets-list").get_by_text("ComfyUI_00001_").click(button="right")
        page.get_by_text("Open as workflow in new tab").click()
        page.wait_for_function(
            "() => app.graph.nodes.find((node) => node.type === 'SDTurboScheduler')"
            ".widgets.find((widget) => widget.name === 'steps').value === 3"
        )
        guest.keep_image("front_end")
        assert not interface.refused and not interface.complaints()
