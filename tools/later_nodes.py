"""Writes the names of ComfyUI's own nodes that this engine does not have, each with the version that they came with.

    python -m tools.later_nodes GIT_DIRECTORY TEMPLATES_FOLDER

`GIT_DIRECTORY` is that of a clone of ComfyUI: names are read from its sources as they were at each version.
`TEMPLATES_FOLDER` has the workflows of `comfyui-workflow-templates`, whose nodes note the version of their page: of a
node that the clone does not have yet it is the lowest of those. Only names and versions are written, to
`worker/engines/later_nodes.toml`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from darkroom.engine.nodes.built_in import built_in_nodes
from tools.node_table import NoFiles

TABLE = Path(__file__).resolve().parent.parent / "worker" / "engines" / "later_nodes.toml"
SOURCES = re.compile(r"(nodes|comfy_extras/\w+|comfy_api_nodes/\w+)\.py")
VERSION_FILE = "comfyui_version.py"
PARTNERS = "comfy_api_nodes/"
CORE_PACK = "comfy-core"
VERSION = re.compile(r"\d+(?:\.\d+){1,2}")

Version = tuple[int, ...]


class Clone:
    """A clone of ComfyUI. Names are read once from each state of a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: dict[str, frozenset[str]] = {}  # by blob

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield commit and version of each change of the version, the oldest first, and of the newest commit."""
        commits = self._git("log", "--format=%H", "--reverse", "--", VERSION_FILE).split()
        for commit in dict.fromkeys([*commits, self._git("rev-parse", "HEAD").strip()]):
            found = VERSION.search(self._git("show", f"{commit}:{VERSION_FILE}").rpartition("=")[2])
            if found:
                yield commit, found.group()

    def names_at(self, commit: str) -> Iterator[tuple[str, bool]]:
        """Yield the classes at a commit; True for those of partners."""
        for line in self._git("ls-tree", "-r", commit).splitlines():
            described, _, path = line.partition("\t")
            if SOURCES.fullmatch(path):
                for name in self._names_in(described.split()[2]):
                    yield name, path.startswith(PARTNERS)

    def _names_in(self, blob: str) -> frozenset[str]:
        if blob not in self._names:
            self._names[blob] = frozenset(names_in(self._git("cat-file", "blob", blob)))
        return self._names[blob]

    def _git(self, *arguments: str) -> str:
        command = ["git", f"--git-dir={self._directory}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def names_in(source: str) -> Iterator[str]:
    """Yield the classes that a module registers, in either way."""
    for item in ast.walk(ast.parse(source)):
        if isinstance(item, ast.keyword) and item.arg == "node_id" and isinstance(item.value, ast.Constant):
            yield str(item.value.value)
        elif isinstance(item, ast.Assign | ast.AnnAssign) and isinstance(item.value, ast.Dict):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            if any(isinstance(target, ast.Name) and target.id == "NODE_CLASS_MAPPINGS" for target in targets):
                yield from (str(key.value) for key in item.value.keys if isinstance(key, ast.Constant))


def noted_in(value: Any) -> Iterator[tuple[str, str]]:
    """Yield class and version of each node of a page, also inside of subgraphs, that notes ComfyUI as its pack."""
    if isinstance(value, Mapping):
        properties = value.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        is_noted = properties.get("cnr_id") == CORE_PACK and VERSION.fullmatch(str(properties.get("ver")))
        if is_noted and isinstance(value.get("type"), str):
            yield value["type"], str(properties["ver"])
        for item in value.values():
            yield from noted_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from noted_in(item)


def parsed(version: str) -> Version:
    return tuple(map(int, version.split(".")))


def collect(clone: Clone, templates: Path, own: frozenset[str]) -> dict[str, dict[str, str]]:
    """Return the classes that are not among `own`: ComfyUI's by version, and those of partners."""
    core: dict[str, str] = {}
    partner: dict[str, str] = {}
    newest: Version = ()
    for commit, version in clone.versions():
        newest = max(newest, parsed(version))
        for name, is_partner in clone.names_at(commit):
            (partner if is_partner else core).setdefault(name, version)
    noted: dict[str, str] = {}
    for path in sorted(templates.rglob("*.json")):
        for name, version in noted_in(json.loads(path.read_text(encoding="utf-8"))):
            if name not in core and name not in partner and parsed(version) > newest:
                noted[name] = min(noted.get(name, version), version, key=parsed)
    core |= noted
    return {
        "core": {name: core[name] for name in sorted(core) if name not in own and name not in partner},
        "partner": {name: partner[name] for name in sorted(partner) if name not in own},
    }


def as_toml(found: Mapping[str, Mapping[str, str]]) -> str:
    lines = [
        "# ComfyUI's own nodes that this engine does not have, and the version each came with: tools/later_nodes.py"
    ]
    for part, classes in found.items():
        lines += [
            "",
            f"[{part}]",
            *(f"{json.dumps(name)} = {json.dumps(version)}" for name, version in classes.items()),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("templates", type=Path)
    arguments = parser.parse_args()
    own = frozenset(node.spec(NoFiles()).class_type for node in built_in_nodes())
    found = collect(Clone(arguments.clone), arguments.templates, own)
    TABLE.write_text(as_toml(found), encoding="utf-8")
    print({name: len(classes) for name, classes in found.items()})  # noqa: T201


if __name__ == "__main__":
    main()
