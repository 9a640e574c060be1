"""The page for everybody: nothing serious by axe-core's rules, and no request that leaves the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import Visitor, visitor
from tests.flow.running_worker import RunningWorker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERIOUS = ("serious", "critical")


def check(guest: Visitor, name: str) -> None:
    """Fail with what axe-core finds serious on the page as it is now."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(guest.page).response["violations"]
    wrong = [
        f"{name}: {rule['id']}: {rule['help']}: {[node['html'][:200] for node in rule['nodes']][:3]}"
        for rule in found
        if rule["impact"] in SERIOUS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("is_dark", [False, True])
def test_axe_finds_nothing_serious_and_all_requests_are_the_workers(
    browser: Browser, worker: RunningWorker, is_dark: bool
) -> None:
    with visitor(browser, width=390, height=800, is_dark=is_dark) as guest:
        page = guest.page
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(f"{worker.url}/#modifier=Inpaint")
        guest.wait_for("#field-input_image")
        page.click("summary")
        check(guest, "form of a modifier")
        page.click("#draw")
        guest.wait_for("#field-input_image-problem")
        check(guest, "form with problems")
        page.select_option("#modifier", label="A star")
        guest.wait_for('[id="field-3.steps"]')
        page.fill('[id="field-3.steps"]', "1")
        page.click("#code")
        check(guest, "program")
        page.locator("#program").get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Save", exact=True).click()
        check(guest, "saving")
        page.locator("#program").get_by_role("button", name="Cancel").click()
        page.click("#draw")
        guest.wait_for(".card.done img")
        check(guest, "gallery")
        page.locator(".card .open").first.click()
        guest.wait_for("#viewer .stage img")
        check(guest, "result")
        page.locator("#viewer").get_by_role("button", name="Close").click()
        page.select_option("#modifier", label="A part repainted")
        page.get_by_role("button", name="Edit or mask").click()
        guest.wait_for("#editor canvas")
        check(guest, "editor")
        foreign = [url for url in addresses if not url.startswith((worker.url, "data:", f"blob:{worker.url}"))]
        assert not foreign
