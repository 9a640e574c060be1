"""The examples, sent to a worker as they stand: each gives the image that lies next to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from tests.flow.running_worker import ROOT, RunningWorker, running_worker

EXAMPLES = ROOT / "examples"
MEAN_DIFFERENCE, LARGEST_DIFFERENCE = 1.0, 16.0  # other processors and torch versions round differently


def sent(path: str) -> Any:
    return json.loads((EXAMPLES / path).read_text("utf-8"))


def assert_equal_images(made: Path, expected: Path) -> None:
    pixels = [numpy.asarray(Image.open(path).convert("RGB"), dtype=numpy.float64) for path in (made, expected)]
    difference = numpy.abs(pixels[0] - pixels[1])
    assert difference.mean() <= MEAN_DIFFERENCE and difference.max() <= LARGEST_DIFFERENCE


def generated(worker: RunningWorker, body: dict[str, Any], folder: Path) -> Path:
    result = worker.generate(body).raise_for_status().json()
    (folder / "image.png").write_bytes(worker.output_bytes(result))
    return folder / "image.png"


def test_the_request_by_a_modifier(worker: RunningWorker, tmp_path: Path) -> None:
    made = generated(worker, sent("modifier/request.json"), tmp_path)
    assert_equal_images(made, EXAMPLES / "modifier" / "image.png")


def test_the_workflow_that_the_modifier_makes_gives_the_same_image(worker: RunningWorker, tmp_path: Path) -> None:
    made = generated(worker, {"input": {"workflow_json": sent("modifier/workflow.json")}}, tmp_path)
    assert_equal_images(made, EXAMPLES / "modifier" / "image.png")


def test_the_request_by_a_workflow(worker: RunningWorker, tmp_path: Path) -> None:
    made = generated(worker, {"input": {"workflow_json": sent("workflow/workflow.json")}}, tmp_path)
    assert_equal_images(made, EXAMPLES / "workflow" / "image.png")


def test_the_program(worker: RunningWorker, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "python_client" / "generate.py"), str(tmp_path / "heart.png")]
    environment = {**os.environ, "DARKROOM_URL": worker.url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "generating" in done.stderr
    assert_equal_images(tmp_path / "heart.png", EXAMPLES / "python_client" / "image.png")


DISPLAY = """
import json, sys, types
shown = []
display = types.ModuleType("IPython.display")
display.Image, display.display = bytes, shown.append
sys.modules["IPython"], sys.modules["IPython.display"] = types.ModuleType("IPython"), display
space = {}
for cell in json.load(open("darkroom.ipynb"))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), space)
print(len(shown), len({*shown}), all(image.startswith(b"\\x89PNG") for image in shown))
"""


@pytest.mark.timeout(900)
def test_the_notebook_runs_from_its_first_cell_to_its_last_with_the_demo_model(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DISPLAY]
    with running_worker(tmp_path, None) as worker:
        environment = {**os.environ, "DARKROOM_URL": worker.url, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=EXAMPLES / "notebook")
    assert done.returncode == 0, done.stderr
    assert "s for a new job" in done.stdout and done.stdout.splitlines()[-1] == "5 5 True"
