"""What stops the start of `python -m worker`, and how it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.server.certificate import write_certificate
from worker.serve import CannotStart, open_certificate
from worker.setting_slices import TlsFiles


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    key, certificate = write_certificate(tmp_path)
    other_key, _ = write_certificate(tmp_path / "other")
    assert open_certificate(None) is None
    open_certificate(TlsFiles(certificate, key))
    for wrong in (TlsFiles(tmp_path / "none.crt", key), TlsFiles(certificate, other_key), TlsFiles(key, certificate)):
        with pytest.raises(CannotStart, match=f"SSL_CERTFILE {wrong.certificate} and SSL_KEYFILE {wrong.key}"):
            open_certificate(wrong)
