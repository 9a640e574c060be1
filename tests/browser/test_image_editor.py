"""The editor of image fields: a mask by pointer and keyboard, undo, turn and cut, and colours kept below the mask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tests.browser.visitor import Visitor, visitor
from tests.flow.running_worker import RunningWorker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEAL = (0, 128, 128)


def open_editor(guest: Visitor, worker: RunningWorker, tmp_path: Path) -> None:
    """Open the editor for a wide image in the form of Inpaint."""
    Image.new("RGB", (64, 32), TEAL).save(tmp_path / "teal.png")
    guest.page.goto(f"{worker.url}/#modifier=Inpaint")
    guest.wait_for("#field-input_image")
    guest.page.set_input_files("#field-input_image", tmp_path / "teal.png")
    guest.page.get_by_role("button", name="Edit or mask").first.click()
    guest.wait_for("#editor canvas")


def sent_image(guest: Visitor, worker: RunningWorker) -> Image.Image:
    """Close the editor, run the form, and return the image as the worker received it."""
    page = guest.page
    page.get_by_role("button", name="Done").click()
    page.locator(".drop span", has_text="teal-edited.png").wait_for()
    page.fill("#field-prompt", "a yellow star")
    page.fill("#field-steps", "1")
    before = set(worker.base.glob("input/darkroom/*.png"))
    page.click("#draw")
    guest.wait_for(".card.done img")
    (path,) = set(worker.base.glob("input/darkroom/*.png")) - before
    with Image.open(path) as image:
        image.load()
        return image


def test_what_is_painted_is_the_mask_and_its_colours_stay(
    browser: Browser, worker: RunningWorker, tmp_path: Path
) -> None:
    with visitor(browser, width=390, height=800) as guest:
        open_editor(guest, worker, tmp_path)
        page = guest.page
        box = page.locator("#editor canvas").bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.25, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.4, middle, steps=4)
        page.mouse.up()
        guest.keep_image("page_mask")
        image = sent_image(guest, worker)
        assert (image.mode, image.size) == ("RGBA", (64, 32))
        assert image.getpixel((20, 16)) == (*TEAL, 0)
        assert image.getpixel((60, 16)) == (*TEAL, 255)
        assert not guest.complaints


def test_the_keyboard_paints_undoes_turns_and_cuts(browser: Browser, worker: RunningWorker, tmp_path: Path) -> None:
    with visitor(browser) as guest:
        open_editor(guest, worker, tmp_path)
        page = guest.page
        canvas = page.locator("#editor canvas")
        canvas.press("Space")
        canvas.press("Control+z")
        assert page.get_by_role("button", name="Undo").is_disabled()
        page.get_by_role("button", name="Turn").click()
        page.get_by_label("Cut out").check()
        canvas.press("Space")  # one corner is in the middle of the image, which is 32 by 64 now
        for _ in range(12):
            canvas.press("ArrowDown")
            canvas.press("ArrowRight")
        canvas.press("Space")
        image = sent_image(guest, worker)
        assert image.width == 16 and 20 <= image.height <= 26  # to the right edge, and as far down as the brush went
        assert image.getpixel((2, 2)) == (*TEAL, 255)
        assert not guest.complaints
