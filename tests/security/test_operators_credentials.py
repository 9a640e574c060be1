"""Use of the operator's S3 key and webhook secret by a request: within its own prefix, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from darkroom.worker.s3.targets import choose_target, find_write_problem, may_read
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.outputs import S3Config
from darkroom.worker.storage.webhook_rows import SecretSource, WebhookRow, webhook_insert
from tests.fakes import FakeEngine, draw, paint
from tests.s3_server import S3Server, client
from tests.worker.inputs.test_fetch import image
from tests.worker.receiver import Receiver
from tests.worker.running_front import RunningFront, running_front

OTHER_BUCKET = "somebody-elses"
OPERATORS = S3Config(
    access_key_id=SecretStr("env-key"),
    secret_access_key=SecretStr("env-secret"),
    bucket_name="own",
    endpoint_url="http://s3.example",
    connect_timeout_seconds=2,
    connect_attempts=1,
    presign_seconds=60,
    key_template="x/{filename}",
)


def settings_of(store: S3Server, **changes: Any) -> dict[str, Any]:
    return {
        "s3_access_key_id": store.access_key_id,
        "s3_secret_access_key": store.secret_access_key,
        "s3_bucket_name": store.bucket,
        "s3_endpoint_url": store.endpoint_url,
        "allowed_private_hosts": ("127.0.0.1",),
        **changes,
    }


@pytest.fixture(scope="module")
def store(s3_server: S3Server) -> S3Server:
    s3 = client(s3_server)
    s3.create_bucket(Bucket=OTHER_BUCKET)
    for key in ("open/a.png", "open-not/a.png", "other-customer/private.png"):
        s3.put_object(Bucket=s3_server.bucket, Key=key, Body=image())
    return s3_server


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine, store: S3Server) -> AsyncIterator[RunningFront]:
    settings = settings_of(store, s3_input_prefixes=("open",), s3_key_template="pictures/{request_id}-{filename}")
    async with running_front(tmp_path, engine, **settings) as front:
        yield front


def keys_in(store: S3Server, bucket: str, prefix: str = "") -> list[str]:
    return [item["Key"] for item in client(store).list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])]


async def test_a_request_does_not_write_to_another_bucket_with_the_operators_key(
    front: RunningFront, store: S3Server
) -> None:
    refused = await front.sync(draw(), s3={"bucket_name": OTHER_BUCKET, "key_template": "victim/{filename}"})
    [problem] = refused.json()["error"]["problems"]
    assert refused.status_code == 422 and problem["field"] == "input.s3.bucket_name"
    assert problem["allowed"] == [store.bucket] and front.engine.runs == [] and keys_in(store, OTHER_BUCKET) == []


@pytest.mark.parametrize(
    "template",
    [
        "victim/{filename}",
        "{filename}",
        "{request_id}{filename}",
        "{request_id}-x/{filename}",
        "/{request_id}/{filename}",
        "../{request_id}/{filename}",
        "{subfolder}/{request_id}/{filename}",
    ],
)
async def test_a_request_does_not_leave_its_own_prefix_with_the_operators_key(
    front: RunningFront, template: str
) -> None:
    refused = await front.sync(draw(), s3={"key_template": template})
    [problem] = refused.json()["error"]["problems"]
    assert refused.status_code == 422 and problem["field"] == "input.s3.key_template" and front.engine.runs == []


async def test_below_its_own_prefix_a_request_writes_as_it_likes(front: RunningFront, store: S3Server) -> None:
    template = "{request_id}/../../{node_id}/{filename}"
    result = (await front.sync(draw(), request_id="mine", s3={"key_template": template})).json()
    assert result["status"] == "completed" and "upload_error" not in result["output"][0]
    assert keys_in(store, store.bucket, "mine") == [f"mine/1/{result['output'][0]['filename']}"]


async def test_the_operators_own_template_may_put_outputs_anywhere(front: RunningFront, store: S3Server) -> None:
    assert (await front.sync(draw(), request_id="plain")).json()["status"] == "completed"
    [key] = keys_in(store, store.bucket, "pictures/plain")
    assert key.startswith("pictures/plain-")


async def test_a_request_with_credentials_of_its_own_writes_where_these_may(
    front: RunningFront, store: S3Server
) -> None:
    own = {"access_key_id": store.access_key_id, "secret_access_key": store.secret_access_key}
    asked = own | {"bucket_name": OTHER_BUCKET, "key_template": "chosen/{filename}"}
    assert (await front.sync(draw(), s3=asked)).json()["status"] == "completed"
    assert len(keys_in(store, OTHER_BUCKET, "chosen/")) == 1


async def test_buckets_are_opened_by_name_or_all_together(tmp_path: Path, engine: FakeEngine, store: S3Server) -> None:
    for index, allowed in enumerate([(OTHER_BUCKET,), ("*",)]):
        folder = tmp_path / str(index)
        folder.mkdir()
        async with running_front(folder, engine, **settings_of(store, s3_allowed_buckets=allowed)) as front:
            asked = {"bucket_name": OTHER_BUCKET}
            result = (await front.sync(draw(), request_id=f"open-{index}", s3=asked)).json()
            assert "upload_error" not in result["output"][0]
            assert len(keys_in(store, OTHER_BUCKET, f"open-{index}/")) == 1
            refused = await front.sync(draw(), s3=asked | {"key_template": "victim/{filename}"})
            assert refused.status_code == 422


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ("open/a.png", 200),
        ("open-not/a.png", 422),
        ("other-customer/private.png", 422),
        ("open/../other-customer/private.png", 422),
        ("open", 422),
    ],
)
async def test_the_operators_key_reads_below_the_prefixes_alone(
    front: RunningFront, store: S3Server, key: str, status: int
) -> None:
    replied = await front.sync(paint("x", f"s3://{store.bucket}/{key}"))
    assert replied.status_code == status, replied.json()
    if status == 422:
        [problem] = replied.json()["error"]["problems"]
        assert (problem["field"], problem["node_id"]) == ("image", "1") and front.engine.runs == []


async def test_without_prefixes_the_operators_key_reads_nothing(
    tmp_path: Path, engine: FakeEngine, store: S3Server
) -> None:
    async with running_front(tmp_path, engine, **settings_of(store)) as front:
        assert (await front.sync(paint("x", f"s3://{store.bucket}/open/a.png"))).status_code == 422
        own = {"access_key_id": store.access_key_id, "secret_access_key": store.secret_access_key}
        assert (await front.sync(paint("x", f"s3://{store.bucket}/open/a.png"), s3=own)).status_code == 200


@pytest.mark.parametrize("asked", [{"access_key_id": "mine"}, {"secret_access_key": "mine"}, {"region": "x"}, {}])
def test_a_key_that_is_only_partly_the_requests_is_the_operators(asked: dict[str, str]) -> None:
    target = choose_target(asked, OPERATORS)
    assert target is not None and target.has_operators_key and not may_read(target, "a", OPERATORS)
    assert find_write_problem(asked | {"bucket_name": "other"}, OPERATORS) is not None


def test_prefixes_of_the_settings_are_folders() -> None:
    loaded = load_settings(env_file=None, s3_input_prefixes="/in, out/x/,*", s3_allowed_buckets="a, b")
    config = loaded.settings.s3
    assert (config.input_prefixes, config.allowed_buckets) == (("in/", "out/x/", "*"), ("a", "b"))
    target = choose_target(None, OPERATORS)
    assert target is not None and may_read(target, "any/thing", OPERATORS.model_copy(update={"input_prefixes": ("*",)}))


# webhooks


def is_signed_by(secret: str, call: tuple[dict[str, str], bytes]) -> bool:
    expected = "sha256=" + hmac.new(secret.encode(), call[1], hashlib.sha256).hexdigest()
    return call[0].get("x-webhook-signature") == expected


def is_unsigned(call: tuple[dict[str, str], bytes]) -> bool:
    return "x-webhook-signature" not in call[0] and "webhook-signature" not in call[0]


OPEN: dict[str, Any] = {"allowed_private_hosts": ("127.0.0.1",), "webhook_secret": "operators"}


async def until_called(front: RunningFront, receiver: Receiver, times: int) -> None:
    from tests.worker.running_front import until

    async def has_come() -> bool:
        return len(receiver.calls) >= times

    await until(has_come)


async def test_the_operators_secret_does_not_sign_for_an_address_of_a_request(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    hook = {"url": receiver.url, "extra_params": {"paid": True}, "events": ["started"]}
    async with running_front(tmp_path, engine, webhook_url="http://operator.example/", **OPEN) as front:
        await front.sync(draw(), webhook=hook)
        await until_called(front, receiver, 2)
        assert (await front.http.post("/webhooks/test", json={"url": receiver.url})).json()["delivered"]
        assert len(receiver.calls) == 3 and all(map(is_unsigned, receiver.calls))
        await front.sync(draw(), webhook={"url": receiver.url, "secret": "requests"})
        await until_called(front, receiver, 4)
        assert is_signed_by("requests", receiver.calls[3])


async def test_the_operators_secret_signs_for_the_operators_address(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    async with running_front(tmp_path, engine, webhook_url=receiver.url, **OPEN) as front:
        await front.sync(draw())
        await front.sync(draw(), webhook={"url": receiver.url})
        await until_called(front, receiver, 2)
        assert (await front.http.post("/webhooks/test", json={})).json()["delivered"]
        assert all(is_signed_by("operators", call) for call in receiver.calls) and len(receiver.calls) == 3


async def test_an_entry_of_an_older_worker_is_sent_again_without_the_operators_signature(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    old = WebhookRow("msg_old", "job", receiver.url, b"{}", None, 5.0, False, "dead", 15, 1, 1)
    old = replace(old, secret_source=SecretSource.ENVIRONMENT)
    async with running_front(tmp_path, engine, **OPEN) as front:
        await front.front.store.write(webhook_insert(old))
        shown = (await front.http.post("/webhooks/msg_old/redeliver")).json()
        await until_called(front, receiver, 1)
        assert is_unsigned(receiver.calls[0]) and not shown["is_signed"]
