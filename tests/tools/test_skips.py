"""Skipped tests in continuous integration: a missing program fails there, a missing GPU does not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / ".ci" / "run"
PACKAGES = ROOT / "tests" / "system_packages.txt"
IN_A_TEST = "import pytest\ndef test_it():\n    pytest.skip({reason!r})\n"
OF_A_FILE = "import pytest\npytest.skip({reason!r}, allow_module_level=True)\n"
BY_A_MARK = "import pytest\n@pytest.mark.skipif(True, reason={reason!r})\ndef test_it():\n    pass\n"
OF_A_LIBRARY = "import pytest\npytest.importorskip('no_such_library', reason={reason!r})\n"


@pytest.mark.parametrize("source", [IN_A_TEST, OF_A_FILE, BY_A_MARK, OF_A_LIBRARY])
def test_a_missing_program_fails_in_continuous_integration_alone(tmp_path: Path, source: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_make_collect_report\n")
    with (tmp_path / "conftest.py").open("a") as file:
        file.write("from tests.conftest import pytest_runtest_makereport\n")
    for reason, ci, passes in (
        ("bubblewrap is not installed", "", True),
        ("bubblewrap is not installed", "true", False),
        ("needs a CUDA device", "true", True),
        ("there is no ../shared/field/inputs", "true", True),
    ):
        (tmp_path / "test_it.py").write_text(source.format(reason=reason) + "def test_other():\n    pass\n")
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "CI": ci},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode in (0, 5)) == passes, (reason, ci, ran.stdout + ran.stderr)
        assert passes or reason in ran.stdout


def test_continuous_integration_installs_what_is_missing_and_calls_the_tests(tmp_path: Path) -> None:
    """With stand-ins for apt and dpkg, since installing for real needs root and a mirror."""
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    (checkout / ".ci").mkdir(parents=True)
    (checkout / "tests").mkdir()
    programs.mkdir()
    shutil.copy(RUN, checkout / ".ci" / "run")
    shutil.copy(PACKAGES, checkout / "tests" / PACKAGES.name)
    stand_ins = {
        programs / "id": "echo 0",
        programs / "apt-get": 'echo "apt-get $*" >>"$LOG"',
        programs / "dpkg-query": 'case "$*" in *redis-server) exit 1 ;; *) echo installed ;; esac',
        checkout / "test.sh": 'echo "tests with CI=$CI" >>"$LOG"; exit 7',
    }
    for path, script in stand_ins.items():
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "LOG": str(log)}
    assert subprocess.run([checkout / ".ci" / "run"], env=environment, check=False).returncode == 7
    assert log.read_text().splitlines() == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends redis-server",
        "tests with CI=true",
    ]


def test_each_listed_package_is_one_name() -> None:
    names = [line for line in PACKAGES.read_text().splitlines() if not line.startswith("#")]
    assert names == sorted(names) and all(re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name) for name in names)
