"""Stores are checked before a job runs: in the request with the field, in the operator's settings at the start."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.store_names import (
    find_bucket_problem,
    find_endpoint_doubt,
    find_endpoint_problem,
    find_put_problem,
    find_region_problem,
    find_revision_problem,
    find_secret_problem,
)
from tests.fakes import draw
from tests.worker.running_front import RunningFront, settings_for

NOW = datetime(2026, 1, 2, tzinfo=UTC)
KEYS = {"access_key_id": "planted-id", "secret_access_key": "planted-secret"}


@pytest.mark.parametrize("name", ["b", "my-bucket", "My_Bucket.2", "arn:aws:s3:us-east-1:123456789012:accesspoint/own"])
def test_names_that_stores_take_pass(name: str) -> None:
    assert find_bucket_problem(name) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mybucket/sub/folder", "expected 'mybucket', and sub/folder/{request_id}/{filename} as key_template"),
        ("mybucket/", "expected 'mybucket'"),
        ("s3://mybucket", "expected 'mybucket'"),
        ("s3://mybucket/sub", "expected 'mybucket', and sub/{request_id}/{filename} as key_template"),
        ("https://mybucket.s3.amazonaws.com", "the name alone"),
        (" mybucket", "white space"),
        ("mybucket\n", "white space"),
        ("my bucket", "expected letters"),
        ("büro", "expected letters"),
    ],
)
def test_what_is_no_bucket_is_named(name: str, words: str) -> None:
    assert words in (find_bucket_problem(name) or "")


@pytest.mark.parametrize("value", [" planted", "planted\n", "plänted", "plan\x00ted"])
def test_keys_with_white_space_are_found_and_not_shown(value: str) -> None:
    problem = find_secret_problem(value)
    assert problem is not None and "plan" not in problem


def test_addresses_of_stores() -> None:
    for good in (
        "https://abc.r2.cloudflarestorage.com",
        "http://minio:9000",
        "https://x.supabase.co/storage/v1/s3",
        "",
    ):
        assert find_endpoint_problem(good, "mybucket") is None
    for wrong in ("minio:9000", "ftp://a", "https://a?x=1", " https://a", "https://", "https://a:b:c"):
        assert find_endpoint_problem(wrong, "mybucket"), wrong
    problem = find_endpoint_problem("https://user:planted@a.r2.dev/mybucket", "mybucket") or ""
    assert "mybucket/mybucket" in problem and "https://a.r2.dev" in problem and "planted" not in problem
    assert find_endpoint_doubt("https://mybucket.s3.amazonaws.com", "mybucket")
    assert find_endpoint_doubt("https://s3.amazonaws.com", "mybucket") is None


def test_regions_and_branches() -> None:
    for good in ("", "auto", "us-east-1"):
        assert find_region_problem(good) is None
    for wrong in (" ", "us east", "us-east-1\n", "https://a"):
        assert find_region_problem(wrong), wrong
    for good in ("main", "refs/pr/3", "v1.0", "feature-x"):
        assert find_revision_problem(good) is None
    for wrong in (" main", "a..b", "/a", "a/", "a b", "a~1", "a//b"):
        assert find_revision_problem(wrong), wrong


SIGNED = "X-Amz-Date=20260101T000000Z&X-Amz-Expires={}&X-Amz-Signature=planted"
SAS = "https://a.blob.core.windows.net/c/{key}?sv=2024-11-04&sig=planted"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://a/{key}", None),
        (SAS + "&se=2026-02-01T00:00:00Z&sp=cw&sr=c", None),
        (SAS + "&se=2026-01-01&sp=cw&sr=c", "expired at 2026-01-01T00:00:00Z"),
        (SAS + "&se=2026-02-01&sp=cw&sr=b", "for one blob"),
        (SAS + "&se=2026-02-01&sp=rl&sr=c", "permits no writing"),
        (SAS + "&se=soon&sp=cw", "no time"),
        ("https://b.s3.amazonaws.com/{key}?" + SIGNED.format(900), "for the key that was signed"),
        ("https://b.s3.amazonaws.com/x?key={key}&" + SIGNED.format(900), "expired at 2026-01-01T00:15:00Z"),
        ("https://{key}.example.org/", "in the host"),
        ("https://a/{key} ", "white space"),
    ],
)
def test_presigned_addresses_that_take_no_file_are_named(url: str, words: str | None) -> None:
    problem = find_put_problem(url, NOW)
    assert problem is None if words is None else words in (problem or ""), problem
    assert "planted" not in (problem or "")


STORES: list[tuple[dict[str, Any], str]] = [
    ({"s3": {**KEYS, "bucket_name": "mybucket/sub"}}, "input.s3.bucket_name"),
    ({"s3": {**KEYS, "bucket_name": "s3://mybucket"}}, "input.s3.bucket_name"),
    ({"s3": {**KEYS, "bucket_name": "b", "endpoint_url": "https://example.org/b"}}, "input.s3.endpoint_url"),
    ({"s3": {**KEYS, "bucket_name": "b", "endpoint_url": "example.org:9000"}}, "input.s3.endpoint_url"),
    ({"s3": {**KEYS, "bucket_name": "b", "region": " "}}, "input.s3.region"),
    ({"s3": {**KEYS, "bucket_name": "b", "key_template": " {filename}"}}, "input.s3.key_template"),
    ({"s3": {**KEYS, "bucket_name": "b", "session_token": "planted\n"}}, "input.s3.session_token"),
    ({"s3": {**KEYS, "access_key_id": " planted-id ", "bucket_name": "b"}}, "input.s3.access_key_id"),
    ({"s3": {**KEYS, "secret_access_key": "planted-secret\n", "bucket_name": "b"}}, "input.s3.secret_access_key"),
    ({"put": {"url": SAS + "&se=2026-01-01&sp=r"}}, "input.put.url"),
    ({"put": {"url": "https://b.s3.amazonaws.com/{key}?" + SIGNED.format(9)}}, "input.put.url"),
    ({"hf": {"repo": "https://huggingface.co/a/b", "token": "planted"}}, "input.hf.repo"),
    ({"hf": {"repo": "a/b", "token": " planted"}}, "input.hf.token"),
    ({"hf": {"repo": "a/b", "token": "planted", "revision": "a b"}}, "input.hf.revision"),
]


async def test_a_store_that_would_refuse_is_refused_before_the_job_runs(front: RunningFront) -> None:
    for store, field in STORES:
        reply = await front.sync(draw(), **store)
        assert reply.status_code == 422, (store, reply.text)
        assert [problem["field"] for problem in reply.json()["error"]["problems"]] == [field], reply.text
        assert "planted" not in reply.text, reply.text
    assert front.engine.runs == []


async def test_a_host_that_may_hold_the_bucket_is_a_warning(front: RunningFront) -> None:
    store = {**KEYS, "bucket_name": "mybucket", "endpoint_url": "https://mybucket.example.org", "connect_attempts": 1}
    reply = await front.http.post("/generate", json={"input": {"workflow_json": draw(), "s3": store}})
    (warning,) = reply.json()["warnings"]
    assert (reply.status_code, warning["field"], warning["type"]) == (202, "input.s3.endpoint_url", "bucket_in_address")


@pytest.mark.parametrize(
    ("name", "value", "variable"),
    [
        ("s3_bucket_name", "mybucket/sub", "S3_BUCKET_NAME"),
        ("s3_bucket_name", "s3://mybucket", "S3_BUCKET_NAME"),
        ("s3_region", "us east", "S3_REGION"),
        ("s3_access_key_id", "planted\tid", "S3_ACCESS_KEY_ID"),
        ("s3_secret_access_key", "planted\tsecret", "S3_SECRET_ACCESS_KEY"),
        ("s3_key_template", "{filename} ", "S3_KEY_TEMPLATE"),
        ("s3_allowed_buckets", "a,b/c", "S3_ALLOWED_BUCKETS"),
        ("hf_output_repos", "a/b,https://huggingface.co/a/b", "HF_OUTPUT_REPOS"),
    ],
)
def test_the_operators_store_is_checked_at_the_start(tmp_path: Path, name: str, value: str, variable: str) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(SettingsInvalid) as refused:
        settings_for(tmp_path, "http://127.0.0.1:1", **changes)
    assert variable in str(refused.value) and "planted" not in str(refused.value)


def test_an_endpoint_with_the_bucket_in_it_is_found_at_the_start(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"s3_bucket_name": "mybucket", "s3_endpoint_url": "https://a.r2.dev/mybucket"}
    with pytest.raises(SettingsInvalid, match="S3_ENDPOINT_URL: the bucket 'mybucket' is in its path"):
        settings_for(tmp_path, "http://127.0.0.1:1", **changes)
