"""`run.sh`'s own client against a running worker: it waits, asks, saves, and says how it ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.flow.running_worker import CHECKPOINT, ROOT, RunningWorker


def first_image(
    url: str, process_id: int, output: Path, checkpoint: str = CHECKPOINT
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "first_image.py"), "--url", url, "--process-id", str(process_id)]
    command += [
        "--checkpoint",
        checkpoint,
        "--prompt",
        "a fox",
        "--size",
        "64",
        "--steps",
        "1",
        "--output",
        str(output),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_saves_the_image_and_shows_the_result_without_its_bytes(
    worker: RunningWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which is not asked: the worker is on this machine
    done = first_image(worker.url, worker.process.pid, tmp_path / "new" / "first.png")
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "new" / "first.png").size == (64, 64)
    assert '"status": "completed"' in done.stdout and "characters of base64)" in done.stdout
    assert len(done.stdout) < 4000


def test_a_refusal_is_shown_and_no_image(worker: RunningWorker, tmp_path: Path) -> None:
    done = first_image(worker.url, worker.process.pid, tmp_path / "first.png", checkpoint="missing.safetensors")
    assert done.returncode == 1
    assert "missing.safetensors" in done.stdout and "HTTP 422" in done.stderr
    assert not (tmp_path / "first.png").exists()


def test_it_does_not_wait_for_a_worker_that_has_ended(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    done = first_image("http://127.0.0.1:9", ended.pid, tmp_path / "first.png")
    assert done.returncode == 1
    assert "the worker ended before it was ready" in done.stderr
