"""TLS of the front's own: the certificate follows its files, and replies say that TLS is to be kept."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from darkroom.worker.guard.listener.certificate import LOOK_SECONDS, Certificate
from darkroom.worker.settings.listener import TlsFiles
from tests.engine.server.certificate import write_certificate
from tests.fakes import FakeEngine, draw
from tests.security.front_process import FrontProcess, front_process
from tests.worker.running_front import until


def shown_by(url: str) -> str:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    pem = ssl.get_server_certificate((parts.hostname, parts.port))
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def digest_of(certificate: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()


async def until_shown(front: FrontProcess, digest: str) -> None:
    async def is_shown() -> bool:
        return await asyncio.to_thread(shown_by, front.url) == digest

    await until(is_shown)


async def test_a_certificate_that_changes_on_disk_is_taken_without_a_restart(
    tmp_path: Path, engine: FakeEngine
) -> None:
    for name in ("live", "next"):
        (tmp_path / name).mkdir()
    key, certificate = write_certificate(tmp_path / "live")
    next_key, next_certificate = write_certificate(tmp_path / "next")
    async with front_process(tmp_path, engine, tls=TlsFiles(certificate=certificate, key=key)) as front:
        first = digest_of(certificate)
        await until_shown(front, first)
        certificate.write_text("no certificate")
        await asyncio.sleep(LOOK_SECONDS + 0.3)
        await until_shown(front, first)
        shutil.copy(next_certificate, certificate)  # the key is not there yet
        await asyncio.sleep(LOOK_SECONDS + 0.3)
        await until_shown(front, first)
        assert "certificate reload failed, old one kept" in front.log.read_text()
        shutil.copy(next_key, key)
        await until_shown(front, digest_of(next_certificate))
        done = await front.http.post("/generate/sync", json={"input": {"workflow_json": draw()}})
        assert done.status_code == 200
        assert done.headers["strict-transport-security"] == "max-age=86400"
        assert done.json()["output"][0]["url"].startswith("https://")
        assert "certificate reloaded" in front.log.read_text()


def test_files_are_looked_at_every_few_seconds_at_most(tmp_path: Path) -> None:
    now = 0.0
    key, file = write_certificate(tmp_path)
    certificate = Certificate(TlsFiles(certificate=file, key=key), lambda: now)
    first = certificate.context()
    write_certificate(tmp_path)
    assert certificate.context() is first
    now = LOOK_SECONDS
    second = certificate.context()
    assert second is not first
    file.unlink()
    now *= 2
    assert certificate.context() is second


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_of_tls_are_not_spoken(tmp_path: Path, version: ssl.TLSVersion) -> None:
    key, file = write_certificate(tmp_path)
    context = Certificate(TlsFiles(certificate=file, key=key)).context()
    assert context.minimum_version > version
    assert context.options & ssl.OP_NO_RENEGOTIATION
