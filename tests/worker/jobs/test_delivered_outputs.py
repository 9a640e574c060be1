"""The last stage of a job: uploads that work, fail, or are not wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.jobs.delivered_outputs import DeliveredOutputs
from darkroom.worker.outputs.targets.s3 import S3OutputTarget
from darkroom.worker.outputs.targets.target import OutputTargets
from darkroom.worker.s3.stores import S3Stores
from darkroom.worker.settings.outputs import S3Config
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobTimes
from tests.s3_server import S3Server

NOWHERE = S3Config(connect_timeout_seconds=2.0, connect_attempts=1, presign_seconds=600)


def config_of(server: S3Server) -> S3Config:
    own = {
        "access_key_id": SecretStr(server.access_key_id),
        "secret_access_key": SecretStr(server.secret_access_key),
        "bucket_name": server.bucket,
        "endpoint_url": server.endpoint_url,
    }
    return NOWHERE.model_copy(update=own)


def asked_of(server: S3Server) -> dict[str, Any]:
    return {
        "access_key_id": server.access_key_id,
        "secret_access_key": server.secret_access_key,
        "bucket_name": server.bucket,
        "endpoint_url": server.endpoint_url,
    }


def stage_of(config: S3Config, allowed: Sequence[str] = ()) -> DeliveredOutputs:
    addresses = AddressGuard(allowed)
    targets = OutputTargets({"s3": S3OutputTarget(config, S3Stores(addresses), addresses)})
    return DeliveredOutputs(config, targets, "none")


def job(*names: str, s3: Mapping[str, Any] | None = None) -> Job:
    outputs = tuple(
        {"filename": name, "path": name, "node_id": "9", "subfolder": "", "media_type": "application/octet-stream"}
        for name in names
    )
    made = Job("job-1", 1, "hash", JobRequest(), {}, JobTimes(0), Credentials({} if s3 is None else {"s3": s3}))
    made.outputs = outputs
    return made


def folder_with(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


async def test_every_output_gets_a_link_that_opens(s3_server: S3Server, tmp_path: Path) -> None:
    stage = stage_of(config_of(s3_server))
    records = await stage.deliver(job("a.png", "b.png"), folder_with(tmp_path, "a.png", "b.png"))
    async with httpx.AsyncClient() as http:
        assert [(await http.get(record["url"])).text for record in records] == ["a.png", "b.png"]
    assert s3_server.get("job-1/a.png") == b"a.png"


async def test_one_that_fails_does_not_fail_the_others(s3_server: S3Server, tmp_path: Path) -> None:
    stage = stage_of(config_of(s3_server))
    gone, good = await stage.deliver(job("gone.png", "a.png"), folder_with(tmp_path, "a.png"))
    assert "url" not in gone and "the file is gone" in gone["upload_error"]
    assert "url" in good and "upload_error" not in good


async def test_an_endpoint_of_a_request_passes_the_guard(s3_server: S3Server, tmp_path: Path) -> None:
    folder, asked = folder_with(tmp_path, "a.png"), asked_of(s3_server)
    [refused] = await stage_of(NOWHERE).deliver(job("a.png", s3=asked), folder)
    assert "not on the public internet" in refused["upload_error"]
    [sent] = await stage_of(NOWHERE, ["127.0.0.1"]).deliver(job("a.png", s3=asked), folder)
    assert "url" in sent


async def test_without_a_store_outputs_stay_as_they_are(tmp_path: Path) -> None:
    made = job("a.bin")
    folder = folder_with(tmp_path, "a.bin")
    assert await stage_of(NOWHERE).deliver(made, folder) == list(made.outputs)


async def test_what_was_uploaded_before_a_restart_is_not_uploaded_again(s3_server: S3Server, tmp_path: Path) -> None:
    made = job("a.png")
    made.outputs = ({**made.outputs[0], "url": "https://store.example/a.png"},)
    [record] = await stage_of(config_of(s3_server)).deliver(made, tmp_path)
    assert record["url"] == "https://store.example/a.png"
