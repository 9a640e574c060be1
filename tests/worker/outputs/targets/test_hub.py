"""Outputs committed to the Hugging Face hub by its own library, against a stand-in of the hub; no token stays."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, draw
from tests.served import served
from tests.worker.outputs.hub_stand_in import TOKEN, StandInHub
from tests.worker.running_front import RunningFront, running_front

REPO = "acme/pictures"


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandInHub]:
    made = StandInHub(REPO)
    async with served(made.app()) as url:
        made.url = url
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield made


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine, hub: StandInHub) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path, engine, hf_output_repos=("acme/own",)) as running:
        yield running


async def test_all_files_of_a_job_come_in_one_commit_and_the_token_is_gone(
    front: RunningFront, hub: StandInHub, tmp_path: Path
) -> None:
    workflow = draw("x") | {"2": draw("x", size=64)["1"]}
    response = await front.sync(workflow, hf={"repo": REPO, "token": TOKEN}, request_id="job-1")
    outputs = response.json()["output"]
    assert len(outputs) == 2 and hub.commits == ["Outputs of job-1"], response.text
    for output in outputs:
        assert output["url"] == f"{hub.url}/datasets/{REPO}/resolve/main/job-1/{output['filename']}"
        assert hub.files[f"job-1/{output['filename']}"].strip(b"x") == b""
    assert sorted(map(len, hub.files.values())) == [8, 64]
    assert TOKEN not in response.text
    await front.front.services.jobs.store.forget_finished_before(0)  # empties the write-ahead log
    for file in (tmp_path / "state").glob("darkroom.db*"):
        assert TOKEN.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"repo": REPO, "token": "hf_wrong"}, "status 401; the token may not write"),
        ({"repo": "acme/absent", "token": TOKEN}, "no such repository for this token"),
    ],
)
async def test_a_refused_commit_is_reported_and_the_files_stay(
    front: RunningFront, asked: dict[str, str], words: str
) -> None:
    response = await front.sync(draw("x"), hf=asked)
    (output,) = response.json()["output"]
    assert response.json()["status"] == "completed" and words in output["upload_error"], response.text
    assert asked["token"] not in json.dumps(response.json())
    assert (await front.http.get(output["url"])).content == b"x" * 8


async def test_the_workers_token_writes_to_its_own_repositories_alone(
    front: RunningFront, hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.repo = "acme/own"
    refused = await front.sync(draw("x"), hf={"repo": REPO})
    problem = refused.json()["error"]["problems"][0]
    assert (refused.status_code, problem["field"], problem["allowed"]) == (422, "input.hf.token", ["acme/own"])
    response = await front.sync(draw("x"), hf={"repo": "acme/own"})
    assert response.json()["output"][0]["url"].startswith(f"{hub.url}/datasets/acme/own/"), response.text


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"hf": {"repo": "no-owner", "token": "t"}}, "input.hf.repo"),
        ({"hf": {"repo": "a/../b", "token": "t"}}, "input.hf.repo"),
        ({"hf": {"repo": REPO, "token": "t", "repo_type": "bucket"}}, "input.hf.repo_type"),
        ({"hf": {"repo": REPO, "token": "t", "key_template": "fixed"}}, "input.hf.key_template"),
        ({"hf": {"repo": REPO, "token": "a\nb"}}, "input.hf.token"),
        ({"hf": {"repo": REPO}}, "input.hf.token"),
        ({"hf": {"repo": REPO, "token": "t"}, "s3": {}}, "input"),
    ],
)
async def test_wrong_settings_are_refused(front: RunningFront, given: dict[str, Any], field: str) -> None:
    response = await front.sync(draw(), **given)
    assert (response.status_code, response.json()["error"]["problems"][0]["field"]) == (422, field), response.text
