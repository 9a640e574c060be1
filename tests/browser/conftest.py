"""A real Chromium, headless, and a worker with the demo model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.flow.running_worker import RunningWorker, running_worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Skips where there is no Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS), headless=True)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    with running_worker(tmp_path_factory.mktemp("base"), None) as running:
        yield running


@pytest.fixture
def worker(shared_worker: RunningWorker) -> RunningWorker:
    """Return the worker without the jobs of earlier tests, which its gallery would show."""
    for job in shared_worker.get("/jobs?limit=1000").json()["jobs"]:
        shared_worker.http.post(f"/cancel/{job['id']}")
        shared_worker.http.delete(f"/jobs/{job['id']}")
    return shared_worker
