"""A job sees its own files and the operator's alone, whatever name it gives and however it brings that name."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy
import pytest
from PIL import Image

from tests.flow.running_worker import RunningWorker
from tests.flow.test_files import data_uri, encoded

SECRET = Image.new("RGB", (48, 32), (11, 22, 33))
SECRET_PNG = encoded(SECRET, "PNG")
FETCHED = f"darkroom/{hashlib.sha256(SECRET_PNG).hexdigest()}.png"


def saving(image: Any, prefix: str = "seen") -> dict[str, Any]:
    return {"class_type": "SaveImage", "inputs": {"images": image, "filename_prefix": prefix}}


def load_and_save(image: Any, class_type: str = "LoadImage") -> dict[str, Any]:
    return {"1": {"class_type": class_type, "inputs": {"image": image}}, "2": saving(["1", 0])}


def sent(worker: RunningWorker, workflow: dict[str, Any], expected_status: int) -> dict[str, Any]:
    answer = worker.generate({"input": {"workflow_json": workflow}})
    assert answer.status_code == expected_status, answer.text
    return dict(answer.json())


@pytest.fixture(scope="module")
def secret(files_worker: RunningWorker) -> RunningWorker:
    """The worker after a job that has brought and saved an image and a latent of its own."""
    workflow = {
        "1": {"class_type": "LoadImage", "inputs": {"image": data_uri(SECRET_PNG)}},
        "2": saving(["1", 0], "private/secret"),
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "5": {"class_type": "SaveLatent", "inputs": {"samples": ["4", 0], "filename_prefix": "private/latent"}},
    }
    sent(files_worker, workflow, 200)
    assert (files_worker.base / "output" / "private" / "secret_00001_.png").is_file()
    assert (files_worker.base / "input" / FETCHED).is_file()
    return files_worker


@pytest.mark.parametrize("class_type", ["LoadImage", "LoadImageMask", "LoadImageOutput"])
@pytest.mark.parametrize(
    "name",
    ["private/secret_00001_.png [output]", FETCHED, f"{FETCHED} [input]", f"upload:{FETCHED.partition('/')[2]}"],
)
def test_another_jobs_image_is_refused_with_node_and_field(secret: RunningWorker, class_type: str, name: str) -> None:
    workflow = load_and_save(name, class_type)
    if class_type == "LoadImageMask":
        workflow["1"]["inputs"]["channel"] = "red"
        workflow["2"] = {"class_type": "MaskPreview", "inputs": {"mask": ["1", 0]}}
    [problem] = sent(secret, workflow, 422)["error"]["problems"]
    assert (problem["node_id"], problem["field"], problem["type"]) == ("1", "image", "foreign_file")
    assert "input folder" in problem["allowed"]


def test_another_jobs_preview_is_refused(secret: RunningWorker) -> None:
    [preview] = [path.name for path in (secret.base / "temp").rglob("*.png")][:1]
    [problem] = sent(secret, load_and_save(f"{preview} [temp]"), 422)["error"]["problems"]
    assert problem["type"] == "foreign_file"


def test_another_jobs_latent_is_refused(secret: RunningWorker) -> None:
    workflow = {
        "1": {"class_type": "LoadLatent", "inputs": {"latent": "private/latent_00001_.latent [output]"}},
        "2": {"class_type": "SaveLatent", "inputs": {"samples": ["1", 0], "filename_prefix": "seen"}},
    }
    [problem] = sent(secret, workflow, 422)["error"]["problems"]
    assert (problem["type"], problem["field"]) == ("foreign_file", "latent")


@pytest.mark.parametrize("name", [("private/secret_00001_.png ", "[output]"), ("dark", FETCHED.removeprefix("dark"))])
@pytest.mark.parametrize("loader", ["LoadImage", "LoadNamed"])
def test_a_name_that_a_link_brings_is_refused_when_it_runs(
    secret: RunningWorker, loader: str, name: tuple[str, str]
) -> None:
    workflow = {
        "0": {"class_type": "BringName", "inputs": {"first": name[0], "second": name[1]}},
        "1": {"class_type": loader, "inputs": {"image" if loader == "LoadImage" else "name": ["0", 0]}},
        "2": saving(["1", 0]),
    }
    [problem] = sent(secret, workflow, 422)["error"]["problems"]
    assert problem["node_id"] == "1" and "a file of another job" in problem["message"], problem


def test_what_the_workflow_itself_has_saved_is_its_own(secret: RunningWorker) -> None:
    workflow = {
        "1": {"class_type": "LoadImage", "inputs": {"image": data_uri(SECRET_PNG)}},
        "2": {"class_type": "SaveAndName", "inputs": {"images": ["1", 0]}},
        "3": {"class_type": "LoadImage", "inputs": {"image": ["2", 0]}},
        "4": {"class_type": "LoadNamed", "inputs": {"name": ["2", 0]}},
        "5": saving(["3", 0], "again"),
        "6": saving(["4", 0], "again"),
    }
    for _ in range(2):  # the second time its nodes are cached
        assert len(sent(secret, workflow, 200)["output"]) == 3
        workflow["5"]["inputs"]["filename_prefix"] = "once more"


@pytest.mark.parametrize("name", ["of the operator.png", "of the operator.png [input]", "shop/own.png"])
def test_the_operators_files_stay_usable_by_name(secret: RunningWorker, name: str) -> None:
    (secret.base / "input" / "shop").mkdir(exist_ok=True)
    for path in ("of the operator.png", "shop/own.png"):
        SECRET.save(secret.base / "input" / path)
    answer = sent(secret, load_and_save(name), 200)
    image = Image.open(io.BytesIO(secret.output_bytes(answer)))
    assert numpy.array_equal(numpy.asarray(image), numpy.asarray(SECRET))


def test_the_text_of_a_prompt_may_say_anything(secret: RunningWorker) -> None:
    workflow = load_and_save(data_uri(SECRET_PNG))
    workflow["3"] = {"class_type": "BringName", "inputs": {"first": "a.png [output]", "second": ""}}
    sent(secret, workflow, 200)
