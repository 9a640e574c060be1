"""Faults that stop the start of `python -m darkroom.worker`, and their words."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.app.serve import CannotStart, known_secrets, open_certificate
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.listener import TlsFiles
from tests.engine.server.certificate import write_certificate


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    key, certificate = write_certificate(tmp_path)
    other_key, _ = write_certificate(tmp_path / "other")
    assert open_certificate(None) is None
    open_certificate(TlsFiles(certificate=certificate, key=key))
    for wrong in (
        TlsFiles(certificate=tmp_path / "none.crt", key=key),
        TlsFiles(certificate=certificate, key=other_key),
        TlsFiles(certificate=key, key=certificate),
    ):
        with pytest.raises(CannotStart, match=f"SSL_CERTFILE {wrong.certificate} and SSL_KEYFILE {wrong.key}"):
            open_certificate(wrong)


def test_the_secrets_of_the_log_include_each_header_of_the_receiver_of_spans() -> None:
    given = {"otel_exporter_otlp_headers": "authorization=Bearer%20span-key,x-team=span-team"}
    known = known_secrets(load_settings(env_file=None, **given).settings)
    assert {"Bearer span-key", "span-team", given["otel_exporter_otlp_headers"]} <= set(known)
