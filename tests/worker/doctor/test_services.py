"""Checks of the store, the webhook's receiver and the platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.doctor import services
from darkroom.worker.doctor.check import Status
from darkroom.worker.doctor.services import check_autoscaler, check_s3, check_webhook, clock_skews
from darkroom.worker.settings.settings import Settings
from tests.s3_server import S3Server, free_ports
from tests.worker.receiver import Receiver
from tests.worker.running_front import settings_for


def with_settings(tmp_path: Path, **changes: Any) -> Settings:
    return settings_for(tmp_path, "", **changes)


async def test_a_store_that_answers_is_good_and_a_wrong_bucket_says_what_to_look_at(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "SECONDS", 60.0)  # the first client of a store reads descriptions of megabytes
    settings = with_settings(tmp_path, **store(s3_server))
    assert (await check_s3(settings.s3, ("127.0.0.1",))).status is Status.GOOD
    wrong = with_settings(tmp_path, **store(s3_server) | {"s3_bucket_name": "nothing-here"})
    check = await check_s3(wrong.s3, ("127.0.0.1",))
    assert check.status is Status.FAILED and "nothing-here" in check.detail and check.remedy
    assert (await check_s3(with_settings(tmp_path).s3, ())).status is Status.SKIPPED
    half = await check_s3(with_settings(tmp_path, s3_bucket_name="a").s3, ())
    assert half.status is Status.WARNING and "S3_ACCESS_KEY_ID" in half.remedy


def store(server: S3Server) -> dict[str, Any]:
    return {
        "s3_endpoint_url": server.endpoint_url,
        "s3_access_key_id": server.access_key_id,
        "s3_secret_access_key": server.secret_access_key,
        "s3_bucket_name": server.bucket,
    }


async def test_a_receiver_is_connected_to_and_sent_nothing(tmp_path: Path, receiver: Receiver) -> None:
    settings = with_settings(tmp_path, webhook_url=receiver.url)
    assert (await check_webhook(settings.webhook)).status is Status.WARNING  # it is not signed
    signed = with_settings(tmp_path, webhook_url=receiver.url, webhook_secret="of the two of us")
    assert (await check_webhook(signed.webhook)).status is Status.GOOD
    assert not receiver.calls
    (port,) = free_ports(1)
    gone = await check_webhook(with_settings(tmp_path, webhook_url=f"http://127.0.0.1:{port}/hook?key=k").webhook)
    assert gone.status is Status.FAILED and "key" not in gone.detail


async def test_a_platform_s_addresses_are_tried(tmp_path: Path, receiver: Receiver) -> None:
    assert (await check_autoscaler(with_settings(tmp_path))).status is Status.GOOD
    (port,) = free_ports(1)
    vast = {"master_token": "t0ken", "container_id": 1}
    there = with_settings(tmp_path, **vast, report_addr=receiver.url)
    assert (await check_autoscaler(there)).status is Status.GOOD
    gone = with_settings(tmp_path, **vast, report_addr=f"http://127.0.0.1:{port}")
    check = await check_autoscaler(gone)
    assert check.status is Status.FAILED and "REPORT_ADDR" in check.remedy


async def test_the_clock_is_compared_with_a_server_s(tmp_path: Path, receiver: Receiver) -> None:
    (skew,) = (await clock_skews(with_settings(tmp_path, webhook_url=receiver.url))).values()
    assert abs(skew) < 5
