"""Another engine beside the worker's: both processes, and what is left of a job when either is killed.

A small stand-in for ComfyUI plays the other one, and ComfyUI itself where `TEST_COMFYUI` names it as FALLBACK_ENGINE
does: `TEST_COMFYUI='/path/to/python /path/to/ComfyUI/main.py'`.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flow.running_worker import CHECKPOINT, ROOT, RunningWorker, running_worker
from tests.worker.engines.fallback.stand_in import install

COMFYUI = os.environ.get("TEST_COMFYUI", "")
with_comfyui = pytest.mark.skipif(not COMFYUI, reason="TEST_COMFYUI names no ComfyUI, in the form of FALLBACK_ENGINE")

PACK = """
import time
import comfy.utils

class OnlyThere:
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",), "seconds": ("FLOAT", {"default": 0.0, "max": 600.0})}}

    def run(self, image, seconds):
        num_steps = int(seconds * 10)
        bar = comfy.utils.ProgressBar(num_steps)
        for _ in range(num_steps):
            time.sleep(0.1)
            bar.update(1)
        return (1.0 - image,)

NODE_CLASS_MAPPINGS = {"OnlyThere": OnlyThere}
"""


def inverted(seconds: float = 0.0) -> dict[str, Any]:
    blank = {"width": 64, "height": 64, "batch_size": 1, "color": 0}
    return {
        "1": {"class_type": "EmptyImage", "inputs": blank},
        "2": {"class_type": "OnlyThere", "inputs": {"image": ["1", 0], "seconds": seconds}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "inverted"}},
    }


def blank() -> dict[str, Any]:
    return {
        "1": inverted()["1"],
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "blank"}},
    }


def settings_with(folder: Path) -> dict[str, str]:
    """Settings of a worker whose fallback has a pack that its own engine lacks."""
    packs = folder / "comfy" / "custom_nodes"
    packs.mkdir(parents=True, exist_ok=True)
    (packs / "only_there.py").write_text(PACK)
    return {"FALLBACK_ENGINE": f"{COMFYUI} --base-directory {folder / 'comfy'}"}


def submit(worker: RunningWorker, name: str, workflow: dict[str, Any]) -> None:
    """Send a job, again while the fallback starts for the first time."""
    body = {"input": {"request_id": name, "workflow_json": workflow}}

    def is_answered() -> httpx.Response | None:
        answer = worker.http.post("/generate", json=body, timeout=120)
        return None if answer.status_code == 503 else answer

    answer: httpx.Response = until(is_answered)
    assert answer.status_code == 202, answer.text


def until(is_so: Callable[[], Any], seconds: float = 300.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := is_so():
            return found
        time.sleep(0.1)
    raise TimeoutError


def ended(worker: RunningWorker, name: str) -> dict[str, Any]:
    def result() -> dict[str, Any] | None:
        found: dict[str, Any] = worker.get(f"/result/{name}").json()
        return found if found["status"] in ("completed", "failed", "cancelled") else None

    return until(result)  # type: ignore[no-any-return]


def is_computing(worker: RunningWorker, name: str) -> bool:
    return str(worker.get(f"/result/{name}").json()["message"]).startswith("Progress")


@with_comfyui
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_our_engine_lacks_runs_there_and_the_rest_here(tmp_path: Path, small_checkpoint: Path) -> None:
    with running_worker(tmp_path, small_checkpoint, **settings_with(tmp_path)) as worker:
        assert worker.get("/health").json()["fallback"]["state"] == "idle"
        submit(worker, "there", inverted())
        there = ended(worker, "there")
        assert there["status"] == "completed", there
        assert there["engine"]["name"] == "fallback" and "OnlyThere" in there["engine"]["reason"]
        assert worker.output_bytes(there).startswith(b"\x89PNG")
        submit(worker, "here", blank())
        here = ended(worker, "here")
        assert here["status"] == "completed" and not here.get("engine")
        models = {**inverted(), "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}}}
        plan = worker.http.post("/plan", json={"workflow_json": models}, timeout=120).json()
        assert plan["can_run"] and plan["engine"]["name"] == "fallback", plan
        health = worker.get("/health").json()["fallback"]
        assert health["state"] == "up" and health["starts"] == 1 and health["engine"]["memory_bytes"] > 10**8


@with_comfyui
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_there_is_cancelled_and_its_time_limit_holds(tmp_path: Path, small_checkpoint: Path) -> None:
    with running_worker(tmp_path, small_checkpoint, **settings_with(tmp_path)) as worker:
        submit(worker, "long", inverted(300))
        until(lambda: is_computing(worker, "long"))
        worker.http.post("/cancel/long", timeout=30)
        assert ended(worker, "long")["status"] == "cancelled"
        body = {"input": {"request_id": "short", "workflow_json": inverted(300), "timeout": 2}}
        result = worker.http.post("/generate/sync", json=body, timeout=120).json()
        assert result["error"]["code"] == "job_timed_out", result


@with_comfyui
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_survives_the_end_of_the_fallback_and_of_the_worker(tmp_path: Path, small_checkpoint: Path) -> None:
    settings = settings_with(tmp_path)
    with running_worker(tmp_path, small_checkpoint, **settings) as worker:
        submit(worker, "job", inverted(8))
        until(lambda: is_computing(worker, "job"))
        pid = worker.get("/health").json()["fallback"]["engine"]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert ended(worker, "job")["status"] == "completed"
        assert sum(worker.get("/health").json()["fallback"]["engine"]["restarts"].values()) == 1
        submit(worker, "other", inverted(9))  # not the same, which ComfyUI would have in its cache
        until(lambda: is_computing(worker, "other"))
        pid = worker.get("/health").json()["fallback"]["engine"]["pid"]
        worker.process.kill()
        worker.process.wait()
        until(lambda: not Path(f"/proc/{pid}").exists(), seconds=30)  # it does not outlive the worker
    with running_worker(tmp_path, small_checkpoint, **settings) as worker:
        result = ended(worker, "other")
        assert result["status"] == "completed" and result["engine"]["name"] == "fallback"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("bwrap") is None, reason="needs root and bubblewrap")
def test_the_sandbox_holds_the_fallback_and_lets_its_jobs_through(small_checkpoint: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        folder = install(base / "ComfyUI")
        settings = {"FALLBACK_ENGINE": str(folder), "ENGINE_SANDBOX": "bwrap", "ENGINE_SANDBOX_PATHS": str(ROOT)}
        with running_worker(base, small_checkpoint, **settings) as worker:
            submit(worker, "there", {"1": {"class_type": "Draw", "inputs": {"text": "drawn", "size": 1}}})
            there = ended(worker, "there")
            assert there["status"] == "completed" and worker.output_bytes(there) == b"drawn"
            engine = worker.get("/health").json()["fallback"]["engine"]
            status = Path(f"/proc/{engine['pid']}/status").read_text()
            assert engine["url"] == "unix:fallback.sock" and "Uid:\t10002" in status
            assert not (folder / "pid").exists()  # it may not change its own folder
            own, other = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", engine["pid"]))
            assert own != other


def test_an_idle_fallback_is_ended_before_an_engine_is_replaced_for_memory(
    tmp_path: Path, small_checkpoint: Path
) -> None:
    folder = install(tmp_path / "ComfyUI")
    settings = {"FALLBACK_ENGINE": str(folder), "MEMORY_SOFT_LIMIT_BYTES": "1"}
    with running_worker(tmp_path, small_checkpoint, **settings) as worker:
        submit(worker, "there", {"1": {"class_type": "Draw", "inputs": {"text": "drawn", "size": 1}}})
        there = ended(worker, "there")
        assert there["status"] == "completed" and there["engine"]["name"] == "fallback"
        assert worker.output_bytes(there) == b"drawn"
        until(lambda: worker.get("/health").json()["fallback"]["state"] == "idle", seconds=60)
        pid = int((folder / "pid").read_text())
        until(lambda: not Path(f"/proc/{pid}").exists(), seconds=30)
        assert worker.get("/health").json()["restarts"] == 0
