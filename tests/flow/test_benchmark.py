"""The start of a real worker with its engine: models, benchmark, warm-up, ready; and what a restart makes of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.flow.bodies import finished, modifier_request
from tests.flow.running_worker import CHECKPOINT, running_worker, stop, wait_until_ready


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_machine_is_qualified_before_ready_and_a_restart_reuses_what_was_found(
    tmp_path: Path, small_checkpoint: Path
) -> None:
    workflow = tmp_path / "warm.json"
    workflow.write_text(
        json.dumps(
            {
                "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}},
                "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "warm"}},
            }
        )
    )
    settings = {"BENCHMARK": "auto", "PRELOAD_MODELS": f"{CHECKPOINT},vae/none.safetensors"}
    settings["WARMUP_WORKFLOWS"] = str(workflow)
    settings["TUNING"] = "fused_qkv,step_cache"  # measuring every one takes far longer
    settings |= {"BENCHMARK_TEST_WIDTH": "128", "BENCHMARK_TEST_HEIGHT": "128", "BENCHMARK_TEST_STEPS": "4"}
    with running_worker(tmp_path, small_checkpoint, **settings) as worker:
        report = worker.get("/benchmark").json()
        finished(worker.generate(modifier_request(request_id="before")))
        draft = finished(worker.generate(modifier_request(request_id="draft", quality="draft")))
        num_read = worker.log.read_text().count("warmed up")
        os.kill(worker.get("/health").json()["backends"][0]["pid"], signal.SIGKILL)
        while worker.get("/health").json()["restarts"] < 1:
            time.sleep(0.05)
        wait_until_ready(worker)
        assert worker.log.read_text().count("warmed up") == num_read + 2  # model and workflow, before any job
        finished(worker.generate(modifier_request(request_id="after")))
        assert stop(worker) == 0
    assert (report["verdict"], report["error"], report["is_reused"]) == ("pass", None, False)
    assert report["its_per_second"] > 0 and report["seconds_to_first_step"] > 0 and report["num_runs"] >= 3
    assert report["workload_per_second"] > 0 and report["workload_is_estimate"] and "small" in report["shrunk"]
    assert report["probe"]["fault"] is None and report["probe"]["matrix_tflops"] > 0
    assert report["probe"]["disk"]["file"] == CHECKPOINT
    (tuned,) = report["tuning"]["outcomes"]
    assert tuned["network"] == "UnetModel" and all(figure["reason"] for figure in tuned["figures"])
    assert draft["tuning"]["quality"] == "draft"
    assert draft["tuning"]["strategies"] == tuned["choices"]["draft"]["names"]
    read, missing = report["preloaded"]
    assert read["bytes"] > 10_000_000 and "none.safetensors" in missing["error"]
    assert "error" not in report["warm_up"][0]
    assert not list((tmp_path / "output").glob("warm*"))
    assert set(report["phases"]) == {"import", "front", "engine", "models", "benchmark", "tuning", "warm_up", "ready"}
    with running_worker(tmp_path, small_checkpoint, **settings) as worker:
        again = worker.get("/benchmark").json()
        finished(worker.get("/result/before"))
    assert again["is_reused"] and again["its_per_second"] == report["its_per_second"]
    assert again["tuning"]["is_reused"] and again["tuning"]["outcomes"] == report["tuning"]["outcomes"]
    assert "bytes" in again["preloaded"][0]
