"""Darkroom installed from its wheel, for tests that must not see the source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class InstalledWheel:
    """`site` is a folder that only needs to come first on the import path; the dependencies are the test's own."""

    wheel: Path
    site: Path

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.site)}

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs the installed `darkroom` command away from the source tree."""
        return subprocess.run(
            [str(self.site / "bin" / "darkroom"), *command],
            cwd=cwd,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )


def tracked_files(root: Path) -> list[Path]:
    """Paths, relative to `root`, of the files that git knows or would not ignore, as far as they exist."""
    return [path for path in _tracked(root) if (root / path).is_file()]


def _tracked(root: Path) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name]


def copy_tracked_files(root: Path, target: Path) -> None:
    """Copy them, and the links by which `darkroom` holds its rooms."""
    for path in _tracked(root):
        if (root / path).is_symlink():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).symlink_to((root / path).readlink())
    for path in tracked_files(root):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target / path)
