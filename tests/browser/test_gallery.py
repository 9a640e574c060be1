"""The gallery has every job of the key: of other devices and of programs, to be found, compared, kept and run again."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from tests.browser.visitor import Visitor, visitor
from tests.flow.running_worker import RunningWorker, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "workflow" / "workflow.json"
STAR = "a yellow star on a black background"
APPLE = "a red apple on a blue background"


def workflow(prompt: str, **values: Any) -> dict[str, Any]:
    return {"workflow_json": json.loads(EXAMPLE.read_text()), "overrides": {"2.text": prompt, "5.steps": 2, **values}}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker for which a program has made three jobs."""
    with running_worker(tmp_path, None) as worker:
        for number, prompt in enumerate((STAR, APPLE, APPLE)):
            body = {"input": {**workflow(prompt, **{"5.seed": number}), "request_id": f"program-{number}"}}
            assert worker.http.post("/generate/sync", json=body, timeout=120).status_code == 200
        yield worker


def open_gallery(guest: Visitor, url: str, count: int) -> None:
    guest.page.goto(url)
    guest.wait_for(".card.done img", count=count)


def test_jobs_of_programs_are_searched_compared_saved_run_again_and_deleted(
    browser: Browser, made: RunningWorker
) -> None:
    with visitor(browser, width=390, height=800) as guest:
        page = guest.page
        open_gallery(guest, made.url, 3)
        page.fill("#search", "RED apple")
        page.locator(".card", has_text=STAR).wait_for(state="detached")
        assert page.locator(".card").count() == 2
        for box in page.get_by_role("checkbox", name=f"Select: {APPLE}").all():
            box.check()
        assert page.inner_text("#selected") == "2 jobs selected"
        with page.expect_download() as download:
            page.click("#download")
        with zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes())) as archive:
            assert archive.testzip() is None and len(archive.namelist()) == 2
            assert Image.open(archive.open(archive.namelist()[0])).size == (128, 128)

        page.click("#compare")
        slider = page.get_by_role("slider")
        slider.focus()
        page.keyboard.press("End")
        over = page.locator("#comparison .pair img").nth(1)
        assert over.evaluate("image => image.style.clipPath") == "inset(0px 0% 0px 0px)"
        page.locator("#comparison").get_by_role("button", name="Close").click()
        page.click("#unselect")

        page.fill("#search", "")
        guest.wait_for(".card", count=3)
        page.get_by_role("button", name=f"Open: {STAR}").click()
        page.get_by_role("button", name="Use these parameters").click()
        guest.wait_for('[id="field-5.seed"]')
        assert page.input_value('[id="field-2.text"]') == STAR
        assert (page.input_value('[id="field-5.seed"]'), page.input_value('[id="field-5.steps"]')) == ("0", "2")
        page.get_by_role("button", name=f"Open: {STAR}").click()
        page.get_by_role("button", name="Again with another seed").click()
        guest.wait_for(".card.done img", count=4)
        page.get_by_role("checkbox", name=f"Select: {APPLE}").first.check()
        page.click("#delete")
        page.locator(".card").nth(3).wait_for(state="detached")
        assert len(made.get("/jobs").json()["jobs"]) == 3
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert not guest.complaints


def test_a_job_goes_on_without_its_page_and_is_seen_from_another_device(browser: Browser, made: RunningWorker) -> None:
    with visitor(browser) as first:
        page = first.page
        open_gallery(first, made.url, 3)
        page.fill("#field-prompt", STAR)
        page.fill("#field-steps", "40")
        page.click("#draw")
        page.locator(".card", has_text="Step ").wait_for()
        page.click("#draw")
        first.wait_for(".card[aria-busy]", count=2)
    with visitor(browser) as second:
        page = second.page
        page.goto(made.url)
        second.wait_for(".card", count=5)
        second.wait_for(".card.done img", count=5)
        with_image = page.locator(".card.done", has_text=STAR).first
        with_image.locator(".open").click()
        page.get_by_role("button", name="Use as input").click()
        page.locator("#problem", has_text="takes a file first").wait_for()
        page.select_option("#modifier", "Image2Image")
        second.wait_for("#field-input_image")
        with_image.locator(".open").click()
        page.get_by_role("button", name="Use as input").click()
        page.locator(".drop span", has_text=".png").wait_for()
        second.keep_image("page_gallery")
        assert not second.complaints


def test_a_job_that_another_device_sends_appears_by_itself(browser: Browser, made: RunningWorker) -> None:
    with visitor(browser) as guest:
        open_gallery(guest, made.url, 3)
        body = {"input": {**workflow(STAR, **{"5.steps": 60}), "request_id": "elsewhere"}}
        made.http.post("/generate", json=body)
        guest.wait_for(".card.done img", count=4)
        assert not guest.complaints
