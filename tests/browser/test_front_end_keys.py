"""ComfyUI's web interface through a worker with keys, in a real browser: the key field, a run with previews."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.interface import TEMPLATE_CHECKPOINT, Interface
from tests.browser.visitor import visitor
from tests.flow.running_worker import running_worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS = {"FRONT_END": "true", "ADMIN_API_KEYS": "boss:boss-secret", "API_KEYS": "guest:guest-secret"}


def test_a_key_opens_the_interface_and_it_draws_with_previews(
    browser: Browser, tmp_path: Path, small_checkpoint: Path
) -> None:
    pytest.importorskip("comfyui_frontend_package", reason="the extra front-end is not installed")
    folder = tmp_path / "models" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / TEMPLATE_CHECKPOINT).hardlink_to(small_checkpoint)
    environment = {**KEYS, "ENGINE_ARGS": "--preview-method auto"}
    with running_worker(tmp_path, None, **environment) as worker, visitor(browser, width=1500, height=900) as guest:
        interface, page = Interface(guest, f"{worker.url}/comfy/"), guest.page
        page.goto(f"{worker.url}/comfy")
        page.get_by_label("The interface needs a key").fill("guest-secret")
        page.get_by_role("button", name="Open the interface").click()
        page.get_by_text("This key may not open the interface").wait_for()
        guest.complaints.clear()  # 401 and 403, as they should be
        interface.refused.clear()
        page.get_by_label("The interface needs a key").fill("boss-secret")
        page.get_by_role("button", name="Open the interface").click()
        interface.choose_template()
        interface.edit_number("SDTurboScheduler", "steps", "3")
        interface.edit_number("EmptyLatentImage", "width", "128")
        interface.edit_number("EmptyLatentImage", "height", "128")
        interface.run()
        assert {"execution_start", "progress", "executed", "execution_success"} <= set(interface.messages)
        assert interface.num_previews >= 2
        interface.save("kept")
        assert (tmp_path / "user" / "default" / "workflows" / "kept.json").is_file()
        assert not interface.refused and not interface.complaints()
