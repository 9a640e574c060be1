"""Report known vulnerabilities of the pinned versions, from advisories that are on this machine.

    python tools/audit.py FOLDER_OR_ZIP [constraints.txt]

The advisories are JSON files in the OSV format, in a folder or a zip: the Python Packaging Advisory Database, say, or
OSV's export for PyPI. Nothing is asked of the network. The exit code is 1 when a pinned version is affected.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Finding:
    """An advisory that a pinned version falls under."""

    package: str
    version: str
    advisory: str
    summary: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {self.advisory} {self.summary}".rstrip()


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    pins = read_pins(Path(sys.argv[2] if len(sys.argv) > 2 else "constraints.txt").read_text(encoding="utf-8"))
    num_advisories, findings = 0, list[Finding]()
    for advisory in read_advisories(Path(sys.argv[1])):
        num_advisories += 1
        findings += find_affected(advisory, pins)
    print(f"{len(pins)} pinned packages, {num_advisories} advisories, {len(findings)} findings")
    for finding in findings:
        print(finding)
    return 1 if findings or not num_advisories else 0


def read_pins(text: str) -> dict[str, str]:
    """Return name and version of each `name==version` line."""
    pairs = (line.partition("==") for line in text.splitlines() if "==" in line and not line.startswith(("#", " ")))
    return {canonicalize_name(name.partition("[")[0]): version.split()[0].rstrip(";\\") for name, _, version in pairs}


def read_advisories(source: Path) -> Iterator[dict[str, Any]]:
    """Yield every advisory of a folder or a zip that has not been withdrawn."""
    if source.is_dir():
        texts = (path.read_bytes() for path in sorted(source.rglob("*.json")))
    else:
        archive = zipfile.ZipFile(source)
        texts = (archive.read(name) for name in sorted(archive.namelist()) if name.endswith(".json"))
    for text in texts:
        advisory: dict[str, Any] = json.loads(text)
        if "withdrawn" not in advisory:
            yield advisory


def find_affected(advisory: Mapping[str, Any], pins: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each pinned version that the advisory names."""
    findings = []
    for affected in advisory.get("affected", ()):
        package = affected.get("package", {})
        name = canonicalize_name(package.get("name", ""))
        if package.get("ecosystem") == "PyPI" and name in pins and _is_affected(affected, pins[name]):
            findings.append(Finding(name, pins[name], advisory["id"], advisory.get("summary", "")))
    return findings


def _is_affected(affected: Mapping[str, Any], version: str) -> bool:
    if version in affected.get("versions", ()):
        return True
    ranges = (entry["events"] for entry in affected.get("ranges", ()) if entry.get("type") == "ECOSYSTEM")
    return any(_is_within(events, Version(version)) for events in ranges)


def _is_within(events: list[Mapping[str, str]], version: Version) -> bool:
    """Evaluate a range of the OSV schema: the last event at or below the version decides."""
    is_within = False
    for kind, bound in sorted(((kind, _version(text)) for event in events for kind, text in event.items()), key=_order):
        if kind == "introduced" and version >= bound:
            is_within = True
        elif (kind == "fixed" and version >= bound) or (kind == "last_affected" and version > bound):
            is_within = False
    return is_within


def _order(event: tuple[str, Version]) -> tuple[Version, bool]:
    return event[1], event[0] != "introduced"


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


if __name__ == "__main__":
    sys.exit(main())
