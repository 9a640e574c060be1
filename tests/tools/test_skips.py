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
SOURCES = {
    "in_a_test": "import pytest\ndef test_it():\n    pytest.skip({reason!r})\n",
    "of_a_file": "import pytest\npytest.skip({reason!r}, allow_module_level=True)\n",
    "by_a_mark": "import pytest\n@pytest.mark.skipif(True, reason={reason!r})\ndef test_it():\n    pass\n",
    "of_a_library": "import pytest\npytest.importorskip('no_such_library', reason={reason!r})\n",
}
MISSING = "bubblewrap is not installed"
REASONS = {"missing": MISSING, "gpu": "needs a CUDA device", "shared": "there is no ../shared/field/inputs"}


@pytest.mark.parametrize(("ci", "fails"), [("", set()), ("true", {f"test_{way}_missing.py" for way in SOURCES})])
def test_a_missing_program_fails_in_continuous_integration_alone(tmp_path: Path, ci: str, fails: set[str]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    hooks = "pytest_make_collect_report, pytest_runtest_makereport"
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import {hooks}\n")
    for way, source in SOURCES.items():
        for name, reason in REASONS.items():
            path = tmp_path / f"test_{way}_{name}.py"
            path.write_text(source.format(reason=reason) + "def test_other():\n    pass\n")
    options = ["-q", "-rfE", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (test_\w+\.py)", ran.stdout, re.MULTILINE)
    assert sorted(failed) == sorted(fails), ran.stdout + ran.stderr
    assert ran.returncode == bool(fails) and ran.stdout.count(MISSING) >= len(fails)


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
