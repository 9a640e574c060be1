"""The worker's own page as its visitor meets it, in a real browser."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tests.browser.visitor import visitor
from tests.flow.running_worker import RunningWorker, running_worker
from tests.s3_server import free_ports

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TIMINGS = {"queued_at_ms": 1763708400000, "total_ms": 1500}
APPLE = "a red apple on a blue background"


def test_a_visitor_draws_sees_it_grow_draws_again_and_finds_both_later(browser: Browser, worker: RunningWorker) -> None:
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        assert "1 checkpoint" in page.inner_text("#worker")
        page.fill("#field-prompt", APPLE)
        page.fill("#field-steps", "12")
        page.keyboard.press("Control+Enter")
        guest.wait_for(".card .preview")
        guest.keep_image("page_drawing")
        guest.wait_with_frames(".card.done", "page_run")

        page.click(".card .open")
        guest.wait_for("dialog[open] .stage img")
        first = dict(zip(*(page.locator(f"dialog {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
        assert (first["prompt"], first["steps"]) == (APPLE, "12")
        page.get_by_role("button", name="Again with another seed").click()
        guest.wait_for(".card.done", count=2)
        page.locator(".card .open").first.click()
        guest.wait_for("dialog[open] .stage img")
        second = dict(zip(*(page.locator(f"dialog {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
        assert second["seed"] != first["seed"] and second["Id"] != first["Id"]
        guest.keep_image("page_result")
        page.keyboard.press("ArrowRight")
        assert first["Id"] in page.inner_text("dialog dl")
        page.get_by_role("button", name="Use these parameters").click()
        assert page.input_value("#field-seed") == first["seed"]

        page.reload()
        guest.wait_for(".card.done img", count=2)
        assert not guest.complaints


def test_an_image_is_given_and_mistakes_are_named_at_their_fields(
    browser: Browser, worker: RunningWorker, tmp_path: Path
) -> None:
    Image.new("RGB", (32, 24), "teal").save(tmp_path / "teal.png")
    with visitor(browser, width=390, height=800, is_dark=True) as guest:
        page = guest.page
        page.goto(f"{worker.url}/#modifier=Upscale")
        guest.wait_for("#field-input_image")
        page.click("#draw")
        assert "is needed" in page.inner_text("#field-input_image-problem")
        drop(page, (tmp_path / "teal.png").read_bytes())
        assert page.inner_text(".drop span") == "teal.png"
        assert page.locator("#field-input_image-problem").is_hidden()
        page.click("summary")
        page.fill("#field-scale", "99")
        page.click("#draw")
        guest.wait_for("#field-scale-problem")
        assert page.get_attribute("#field-scale", "aria-invalid") == "true"
        assert page.locator(".card").count() == 0
        page.fill("#field-scale", "2")
        page.click("#draw")
        guest.wait_for(".card.done img")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        guest.keep_image("page_small")
        refused = [line for line in guest.complaints if "422" not in line]
        assert not refused


def drop(page: Page, content: bytes) -> None:
    """Drop a file on the field for an image, as from a file manager."""
    transfer = page.evaluate_handle(
        """(bytes) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "teal.png", { type: "image/png" }));
            return transfer;
        }""",
        list(content),
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": transfer})


def test_a_workflow_file_is_a_request(browser: Browser, worker: RunningWorker, tmp_path: Path) -> None:
    workflow = tmp_path / "noise.json"
    workflow.write_text(
        '{"1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 2, "color": 255}},'
        ' "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "blue"}}}'
    )
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        page.select_option("#modifier", "A workflow file")
        page.set_input_files("#field-workflow", workflow)
        page.click("#draw")
        guest.wait_for(".card.done .count")
        assert page.inner_text(".card .count") == "2"
        assert not guest.complaints


def test_keys_are_asked_for_and_the_operator_sees_the_engines(browser: Browser, tmp_path: Path) -> None:
    keys = "shop:customer-secret:submit+read,ops:operator-secret:admin"
    with running_worker(tmp_path, None, API_KEYS=keys) as worker, visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#key-form")
        page.fill("#key", "not-a-key")
        page.keyboard.press("Enter")
        page.get_by_text(re.compile("does not accept this key|none of the worker's")).first.wait_for()
        page.fill("#key", "customer-secret")
        page.keyboard.press("Enter")
        page.locator("#key-form").wait_for(state="hidden")
        page.fill("#field-steps", "2")
        page.click("#draw")
        guest.wait_for(".card.done img")
        assert "secret" not in page.evaluate("JSON.stringify(localStorage)")

        page.goto(f"{worker.url}/admin")
        guest.wait_for("#key-form")
        page.fill("#key", "operator-secret")
        page.keyboard.press("Enter")
        guest.wait_for(".engine dl")
        page.get_by_role("cell", name="darkroom-emoji").first.wait_for()
        assert "No job waits or runs." in page.inner_text("#queue")
        refused = [line for line in guest.complaints if not re.search("40[13]|/jobs", line)]
        assert not refused


def test_the_operator_sees_the_last_jobs_and_those_that_failed(browser: Browser, worker: RunningWorker) -> None:
    job = {"id": "broken", "owner": "shop", "status": "failed", "message": "Generation failed", "timings": TIMINGS}

    def answer(route: Route) -> None:
        route.fulfill(json={"jobs": [{**job, "error": {"message": "<b>out of memory</b>"}}], "next_cursor": None})

    with visitor(browser) as guest:
        page = guest.page
        page.route("**/jobs?*", answer)
        page.goto(f"{worker.url}/admin")
        page.get_by_role("cell", name="<b>out of memory</b>").wait_for()
        with page.expect_request(re.compile("state=failed")):
            page.select_option("#jobs-state", "failed")
        assert not guest.complaints


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_cards_outlive_a_restart_of_the_worker(browser: Browser, tmp_path: Path, number: signal.Signals) -> None:
    (port,) = free_ports(1)
    with visitor(browser) as guest:
        page = guest.page
        with running_worker(tmp_path, None, WORKER_PORT=str(port)) as worker:
            page.goto(worker.url)
            guest.wait_for("#field-prompt")
            page.locator("#banner", has_text="darkroom models fetch sd15").wait_for()
            page.fill("#field-prompt", APPLE)
            page.fill("#field-steps", "100")
            for count in (1, 2):
                page.click("#draw")
                guest.wait_for(".card [class=status]", count=count)
            page.locator(".card", has_text="Step ").first.wait_for()
            worker.process.send_signal(number)
            worker.process.wait(timeout=60)
            page.locator(".card", has_text="The worker is restarting").first.wait_for()
            page.locator("#worker", has_text="does not answer").wait_for()
            page.click("#draw")
            unsent = page.get_by_role("button", name="Send again")
            unsent.wait_for()
            guest.keep_image("page_restarting")
        with running_worker(tmp_path, None, WORKER_PORT=str(port)):
            guest.wait_for(".card.done", count=2)
            unsent.click()
            guest.wait_for(".card.done", count=3)
            page.locator("#worker", has_text="an image, of the last").wait_for()
            assert page.locator(".card").count() == 3
            assert page.locator(".card .problem:visible").count() == 0
            assert "emoji" in page.locator(".card .remarks").first.inner_text()
            page.locator(".card .open").first.click()
            guest.wait_for("dialog[open] .stage img")
            assert "darkroom models fetch sd15" in page.inner_text("dialog")
        refused = [line for line in guest.complaints if "ERR_CONNECTION_REFUSED" not in line and "ERR_" not in line]
        assert not refused


def test_a_page_that_is_opened_while_the_worker_is_away_goes_on_when_it_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with visitor(browser) as guest:
        page = guest.page
        with running_worker(tmp_path, None, WORKER_PORT=str(port)) as worker:
            page.goto(worker.url)
            guest.wait_for("#field-prompt")
            page.route("**/worker", lambda route: route.abort())
            page.route("**/queue-info", lambda route: route.abort())
            page.reload()
            page.locator("#worker", has_text="does not answer").wait_for()
            page.unroute_all()
            page.locator("#worker", has_text="1 checkpoint").wait_for()
            guest.wait_for("#field-prompt")
