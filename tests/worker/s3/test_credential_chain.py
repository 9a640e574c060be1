"""Credentials that are no fixed keys: session tokens, profiles, web identity and roles, against moto's S3 and STS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pydantic import ValidationError

from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.s3.stores import S3Stores, StoreFailed
from darkroom.worker.s3.targets import S3Target, choose_target, find_missing_key
from darkroom.worker.settings.outputs import S3Config

BUCKET = "pictures"
ROLE = "arn:aws:iam::123456789012:role/uploads"
VARIABLES = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ROLE_ARN", "WEB_IDENTITY_TOKEN_FILE")


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    own: Any = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **own).create_bucket(Bucket=BUCKET)
    yield url
    server.stop()


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moto_url: str) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto_url)


def config(url: str, **settings: str) -> S3Config:
    return S3Config.model_validate({"bucket_name": BUCKET, "endpoint_url": url, "connect_attempts": 1, **settings})


def target_of(settings: S3Config) -> S3Target:
    target = choose_target(None, settings)
    assert target is not None and target.has_operators_key
    return target


async def signature_of(target: S3Target, tmp_path: Path) -> dict[str, list[str]]:
    """Upload a file, and return the query of its link."""
    path = tmp_path / "a.png"
    path.write_bytes(b"x")
    stores = S3Stores(AddressGuard(["127.0.0.1"]))
    try:
        await stores.write(target, path, "a.png", "image/png")
        return parse_qs(urlsplit(await stores.link(target, "a.png", 60)).query)
    finally:
        await stores.close()


async def test_a_session_token_goes_with_its_keys(moto_url: str, tmp_path: Path) -> None:
    keys = {"access_key_id": "ASIA1", "secret_access_key": "s", "session_token": "the-token"}
    query = await signature_of(target_of(config(moto_url, **keys)), tmp_path)
    assert query["X-Amz-Security-Token"] == ["the-token"]
    own = {"access_key_id": "MINE", "secret_access_key": "m"}
    without = choose_target(own, config(moto_url, **keys))
    with_own = choose_target({**own, "session_token": "my-token"}, config(moto_url, **keys))
    assert without is not None and without.session_token.get_secret_value() == ""
    assert with_own is not None and with_own.session_token.get_secret_value() == "my-token"
    assert "my-token" not in repr(with_own)


async def test_a_profile_has_its_own_keys(moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[shop]\naws_access_key_id = SHOP\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_PROFILE", "shop")
    query = await signature_of(target_of(config(moto_url, credentials="chain")), tmp_path)
    assert query["X-Amz-Credential"][0].startswith("SHOP/")
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(StoreFailed, match="AWS_PROFILE: no such profile"):
        await signature_of(target_of(config(moto_url, credentials="chain")), tmp_path)


async def test_the_chain_finds_a_web_identity(moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("a-signed-identity")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    query = await signature_of(target_of(config(moto_url, credentials="chain")), tmp_path)
    assert query["X-Amz-Security-Token"] and query["X-Amz-Credential"][0].startswith("ASIA")


async def test_a_profile_may_assume_a_role(moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[base]\naws_access_key_id = AKIA1\naws_secret_access_key = s\n")
    (tmp_path / "config").write_text(
        f"[profile uploads]\nrole_arn = {ROLE}\nexternal_id = x-1\nsource_profile = base\nregion = us-east-1\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "uploads")
    query = await signature_of(target_of(config(moto_url, credentials="chain")), tmp_path)
    assert query["X-Amz-Security-Token"] and query["X-Amz-Credential"][0].startswith("ASIA")


async def test_a_chain_that_finds_nothing_says_so(moto_url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="no credentials found"):
        await signature_of(target_of(config(moto_url, credentials="chain")), tmp_path)


def test_keys_and_the_chain_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="exclude"):
        config("", access_key_id="a", secret_access_key="b", credentials="chain")
    assert config("", credentials="chain").missing_names == ()
    assert config("", access_key_id="a").missing_names == ("S3_SECRET_ACCESS_KEY",)


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ({"bucket_name": "b"}, "access_key_id and secret_access_key missing"),
        ({"bucket_name": "b", "access_key_id": "a"}, "secret_access_key missing"),
        ({"endpoint_url": "https://s3.example", "secret_access_key": "a"}, "access_key_id missing"),
        ({"access_key_id": "a", "secret_access_key": "b"}, None),  # its inputs may be there
        ({"presign_seconds": 60}, None),
        ({"access_key_id": "", "bucket_name": ""}, None),
    ],
)
def test_a_store_without_credentials_for_it_is_a_problem(asked: dict[str, object], missing: str | None) -> None:
    problem = find_missing_key(asked, S3Config())
    assert (None if problem is None else problem.message.partition(";")[0]) == missing
    assert (
        find_missing_key(asked, config("", credentials="chain", bucket_name="own")) is None or "endpoint_url" in asked
    )
