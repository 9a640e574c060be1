"""Graphs that used to end as a 500, or told of the server's folders."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow.running_worker import CHECKPOINT, RunningWorker

LOADER: dict[str, Any] = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}}
MASK: dict[str, Any] = {"class_type": "SolidMask", "inputs": {"value": 1.0, "width": 8, "height": 8}}
IMAGE: dict[str, Any] = {"class_type": "MaskToImage", "inputs": {"mask": ["1", 0]}}


def problems_of(worker: RunningWorker, workflow: dict[str, Any]) -> list[dict[str, Any]]:
    answer = worker.generate({"input": {"workflow_json": workflow}})
    assert answer.status_code == 422, answer.text
    return list(answer.json()["error"]["problems"])


def test_a_link_to_an_input_that_a_node_does_not_have_is_refused(files_worker: RunningWorker) -> None:
    preview = {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "a", "image": ["2", 0]}}
    [problem] = problems_of(files_worker, {"1": MASK, "2": IMAGE, "3": preview})
    assert (problem["node_id"], problem["field"], problem["type"]) == ("3", "image", "unknown_input")
    assert "images" in problem["allowed"]


def test_an_unknown_link_to_nowhere_is_refused(files_worker: RunningWorker) -> None:
    for link in (["99", 0], ["1", 5], ["3", 0]):
        saving = {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "a", "prompt": link}}
        [problem] = problems_of(files_worker, {"1": MASK, "2": IMAGE, "3": saving})
        assert problem["node_id"] == "3", problem


def test_a_value_under_an_unknown_name_is_passed_over(files_worker: RunningWorker) -> None:
    saving = {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "a", "image": "x"}}
    answer = files_worker.generate({"input": {"workflow_json": {"1": MASK, "2": IMAGE, "3": saving}}})
    assert answer.status_code == 200, answer.text


def test_a_prompt_of_twenty_thousand_brackets_is_refused(files_worker: RunningWorker) -> None:
    text = "(" * 20_000 + "a" + ")" * 20_000
    workflow = {
        "1": LOADER,
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": text, "clip": ["1", 1]}},
        "3": {"class_type": "EmptyLatentImage", "inputs": {"width": 16, "height": 16, "batch_size": 1}},
        "4": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["2", 0],
                "negative": ["2", 0],
                "latent_image": ["3", 0],
                "seed": 1,
                "steps": 1,
                "cfg": 1.0,
                "sampler_name": "euler",
                "scheduler": "normal",
                "denoise": 1.0,
            },
        },
        "5": {"class_type": "SaveLatent", "inputs": {"samples": ["4", 0], "filename_prefix": "a"}},
    }
    [problem] = problems_of(files_worker, workflow)
    assert (problem["node_id"], problem["field"]) == ("2", "text")
    assert "nested more than 900 deep; expected at most 900" in problem["message"]


def test_a_missing_model_names_no_folder_of_the_server(files_worker: RunningWorker) -> None:
    workflow = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "none.safetensors"}},
        "2": {"class_type": "VAESave", "inputs": {"vae": ["1", 2], "filename_prefix": "a"}},
    }
    answer = files_worker.generate({"input": {"workflow_json": workflow}})
    assert answer.status_code == 422 and "searched in models/checkpoints" in answer.text, answer.text
    assert str(files_worker.base) not in answer.text


LONG = "a/" * 3000 + "b"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [("nothing", ".png", "no such file"), ("../x", ".png", "no such file"), ("a" * 300, ".png", "no such file")],
)
def test_a_bad_name_that_a_link_brings_is_refused_without_the_servers_folders(
    files_worker: RunningWorker, first: str, second: str, said: str
) -> None:
    workflow = {
        "1": {"class_type": "BringName", "inputs": {"first": first, "second": second}},
        "2": {"class_type": "LoadImage", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "a"}},
    }
    [problem] = problems_of(files_worker, workflow)
    assert problem["node_id"] == "2" and said in problem["message"]
    assert str(files_worker.base) not in str(problem)


@pytest.mark.parametrize("prefix", ["/etc/x", "a\0b", LONG, "a" * 300])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_prefix_that_nothing_can_be_saved_under_is_refused(
    files_worker: RunningWorker, prefix: str, is_linked: bool
) -> None:
    saving = {"images": ["2", 0], "filename_prefix": ["4", 0] if is_linked else prefix}
    workflow = {"1": MASK, "2": IMAGE, "3": {"class_type": "SaveImage", "inputs": saving}}
    if is_linked:
        workflow["4"] = {"class_type": "PrimitiveString", "inputs": {"value": prefix}}
    [problem] = problems_of(files_worker, workflow)
    assert problem["node_id"] == "3" and "filename_prefix" in problem["message"]
    assert str(files_worker.base) not in str(problem)


@pytest.mark.parametrize("name", [None, 5, {"a": "b" * 5000}, [[1]], "a.b" * 3000])
def test_a_value_that_is_no_files_name_is_refused(files_worker: RunningWorker, name: Any) -> None:
    workflow = {
        "2": {"class_type": "LoadImage", "inputs": {"image": name}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "a"}},
    }
    [problem] = problems_of(files_worker, workflow)
    assert (problem["node_id"], problem["field"]) == ("2", "image")
    assert str(files_worker.base) not in str(problem)
