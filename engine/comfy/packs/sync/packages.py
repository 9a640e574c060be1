"""Python packages of packs: resolved by pip against the engine's own versions, installed into a layer of their own."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from darkroom.engine.comfy.packs.assumed_packages import assumed_packages
from darkroom.engine.comfy.packs.requirements import KEPT
from darkroom.engine.comfy.packs.sync.errors import RequirementsRefused
from darkroom.engine.comfy.packs.sync.lock import LockedPackage
from darkroom.host.distribution import DISTRIBUTION

NOT_KEPT = frozenset({DISTRIBUTION, "pip"})  # no part of what packs build on
_LEADING_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True, slots=True)
class PackRequirements:
    """Requirements of one pack: the text of its `requirements.txt` without the names that are skipped.

    `brought` are the packages that its `install.py` installed at an earlier sync.
    """

    pack: str
    text: str
    brought: Sequence[LockedPackage] = ()

    @property
    def lines(self) -> str:
        """The text of a requirements file with both."""
        return "\n".join([self.text, *(item.without_hash for item in self.brought)]).strip()

    @property
    def identity(self) -> str:
        """Text that the choice of packages follows from."""
        return "\n".join([self.pack, self.text, *(f"{item.name}=={item.version}" for item in self.brought)])


@dataclass(frozen=True, slots=True)
class Installer:
    """Pip with constraints. `wheels` is a folder of wheels: then no index is asked."""

    constraints: Sequence[str]
    wheels: Path | None = None

    def environment_hash(self, requirements: Sequence[PackRequirements]) -> str:
        """Return a hash of all that a resolution follows from, but for what an index offers that day."""
        python = ".".join(platform.python_version_tuple()[:2])
        parts = [python, platform.machine(), sys.platform]
        parts += [item for item in sorted(self.constraints) if not item.startswith("setuptools==")]  # venv brings one
        parts += [item.identity for item in requirements]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def resolve(self, requirements: Sequence[PackRequirements]) -> tuple[LockedPackage, ...]:
        """Return the packages to install besides the engine's own. Raises RequirementsRefused naming each pack."""
        needed = [item for item in requirements if item.lines]
        if not needed:
            return ()
        packages, reason = self._plan(needed)
        if packages is not None:
            brought_by = {one.name: item.pack for item in needed for one in item.brought}
            return tuple(replace(item, installed_by=brought_by.get(item.name, "")) for item in packages)
        if len(needed) == 1:
            raise RequirementsRefused(f"{needed[0].pack}: its requirements cannot be installed: {reason}")
        accepted: list[PackRequirements] = []
        refused = []
        for item in needed:
            packages, reason = self._plan([*accepted, item])
            if packages is not None:
                accepted.append(item)
                continue
            alone = self._plan([item])[0] if accepted else None
            with_others = "" if alone is None else f" together with those of {', '.join(one.pack for one in accepted)}"
            refused.append(f"{item.pack}: its requirements cannot be installed{with_others}: {reason}")
        raise RequirementsRefused("\n".join(refused) or "the requirements of the packs cannot be installed together")

    def _plan(self, requirements: Sequence[PackRequirements]) -> tuple[tuple[LockedPackage, ...] | None, str]:
        """Return pip's plan, or None with the reason why there is none."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            options = ["--dry-run", "--report", str(report), *self._limits(Path(folder))]
            for number, item in enumerate(requirements):
                # In a folder of the pack's name, since pip names the file in its messages.
                file = Path(folder, str(number), item.pack, "requirements.txt")
                file.parent.mkdir(parents=True)
                file.write_text(item.lines, "utf-8")
                options += ["-r", str(file)]
            done = self._run_pip(["install", *options])
            if done.returncode != 0:
                return None, explain(f"{done.stdout}\n{done.stderr}")
            packages = planned_packages(json.loads(report.read_text("utf-8")))
        kept = {name for name in KEPT if any(line.startswith(f"{name}==") for line in self.constraints)}
        moved = [f"{item.name} {item.version}" for item in packages if item.name in kept]
        return (None, f"would move {', '.join(moved)}") if moved else (packages, "")

    def install(self, packages: Sequence[LockedPackage], layer: Path) -> None:
        """Install exactly these packages below `layer`. Raises RequirementsRefused."""
        for is_hashed in (True, False):
            chosen = [item.requirement for item in packages if bool(item.sha256) is is_hashed]
            if chosen:
                options = ["--prefix", str(layer), "--ignore-installed", "--no-deps"]
                self._run_exact("install", chosen, [*options, *(["--require-hashes"] if is_hashed else [])])

    def collect(self, packages: Sequence[LockedPackage], folder: Path) -> tuple[LockedPackage, ...]:
        """Put a wheel of each package into `folder`, built here where an index has none.

        Return the packages with the hashes of these wheels. Raises RequirementsRefused.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for is_hashed in (True, False):
            chosen = [item.requirement for item in packages if bool(item.sha256) is is_hashed]
            if chosen:
                options = ["--wheel-dir", str(folder), "--no-deps", *(["--require-hashes"] if is_hashed else [])]
                self._run_exact("wheel", chosen, options)
        wheels = {plain_name(file.name.partition("-")[0]): file for file in folder.glob("*.whl")}
        digests = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in wheels.items()}
        return tuple(replace(item, url="", sha256=digests[item.name]) for item in packages)

    def _run_exact(self, command: str, lines: Sequence[str], options: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "locked.txt")
            file.write_text("\n".join(lines) + "\n", "utf-8")
            done = self._run_pip([command, *options, *self._index(), "-r", str(file)])
        if done.returncode != 0:
            raise RequirementsRefused(f"the locked Python packages cannot be installed: {explain(done.stderr)}")

    def _run_pip(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run pip of this interpreter without questions and capture what it prints.

        With a folder of wheels the machine's own settings of pip do not count, which may name other sources.
        """
        own_settings = [] if self.wheels is None else ["env", "PIP_CONFIG_FILE=/dev/null"]
        command = [*own_settings, sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )

    def _limits(self, folder: Path) -> list[str]:
        file = folder / "installed.txt"
        file.write_text("\n".join(self.constraints) + "\n", "utf-8")
        return ["-c", str(file), *self._index()]

    def _index(self) -> list[str]:
        return [] if self.wheels is None else ["--no-index", "--find-links", str(self.wheels.absolute())]


def installed_constraints() -> list[str]:
    """Return `name==version` of every installed package but our own: a pack may add packages and move none."""
    found: dict[str, str] = {}
    for item in metadata.distributions():
        name = plain_name(item.metadata["Name"] or "")
        if name and name not in NOT_KEPT:
            found.setdefault(name, item.version)  # the first on the path is the one that is imported
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def requirements_of(pack: str, folder: Path, skipped: Sequence[str]) -> PackRequirements:
    """Return the requirements of a pack's folder, with packages of ComfyUI's that it imports without naming them.

    Lines of packages in `skipped` are left out.
    """
    file = folder / "requirements.txt"
    lines = file.read_text("utf-8-sig", errors="replace").splitlines() if file.is_file() else []
    lines += assumed_packages(folder)
    return PackRequirements(pack, "\n".join(line for line in lines if _named(line) not in skipped))


def _named(line: str) -> str:
    found = _LEADING_NAME.match(line)
    return plain_name(found[1]) if found else ""


def plain_name(name: str) -> str:
    """Return a package's name as indexes compare it.

    >>> plain_name("Some_Thing.More")
    'some-thing-more'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def planned_packages(report: Mapping[str, Any]) -> tuple[LockedPackage, ...]:
    """Return the packages in a report of `pip install --dry-run --report`."""
    found = []
    for item in report.get("install", []):
        about, origin = item["metadata"], item.get("download_info", {})
        url = version_control_url(origin) or str(origin.get("url", ""))
        hashes = origin.get("archive_info", {}).get("hashes", {})
        is_file = url.startswith("file:") or not url
        found.append(
            LockedPackage(
                plain_name(about["name"]), about["version"], "" if is_file else url, str(hashes.get("sha256", ""))
            )
        )
    return tuple(found)


def version_control_url(origin: Mapping[str, Any]) -> str:
    """Return the requirement's URL of a package that pip took from a repository; empty for another. See PEP 610."""
    about = origin.get("vcs_info")
    return f"{about['vcs']}+{origin['url']}@{about['commit_id']}" if about else ""


def site_packages(prefix: Path) -> Path:
    """Return the folder of packages below a prefix of this interpreter, as pip lays it out. It may not exist."""
    schemes = {"base": str(prefix), "platbase": str(prefix)}
    return Path(sysconfig.get_path("purelib", "venv", schemes))


def explain(output: str) -> str:
    """Return pip's reason for a failure as one line: its errors, and the requirements that conflict."""
    lines = [line.strip() for line in output.splitlines()]
    said = [
        line.removeprefix("ERROR: ")
        for line in lines
        if line.startswith(("ERROR:", "The user requested", "The conflict is caused by")) or " depends on " in line
    ]
    kept = [line for line in dict.fromkeys(said) if "ResolutionImpossible" not in line]
    last = [line for line in lines if line][-1:] or ["pip gave no reason"]
    return " ".join(kept[:8] or last)[:1200]
