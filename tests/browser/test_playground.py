"""Any workflow on the worker's own page: dropped, filled in, priced, run, and kept under a name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.browser.visitor import Visitor, visitor
from tests.flow.running_worker import RunningWorker, running_worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "workflow" / "workflow.json"
APPLE = "a red apple on a blue background"
NOISE: dict[str, Any] = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 2, "color": 255}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "blue"}},
}


def drop(page: Page, path: Path, media_type: str) -> None:
    """Drop a file on the page, beside all fields."""
    transfer = page.evaluate_handle(
        """([bytes, name, type]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name, { type }));
            return transfer;
        }""",
        [list(path.read_bytes()), path.name, media_type],
    )
    page.dispatch_event("main", "drop", {"dataTransfer": transfer})


def field(guest: Visitor, target: str) -> str:
    """Wait for a workflow's field, and return its selector."""
    selector = f'[id="field-{target}"]'
    guest.wait_for(selector)
    return selector


def test_a_dropped_workflow_becomes_a_form_and_an_image(browser: Browser, worker: RunningWorker) -> None:
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        drop(page, EXAMPLE, "application/json")
        prompt = field(guest, "2.text")
        labels = page.locator("#fields > div > .grid label").all_inner_texts()
        assert labels == ["Prompt", "Negative prompt", "Width", "Height", "Steps", "Seed"]
        assert page.input_value(prompt) == "a yellow star on a black background"
        page.fill(prompt, APPLE)
        page.fill(field(guest, "5.steps"), "6")
        page.click("#draw")
        guest.wait_for(".card.done img")
        assert APPLE in page.inner_text(".card .title")
        assert page.input_value(field(guest, "5.seed")) == ""  # the next run has another seed
        page.get_by_role("button", name="Roll a new seed").click()
        assert page.input_value(field(guest, "5.seed")).isdigit()
        page.locator("#cost", has_text="about").wait_for()
        guest.keep_image("page_workflow")
        assert not guest.complaints


def test_a_number_outside_its_range_is_named_at_its_field(browser: Browser, worker: RunningWorker) -> None:
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        drop(page, EXAMPLE, "application/json")
        page.fill(field(guest, "5.steps"), "0")
        page.click("#draw")
        guest.wait_for('[id="field-5.steps-problem"]')
        assert page.get_attribute('[id="field-5.steps"]', "aria-invalid") == "true"
        assert page.locator(".card").count() == 0


def test_an_image_that_carries_its_workflow_is_one(browser: Browser, worker: RunningWorker, tmp_path: Path) -> None:
    info = PngInfo()
    info.add_text("prompt", json.dumps(NOISE))
    Image.new("RGB", (8, 8)).save(tmp_path / "noise.png", pnginfo=info)
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        drop(page, tmp_path / "noise.png", "image/png")
        page.fill(field(guest, "1.width"), "24")
        page.click("#draw")
        guest.wait_for(".card.done .count")
        decoded = "image => image.decode().then(() => image.naturalWidth)"
        assert page.locator(".card.done img").first.evaluate(decoded) == 24
        assert not guest.complaints


def test_a_template_whose_models_are_missing_says_which_and_from_where(browser: Browser, worker: RunningWorker) -> None:
    templates = pytest.importorskip("comfyui_workflow_templates_json", reason="the extra front-end is not installed")
    template = Path(templates.__file__).parent / "templates" / "sdxl_simple_example.json"
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        drop(page, template, "application/json")
        page.locator("#lacks", has_text="darkroom models fetch sdxl").wait_for()
        lacks = page.inner_text("#lacks")
        assert "sd_xl_base_1.0.safetensors (checkpoints, 6.5 GiB" in lacks
        assert "from hf://stabilityai/stable-diffusion-xl-base-1.0" in lacks
        page.fill('textarea[id^="field-"] >> nth=0', "a glass bottle")
        page.click("summary")
        assert "sd_xl_base_1.0.safetensors (not here)" in page.inner_text("details")
        guest.keep_image("page_missing")
        assert not guest.complaints


def test_a_workflow_of_a_missing_pack_names_the_pack(browser: Browser, worker: RunningWorker, tmp_path: Path) -> None:
    workflow = {**NOISE, "3": {"class_type": "IPAdapterUnifiedLoader", "inputs": {}, "_meta": {"title": "Adapter"}}}
    (tmp_path / "pack.json").write_text(json.dumps(workflow))
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        drop(page, tmp_path / "pack.json", "application/json")
        page.locator("#lacks", has_text="IPAdapterUnifiedLoader").wait_for()
        assert (page.locator("#lacks a").first.get_attribute("href") or "").startswith("https://")


def test_an_example_draws_with_what_every_worker_has(browser: Browser, worker: RunningWorker) -> None:
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        page.select_option("#modifier", label="An image redrawn")
        page.fill(field(guest, "3.steps"), "4")
        page.click("#draw")
        guest.wait_for(".card.done img")
        page.reload()
        field(guest, "3.steps")  # the address names the example
        assert not guest.complaints


def test_an_operator_keeps_a_workflow_with_fields_of_their_own_order_and_names(
    browser: Browser, tmp_path: Path
) -> None:
    keys = "shop:customer-secret:submit+read,ops:operator-secret:admin+submit+read"
    with running_worker(tmp_path, None, API_KEYS=keys) as worker, visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        page.fill("#key", "operator-secret")
        page.keyboard.press("Enter")
        page.locator("#key-form").wait_for(state="hidden")
        guest.wait_for("#field-prompt")
        drop(page, EXAMPLE, "application/json")
        field(guest, "2.text")
        page.get_by_role("button", name="Save", exact=True).click()
        page.fill("#save-name", "poster")
        page.get_by_role("textbox", name="Name of CLIP Text Encode (Prompt): Prompt").fill("Subject")
        for label in ("Negative prompt", "Width", "Height", "Seed"):
            page.get_by_role("checkbox", name=re.compile(f"{label}$")).uncheck()
        for _ in range(4):
            page.get_by_role("button", name=re.compile("^Up: KSampler: Steps")).click()
        guest.keep_image("page_save")
        page.locator("#program").get_by_role("button", name="Save", exact=True).click()
        page.locator("#about", has_text="Version 1").wait_for()
        assert page.locator("#fields > div > .grid label").all_inner_texts() == ["Steps", "Subject"]

        page.evaluate("sessionStorage.clear()")
        page.goto(f"{worker.url}/#modifier=stored:poster")
        page.reload()
        page.fill("#key", "customer-secret")
        page.keyboard.press("Enter")
        guest.wait_for('[id="field-Subject"]')
        assert page.get_by_role("button", name="Save", exact=True).is_hidden()
        page.fill('[id="field-Subject"]', APPLE)
        page.fill('[id="field-Steps"]', "2")
        page.click("#draw")
        guest.wait_for(".card.done img")
        assert not [line for line in guest.complaints if not re.search("40[13]", line)]
