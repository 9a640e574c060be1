"""Wheels packed from what is installed: pip installs them as it installed the first ones."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from darkroom.worker.snapshot.wheels import pack_environment


def test_an_installed_package_is_packed_so_that_pip_takes_it(tmp_path: Path) -> None:
    # One with a script of an entry point, one with compiled code.
    wheels = pack_environment(tmp_path / "wheels", ["mako", "MarkupSafe"])
    assert [(wheel.name, wheel.version) for wheel in wheels] == [
        ("mako", metadata.version("mako")),
        ("markupsafe", metadata.version("markupsafe")),
    ]
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("".join(f"{wheel.requirement}\n" for wheel in wheels))
    target = tmp_path / "installed"
    options = ["--no-index", "--find-links", str(tmp_path / "wheels"), "--no-deps", "--require-hashes"]
    install = [sys.executable, "-m", "pip", "install", "--prefix", str(target), "--ignore-installed", *options]
    done = subprocess.run([*install, "-r", str(requirements)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (target / "bin" / "mako-render").is_file()
    packages = next((target / "lib").glob("python*/site-packages"))
    code = f"import sys; sys.path.insert(0, {str(packages)!r}); import markupsafe._speedups as one; print(one.__file__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(str(packages)), done.stderr


def test_packing_twice_gives_the_same_file(tmp_path: Path) -> None:
    first, second = (pack_environment(tmp_path / name, ["idna"])[0] for name in ("a", "b"))
    assert first.sha256 == second.sha256
    with zipfile.ZipFile(first.path) as wheel:
        names = wheel.namelist()
    assert any(name.endswith(".dist-info/RECORD") for name in names)
    assert not any(name.endswith((".pyc", "INSTALLER", "direct_url.json")) for name in names)
