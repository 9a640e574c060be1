"""The operator's page in a real browser: on a phone, by keyboard, with a day of figures; a model is installed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.contrast import faint_texts
from tests.browser.visitor import visitor
from tests.flow.running_worker import RunningWorker, running_worker
from tests.worker.models.model_server import checkpoint

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MAX_LOADED_BYTES = 60_000
PARTS = ("queue", "plots", "about", "engines", "models", "packs", "keys", "dead")
GIB = 1 << 30


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A worker whose manifest names one model that lies in another folder of this machine."""
    base = tmp_path_factory.mktemp("operated")
    (base / "elsewhere.safetensors").write_bytes(checkpoint(100_000))
    table = f'[tiny-lora]\nlabel = "A small LoRA"\nkind = "loras"\nsources = ["{base}/elsewhere.safetensors"]\n'
    (base / "models.toml").write_text(table + 'licence = "MIT"\noptional = true\n')
    with running_worker(base, None, CALLER_LIMITS="jobs_waiting=20") as worker:
        yield worker


def test_the_operator_looks_after_a_worker_on_a_phone(browser: Browser, operated: RunningWorker) -> None:
    with visitor(browser, width=390, height=844, is_dark=True) as guest:
        page = guest.page
        asked: list[str] = []
        loaded: list[int] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on(
            "response", lambda reply: loaded.append(int(reply.headers.get("content-length", "0")) * is_file(reply.url))
        )
        page.goto(f"{operated.url}/admin")
        guest.wait_for("#keys dd")
        for part in PARTS:
            assert page.locator(f"#{part} > *").count(), part
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert "Jobs that wait" in page.inner_text("#keys")
        assert "There are no packs of custom nodes." in page.inner_text("#packs")
        assert faint_texts(page) == []
        assert all(url.startswith(operated.url) for url in asked)
        assert 0 < sum(loaded) < MAX_LOADED_BYTES

        page.fill("#models-words", "tiny")
        page.select_option("#models-group", "LoRAs")
        page.get_by_role("button", name="Install tiny-lora").click()
        page.get_by_role("row", name="tiny-lora").get_by_role("cell", name="here", exact=True).wait_for()
        assert (operated.base / "models" / "loras" / "elsewhere.safetensors").is_file()
        assert not guest.complaints


def test_the_first_figures_come_from_the_worker_itself(browser: Browser, operated: RunningWorker) -> None:
    with visitor(browser) as guest:
        page = guest.page
        page.goto(f"{operated.url}/admin")
        page.locator("figure", has_text="RAM").locator("svg path.line").first.wait_for(state="attached")
        assert "engine 0" in page.locator("figure", has_text="RAM").inner_text()
        assert faint_texts(page) == []
        assert not guest.complaints


def is_file(url: str) -> bool:
    """Return True for the address of the page or of a part of it."""
    return "/page/" in url or url.endswith("/admin")


def a_day() -> dict[str, Any]:
    """A day of a worker with one GPU, in intervals of 10 minutes, that was stopped for two hours."""
    points = range(144)
    busy = [0.5 - 0.5 * math.cos(index / 144 * 2 * math.pi) for index in points]

    def series(name: str, values: Sequence[float], is_counter: bool = False, **labels: str) -> dict[str, Any]:
        shown = [None if 30 <= index < 42 else value for index, value in enumerate(values)]
        return {"name": f"darkroom_{name}", "labels": labels, "is_counter": is_counter, "values": shown}

    ended = [round(120 * share + 20 * math.sin(index)) for index, share in enumerate(busy)]
    jobs = [max(0, count) for count in ended]
    found = [
        series("jobs_ended_total", jobs, True, state="completed"),
        series("jobs_ended_total", [float(index % 17 == 0) * 3 for index in points], True, state="failed"),
        series("job_failures_total", [float(index % 17 == 0) * 3 for index in points], True, code="out_of_memory"),
        series("requests_refused_total", [float(index % 5 == 0) for index in points], True, code="request_rejected"),
        series("queue_jobs", [float(round(9 * share**3)) for share in busy]),
        series(
            "job_wait_seconds_sum", [count * (1 + 20 * share**3) for count, share in zip(jobs, busy, strict=True)], True
        ),
        series("job_wait_seconds_count", jobs, True),
        series("job_run_seconds_sum", [count * 3.1 for count in jobs], True),
        series("job_run_seconds_count", jobs, True),
        series("memory_total_bytes", [64.0 * GIB for _ in points]),
        series("memory_available_bytes", [(40 - 12 * share) * GIB for share in busy]),
        series("engine_memory_bytes", [(6 + 10 * share) * GIB for share in busy], engine="0"),
        series("front_memory_bytes", [0.09 * GIB for _ in points]),
        series("gpu_memory_used_bytes", [(9 + 12 * (index % 24 > 6)) * GIB for index in points], gpu="0"),
        series("gpu_memory_total_bytes", [24.0 * GIB for _ in points], gpu="0"),
        series("gpu_utilization_ratio", [0.97 * share for share in busy], gpu="0"),
    ]
    return {"ends_at_ms": int(time.time() * 1000), "interval_seconds": 600.0, "series": found}


def test_a_day_is_plotted_with_its_gap_and_read_off_by_keyboard(browser: Browser, operated: RunningWorker) -> None:
    def answer(route: Route) -> None:
        route.fulfill(json=a_day())

    with visitor(browser, height=900) as guest:
        page = guest.page
        page.route("**/metrics/history?*", answer)
        page.goto(f"{operated.url}/admin")
        with page.expect_request("**/metrics/history?hours=24&points=144"):
            page.select_option("#hours", "24")
        memory = page.locator("figure", has_text="Device memory")
        memory.locator("svg path.line-0").nth(1).wait_for(state="attached")
        assert memory.locator("svg path").count() == 2  # before the stop and after it
        area = memory.get_by_role("img")
        assert area.get_attribute("aria-label") == "Device memory: GPU 0 21.0 GiB; highest 21.0 GiB"
        assert memory.locator(".marks").inner_text().split() == ["24.0", "GiB", "12.0", "GiB", "0", "bytes"]
        area.focus()
        page.keyboard.press("Home")
        assert "GPU 0 9.0 GiB" in memory.locator(".legend").inner_text()
        page.keyboard.press("PageDown")
        assert "GPU 0 21.0 GiB" in (area.get_attribute("aria-label") or "")
        area.blur()
        errors = page.locator("figure", has_text="Errors by kind").locator("li")
        assert errors.all_inner_texts()[0].split() == ["request_rejected", "(refused)", "26"]
        assert faint_texts(page) == []
        guest.keep_image("page_admin")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.locator("#plots").scroll_into_view_if_needed()
        guest.keep_image("page_admin_small")
        assert not guest.complaints
