"""Requests on their way to a replica: which model they need, and what of them is passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from darkroom.worker.integrations.ray.forwarding import forwarded, model_of
from darkroom.worker.integrations.ray.tethered_worker import TetheredWorker

SD15 = {"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd15.safetensors"}}}


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ({"modifier": "Text2Image", "modifications": {"ckpt_name": "a.safetensors"}}, "a.safetensors"),
        ({"workflow_json": SD15}, "sd15.safetensors"),
        ({"modifier": "Text2Image", "modifications": {"prompt": "x"}}, ""),
        ({"modifications": {"ckpt_name": 7}, "workflow_json": {"1": "no node"}}, ""),
        ({"modifications": [], "workflow_json": None}, ""),
    ],
)
def test_the_model_of_a_request_is_the_one_that_it_names(given: dict[str, Any], model: str) -> None:
    assert model_of(given) == model


def test_a_request_asks_for_the_files_data_unless_they_go_to_a_store() -> None:
    def sent(given: dict[str, Any], *, inline_outputs: bool = True) -> dict[str, Any]:
        body = json.dumps({"input": given}).encode()
        found: dict[str, Any] = json.loads(
            forwarded("POST", "/generate/sync", {}, body, inline_outputs=inline_outputs).body
        )["input"]
        return found

    assert sent({"modifier": "m"}) == {"modifier": "m", "return_outputs_as_base64": True}
    assert sent({"modifier": "m"}, inline_outputs=False) == {"modifier": "m"}
    assert sent({"modifier": "m", "s3": {"bucket_name": "b"}}) == {"modifier": "m", "s3": {"bucket_name": "b"}}


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"input": 3}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_request_reaches_the_worker_as_it_is(body: bytes) -> None:
    sent = forwarded("POST", "/generate/sync", {"Host": "h", "Authorization": "Bearer k"}, body, inline_outputs=True)
    assert (sent.body, sent.model, sent.headers) == (body, "", (("Authorization", "Bearer k"),))


def test_a_worker_ends_with_its_parents_pipe(tmp_path: Any) -> None:
    worker = TetheredWorker(tmp_path / "state", {"BASE_DIRECTORY": str(tmp_path), "ENGINE_URL": "http://127.0.0.1:9"})
    worker.check_running()
    worker.stop(60)
    with pytest.raises(Exception, match="the worker ended with exit code"):
        worker.check_running()
