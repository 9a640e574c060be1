"""Clips of a worker in a browser: they play, and a visitor can jump in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import visitor
from tests.flow.running_worker import RunningWorker
from tests.flow.video_workflow import FPS, NUM_FRAMES, SIZES_PX, clip_workflow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JUMP = """async (video) => {
  const until = (name) => new Promise((done, failed) => {
    video.addEventListener(name, done, {once: true});
    video.addEventListener('error', () => failed(new Error(video.error.message)), {once: true});
    setTimeout(() => failed(new Error(`no ${name} of ${video.currentSrc || 'a source that was refused'}`)), 30000);
  });
  video.muted = true;
  if (video.error) throw new Error(video.error.message);
  if (video.readyState < 2) await until('loadeddata');
  const jumped = until('seeked');
  video.currentTime = 2.5;
  await jumped;
  const ended = until('ended');
  await video.play();
  await ended;
  return [video.videoWidth, video.videoHeight, video.duration];
}"""


@pytest.mark.parametrize("family", SIZES_PX)
def test_a_clip_plays_in_a_page_and_in_a_tab_of_its_own(browser: Browser, worker: RunningWorker, family: str) -> None:
    body = {"input": {"workflow_json": clip_workflow(family)}}
    answer = worker.http.post("/generate/sync", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    for output in answer.json()["output"]:
        with visitor(browser) as seen:
            seen.page.goto(f"{worker.url}/live")
            seen.page.set_content(f'<video src="{output["url"]}"></video>')
            in_page = seen.page.locator("video").evaluate(JUMP)
            seen.page.goto(output["url"])
            in_tab = seen.page.locator("video").evaluate(JUMP)
        assert in_page[:2] == in_tab[:2] == list(SIZES_PX[family])
        assert in_page[2] == in_tab[2] == pytest.approx(NUM_FRAMES / FPS, abs=0.2)
