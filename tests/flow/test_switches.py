"""Branches that a switch leaves out, through the whole worker: nothing in them is a reason to refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.flow.bodies import workflow
from tests.flow.running_worker import RunningWorker


def switched(switch: object, **more: dict[str, Any]) -> dict[str, Any]:
    """Return a request whose image is sampled if `switch` is true; else it needs what this worker does not have."""
    unused = {
        "20": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "of_another_family.safetensors"}},
        "21": {"class_type": "NodeOfNoPack", "inputs": {"model": ["20", 0], "mode": 4}},
        "22": {"class_type": "LoadImage", "inputs": {"image": "https://192.0.2.1/never_fetched.png"}},
        "23": {"class_type": "ImageBatch", "inputs": {"image1": ["22", 0], "image2": ["21", 0]}},
    }
    chosen = {"switch": switch, "on_true": ["6", 0], "on_false": ["23", 0]}
    prompt = workflow() | unused | {"24": {"class_type": "ComfySwitchNode", "inputs": chosen}} | more
    prompt["7"]["inputs"]["images"] = ["24", 0]
    return {"input": {"workflow_json": prompt}}


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_branch_that_is_off_may_name_what_is_not_here(worker: RunningWorker, is_linked: bool) -> None:
    flag = {"class_type": "PrimitiveBoolean", "inputs": {"value": True}}
    request = switched(["25", 0], **{"25": flag}) if is_linked else switched(True)
    response = worker.generate(request)
    assert response.status_code == 200, response.text
    assert len(response.json()["output"]) == 2


def test_the_same_branch_is_refused_where_it_is_on(worker: RunningWorker) -> None:
    response = worker.generate(switched(False))
    assert response.status_code == 422
    assert {problem["node_id"] for problem in response.json()["error"]["problems"]} == {"22"}  # its address comes first
