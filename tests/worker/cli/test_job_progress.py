"""A job's progress on a terminal."""

from __future__ import annotations

import base64
import io

from PIL import Image
from rich.console import Console

from darkroom.client import Event
from darkroom.worker.cli.job_progress import ROWS, JobProgress, preview_of, words_of
from darkroom.worker.cli.terminal_images import ImageProtocol


def console(*, is_terminal: bool = True, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100, height=height, _environ={"TERM": "xterm"})


def written(to: Console) -> str:
    file = to.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def with_preview() -> Event:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), "blue").save(file, "JPEG")
    data = base64.b64encode(file.getvalue()).decode()
    progress = {"value": 4, "max": 20}
    raw = {"preview": {"mimetype": "image/jpeg", "data": data}, "progress": progress}
    return Event("a", "generating", percent=20.0, node_class="KSampler", raw=raw)


def test_an_event_is_told_by_its_node_and_step_or_its_place() -> None:
    assert words_of(with_preview()) == "KSampler 4/20"
    assert words_of(Event("a", "generating", node_class="VAEDecode", raw={"progress": {}})) == "VAEDecode"
    assert words_of(Event("a", "queued", "Job queued", position=3)) == "3. in the queue"
    assert words_of(Event("a", "processing", "fetching sd15 3 %")) == "fetching sd15 3 %"
    assert preview_of(Event("a", "x", raw={"preview": {"data": "?"}})) is None


def test_a_terminal_shows_bar_and_image_and_nothing_is_left_of_them() -> None:
    to = console()
    with JobProgress(to, ImageProtocol.BLOCKS) as progress:
        assert progress.wants_previews
        progress.show(with_preview())
        progress.show(with_preview())
    text = written(to)
    assert "KSampler 4/20" in text and text.count("▀") == 2 * ROWS * 2 * ROWS
    assert text.rstrip().endswith(f"\x1b[{ROWS}A\r\x1b[J")


def test_a_pipe_a_low_terminal_and_one_without_a_protocol_ask_for_no_images() -> None:
    for to, protocol in (
        (console(is_terminal=False), ImageProtocol.BLOCKS),
        (console(height=10), ImageProtocol.BLOCKS),
        (console(), None),
    ):
        with JobProgress(to, protocol) as progress:
            assert not progress.wants_previews
            progress.show(with_preview())
        assert "▀" not in written(to)
    pipe = console(is_terminal=False)
    with JobProgress(pipe, ImageProtocol.BLOCKS) as progress:
        progress.show(with_preview())
    assert written(pipe) == ""
