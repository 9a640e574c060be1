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
    """Paths, relative to `root`, of what git knows or would not ignore, as far as it exists."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (root / name).is_file()]


def copy_tracked_files(root: Path, target: Path) -> None:
    for path in tracked_files(root):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target / path)
