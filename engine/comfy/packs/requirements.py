"""Installation of a pack's requirements without changing the versions the engine depends on."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from darkroom.contract.missing_file import missing_file
from darkroom.engine.comfy.known_names import read_known_names
from darkroom.engine.comfy.packs.assumed_packages import assumed_packages, unmet_imports

KEPT = ("torch", "torchvision", "torchaudio", "numpy")


def install(pack: Path, constraints: Path | None = None, *, dry_run: bool = False) -> int:
    """Install a pack's `requirements.txt` with pip, and the packages of ComfyUI's that it imports without naming them.

    Refuse, with 1, a folder that is none, and a change of torch. pip's plan is checked before it is carried out. A
    conflict is reported by pip and changes nothing. What the pack imports and nothing brings is said.
    """
    if not pack.is_dir():
        problem = "is a file" if pack.exists() else missing_file(pack, kind="folder")
        sys.stderr.write(f"{pack}: {problem}; expected that of a pack, such as custom_nodes/{pack.name}\n")
        return 1
    requirements = pack / "requirements.txt"
    assumed = assumed_packages(pack)
    if not requirements.is_file() and not assumed:
        sys.stdout.write(f"{pack.name} asks for nothing: it has no requirements.txt\n")
        _tell_unmet(pack)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        limits = Path(folder, "kept.txt")
        kept = [f"{name}=={version}" for name, version in kept_versions().items()]
        limits.write_text("\n".join(kept))
        report = Path(folder, "report.json")
        options = [*(["-r", str(requirements)] if requirements.is_file() else []), *assumed, "-c", str(limits)]
        if constraints is not None:
            options += ["-c", str(constraints)]
        code = _pip(["--dry-run", "--quiet", "--report", str(report), *options])
        if code != 0:
            never = f" ({', '.join(kept)} never move)" if kept else ""
            sys.stderr.write(
                f"{pack.name}: its requirements conflict with what is installed{never}; nothing was changed\n"
            )
            return 1
        planned = planned_installs(json.loads(report.read_text("utf-8")))
        moved = [f"{name} {version}" for name, version in planned if name in kept_versions()]
        if moved:
            sys.stderr.write(f"{pack.name} would move {', '.join(moved)}; nothing was changed\n")
            return 1
        sys.stdout.writelines(f"{name} {version}\n" for name, version in planned)
        code = 0 if dry_run or not planned else _pip(options)
    if code == 0 and not dry_run:
        _tell_unmet(pack)
    return code


def _tell_unmet(pack: Path) -> None:
    """Report the modules that the pack imports and nothing has, so that it will not load."""
    importlib.invalidate_caches()
    known = read_known_names()
    for name in unmet_imports(pack, {*known.roots, *known.bare}):
        sys.stderr.write(
            f"{pack.name} imports {name}, which is not installed and which its requirements do not bring; expected a "
            "package that has it: see the pack's own instructions\n"
        )


def kept_versions() -> dict[str, str]:
    """Return the installed versions of the packages that must not change."""
    found = {}
    for name in KEPT:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def planned_installs(report: dict[str, list[dict[str, dict[str, str]]]]) -> list[tuple[str, str]]:
    """Return name and version of each package in a report of `pip install --dry-run --report`."""
    items = [item["metadata"] for item in report.get("install", [])]
    return [(item["name"].lower().replace("_", "-"), item["version"]) for item in items]


def _pip(options: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pip", "install", *options], check=False).returncode
