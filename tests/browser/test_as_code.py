"""The form as code: what is copied runs, with the values that are in the form."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tests.browser.visitor import visitor
from tests.flow.running_worker import RunningWorker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "workflow" / "workflow.json"
PROMPT = """a red apple on a "blue" background, it's 50 $HOME \\ `x`"""
RUNS = {"curl": ("bash", "run.sh"), "python": (sys.executable, "run.py"), "javascript": ("node", "run.mjs")}


def program(page: Page, language: str) -> str:
    page.click("#code")
    page.select_option("#code-language", language)
    text = page.locator("#code-text").text_content() or ""
    page.locator("#program").get_by_role("button", name="Close").click()
    return text


def test_copied_programs_run_with_what_is_in_the_form(browser: Browser, worker: RunningWorker, tmp_path: Path) -> None:
    with visitor(browser) as guest:
        page = guest.page
        page.goto(worker.url)
        guest.wait_for("#field-prompt")
        page.select_option("#modifier", "A workflow file")
        page.set_input_files("#field-workflow", EXAMPLE)
        guest.wait_for('[id="field-2.text"]')
        page.fill('[id="field-2.text"]', PROMPT)
        page.fill('[id="field-5.steps"]', "1")
        programs = {language: program(page, language) for language in RUNS}
        page.click("#code")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save workflow.json").click()
        download.value.save_as(tmp_path / "workflow.json")
        guest.keep_image("page_code")
        assert not guest.complaints
    for language, (command, name) in RUNS.items():
        if shutil.which(command) is None:
            continue
        (tmp_path / name).write_text(programs[language])
        done = subprocess.run([command, name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "completed" in done.stdout, done.stdout
        found = worker.get("/jobs?details=true&limit=1").json()["jobs"][0]
        assert found["title"] == PROMPT and found["parameters"]["overrides"]["5.steps"] == 1
    assert list(tmp_path.glob("star_*_.png"))


def test_an_image_a_webhook_and_a_store_are_in_code(browser: Browser, worker: RunningWorker, tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), "teal").save(tmp_path / "teal.png")
    with visitor(browser) as guest:
        page = guest.page
        page.goto(f"{worker.url}/#modifier=Upscale")
        guest.wait_for("#field-input_image")
        page.set_input_files("#field-input_image", tmp_path / "teal.png")
        (tmp_path / "run.py").write_text(program(page, "python"))
        page.click("#code")
        page.get_by_label("with a webhook").check()
        page.get_by_label("into S3").check()
        text = page.locator("#code-text").text_content() or ""
        assert '"webhook": {' in text and '"bucket_name": "images"' in text and "/generate \\" in text
        assert not guest.complaints
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "completed" in done.stdout, done.stderr
