"""Folder of a user's own modifiers: declarations (`*.toml`, `*.json`) and Python files with Modifier classes.

A file that cannot be used is reported with its reason and does not affect the others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.modifiers.declared import BadDeclaration, check_workflow, declared_modifier, parse_declaration
from darkroom.modifiers.modifier import Modifier


@dataclass(frozen=True, slots=True)
class FoundModifier:
    name: str
    modifier: type[Modifier]
    workflow: Mapping[str, Any]
    source: str


@dataclass(frozen=True, slots=True)
class BrokenModifier:
    """File that defines no modifier, with the reason."""

    name: str
    source: str
    reason: str


def read_folder(folder: Path) -> list[FoundModifier | BrokenModifier]:
    """Return every modifier of the folder in the order of its files; empty when there is no such folder."""
    found: list[FoundModifier | BrokenModifier] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.is_file() or path.name.startswith((".", "_")):
            continue
        try:
            found += _read_file(path)
        except BadDeclaration as error:
            found.append(BrokenModifier(_name_of(path), path.name, str(error)))
        except Exception as error:  # noqa: BLE001 - a user's modifier file: whatever it does, the worker starts
            found.append(BrokenModifier(_name_of(path), path.name, f"{type(error).__name__}: {error}"))
    return found


def _name_of(path: Path) -> str:
    """Return the name that a file declares for its modifier, else the file's, for a file that cannot be used."""
    try:
        raw = _parsed_toml(path) if path.suffix == ".toml" else _parsed_json(path) if path.suffix == ".json" else {}
    except (BadDeclaration, OSError, ValueError):
        raw = {}
    declared = raw.get("name") if isinstance(raw, dict) else None
    return declared if isinstance(declared, str) and declared else path.stem


def _read_file(path: Path) -> Iterator[FoundModifier]:
    """Yield the modifiers of a file. Raises BadDeclaration, and any exception of a user's code."""
    if path.suffix == ".toml":
        yield _declared(path, _parsed_toml(path))
    elif path.suffix == ".json":
        raw = _parsed_json(path)
        if isinstance(raw, dict) and isinstance(raw.get("workflow"), str):  # else it is a workflow
            yield _declared(path, raw)
    elif path.suffix == ".py":
        yield from _classes(path)


def _declared(path: Path, raw: Mapping[str, Any]) -> FoundModifier:
    declaration = parse_declaration(raw)
    workflow = _workflow(path, declaration.workflow)
    name = declaration.name or path.stem
    return FoundModifier(name, declared_modifier(declaration, name, workflow), workflow, path.name)


@contextlib.contextmanager
def _former_names() -> Iterator[None]:
    """Let a user's file import `modifiers`, the name of this package before it was `darkroom.modifiers`."""
    ours = {name: module for name, module in sys.modules.items() if f"{name}.".startswith("darkroom.modifiers.")}
    aliases = {name.removeprefix("darkroom."): module for name, module in ours.items()}
    sys.modules.update(aliases)
    try:
        yield
    finally:
        for name in aliases:
            sys.modules.pop(name, None)


def _classes(path: Path) -> Iterator[FoundModifier]:
    module_name = f"darkroom_user_modifiers.{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise BadDeclaration("is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # pydantic resolves the names in annotations there
    try:
        with _former_names():
            spec.loader.exec_module(module)
    except SystemExit as error:
        raise BadDeclaration(f"it leaves Python when it is imported ({error})") from None
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Modifier) and value.__module__ == module_name
    ]
    if not classes:
        raise BadDeclaration("it has no subclass of darkroom.modifiers.modifier.Modifier")
    for modifier in classes:
        if not hasattr(modifier, "workflow_file"):
            raise BadDeclaration(f"{modifier.__name__} has no `workflow_file`")
        workflow = check_workflow(_workflow(path, modifier.workflow_file))
        _check_places(modifier, workflow)
        yield FoundModifier(modifier.__name__, modifier, workflow, path.name)


def _check_places(modifier: type[Modifier], workflow: Mapping[str, Any]) -> None:
    for field, places in modifier.places().items():
        for place in places:
            if place.node_id not in workflow:
                raise BadDeclaration(f"{modifier.__name__}.{field}: the workflow has no node {place.node_id!r}")


def _workflow(path: Path, file_name: str) -> Any:
    """Return the workflow file beside the declaration. Raises BadDeclaration."""
    workflow = (path.parent / file_name).resolve()
    if not workflow.is_relative_to(path.parent.resolve()):
        raise BadDeclaration(f"the workflow {file_name} is outside the folder")
    if not workflow.is_file():
        raise BadDeclaration(f"there is no workflow file {file_name}")
    return _parsed_json(workflow)


def _parsed_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadDeclaration(f"{path.name} is not JSON: {error}") from None


def _parsed_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadDeclaration(f"{path.name} is not TOML: {error}") from None
