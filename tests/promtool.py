"""Prometheus' own programs, for the tests that check rules and queries with them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def find_prometheus(folder: Path) -> Path:
    """The folder that has `prometheus` and `promtool`: from PATH, else unpacked from Debian's package into `folder`.

    Skips the test where there is neither.
    """
    installed = shutil.which("promtool")
    if installed is not None and shutil.which("prometheus") is not None:
        return Path(installed).parent
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("promtool is not installed, and there is no apt-get to fetch it with")
    try:
        subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True, capture_output=True, timeout=90)
        (package,) = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=folder, check=True, timeout=90)
    except (subprocess.SubprocessError, ValueError) as error:
        pytest.skip(f"promtool is not installed and cannot be fetched: {error}")
    return folder / "usr" / "bin"
