"""Modifiers of a user's own: what a declaration gives, and what is said of one that cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from darkroom.modifiers.modifier import RANDOM_INT, ModificationsRejected
from darkroom.modifiers.registry import ModifierUnusable, UnknownModifier, build_registry
from darkroom.modifiers.user_folder import BrokenModifier, FoundModifier, read_folder

WORKFLOW = {
    "1": {"class_type": "A", "inputs": {"text": "as drawn", "steps": 9, "seed": 1, "link": ["2", 0]}},
    "2": {"class_type": "B", "inputs": {"flag": True, "size": "small", "share": 0.5}},
}

WHOLE: dict[str, Any] = {
    "workflow": "flow.json",
    "description": "All kinds.",
    "parameters": {
        "text": {"into": "1.text", "type": "text"},
        "steps": {"into": "1.steps", "type": "integer", "minimum": 1, "maximum": 20, "default": 4},
        "seed": {"into": "1.seed", "type": "seed"},
        "flag": {"into": "2.flag", "type": "boolean"},
        "size": {"into": "2.size", "type": "choice", "choices": ["small", "large"]},
        "share": {"into": ["2.share"], "type": "number", "maximum": 1},
        "both": {"into": ["1.text", "2.size"], "type": "text", "required": True},
    },
}


def write(folder: Path, declaration: Any, workflow: Any = WORKFLOW) -> None:
    (folder / "flow.json").write_text(json.dumps(workflow))
    (folder / "Mine.json").write_text(json.dumps(declaration))


def broken_by(folder: Path, declaration: Any, workflow: Any = WORKFLOW) -> str:
    write(folder, declaration, workflow)
    (entry,) = read_folder(folder)
    assert isinstance(entry, BrokenModifier), entry
    assert (entry.name, entry.source) == ("Mine", "Mine.json")
    return entry.reason


def with_parameter(**parameter: Any) -> dict[str, Any]:
    return {"workflow": "flow.json", "parameters": {"one": parameter}}


def test_a_parameter_keeps_what_the_workflow_has_unless_another_is_given(tmp_path: Path) -> None:
    write(tmp_path, {**WHOLE, "parameters": {k: v for k, v in WHOLE["parameters"].items() if k != "both"}})
    prompt = build_registry(tmp_path).build("Mine", {})
    assert prompt["1"]["inputs"] == {"text": "as drawn", "steps": 4, "seed": RANDOM_INT, "link": ["2", 0]}
    assert prompt["2"]["inputs"] == WORKFLOW["2"]["inputs"]


def test_every_parameter_is_checked_and_lands_in_all_its_places(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    registry = build_registry(tmp_path)
    prompt = registry.build("Mine", {"both": "x", "size": "large", "flag": False, "share": "0.25", "steps": 20})
    assert (prompt["1"]["inputs"]["text"], prompt["2"]["inputs"]["size"]) == ("x", "x")
    with pytest.raises(ModificationsRejected) as caught:
        registry.build("Mine", {"steps": 21, "flag": "yes", "size": "huge", "share": 2, "seed": -1, "more": 1})
    problems = {problem["field"]: problem["allowed"] for problem in caught.value.problems}
    assert set(problems) == {"steps", "flag", "size", "share", "seed", "both", "more"}
    assert problems["steps"] == {"type": "integer", "minimum": 1, "maximum": 20}
    assert problems["size"]["enum"] == ["small", "large"]


def test_toml_and_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text(json.dumps(WORKFLOW))
    (tmp_path / "x.toml").write_text(
        'name = "Poster"\nworkflow = "flow.json"\n[parameters.a]\ninto="1.text"\ntype="text"'
    )
    (entry,) = read_folder(tmp_path)
    assert isinstance(entry, FoundModifier) and (entry.name, entry.source) == ("Poster", "x.toml")


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ({"into": "7.text", "type": "text"}, "no node '7'; it has 1, 2"),
        ({"into": "1.txt", "type": "text"}, "no input 'txt'; it has text, steps"),
        ({"into": "1.link", "type": "text"}, "comes from another node"),
        ({"into": "text", "type": "text"}, "like 6.text"),
        ({"into": "1.text", "type": "word"}, "parameters.one.type"),
        ({"into": "1.text", "type": "choice"}, "`choices`"),
        ({"into": "1.text", "type": "text", "minimum": 1}, "`minimum`"),
        ({"into": "1.steps", "type": "integer", "minimum": 10}, "one: "),
        ({"into": "1.steps", "type": "integer", "default": 3, "maximum": 2}, "a default is out of its range"),
        ({"into": "1.text", "type": "text", "requird": True}, "parameters.one.requird"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, parameter: dict[str, Any], words: str
) -> None:
    assert words in broken_by(tmp_path, with_parameter(**parameter))


def test_workflows_that_are_none_are_distinguished(tmp_path: Path) -> None:
    declaration = {"workflow": "flow.json"}
    assert "API format" in broken_by(tmp_path, declaration, {"nodes": [], "links": []})
    assert "class_type" in broken_by(tmp_path, declaration, {"1": {}})
    assert "no workflow file" in broken_by(tmp_path, {"workflow": "gone.json"})
    (tmp_path.parent / "outside.json").write_text(json.dumps(WORKFLOW))
    assert "outside the folder" in broken_by(tmp_path, {"workflow": "../outside.json"})


def test_one_broken_file_stops_no_other_and_nothing_is_said_of_workflows(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    (tmp_path / "bad.toml").write_text("= nothing")
    (tmp_path / "cut.json").write_text("{")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "notes.txt").write_text("hello")
    registry = build_registry(tmp_path)
    assert "Mine" in registry.names()
    assert {entry.source for entry in registry.broken} == {"bad.toml", "cut.json", "leaves.py", "empty.py"}


def test_a_name_that_is_taken_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {**WHOLE, "name": "Text2Image"})
    registry = build_registry(tmp_path)
    (broken,) = registry.broken
    assert "taken (built in)" in broken.reason
    assert "prompt" in registry.get("Text2Image").model_fields


def test_no_folder_is_no_fault(tmp_path: Path) -> None:
    assert build_registry(tmp_path / "none").broken == ()


def test_a_broken_modifier_is_reported_as_broken_and_not_as_unknown(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text('name = "Poster"\nworkflow = "gone.json"\n')
    (tmp_path / "postcard.py").write_text("1 / 0")
    registry = build_registry(tmp_path)
    with pytest.raises(ModifierUnusable, match=r"'Poster' cannot be used: file\.toml: there is no workflow file"):
        registry.build("Poster", {})
    with pytest.raises(ModifierUnusable, match=r"postcard\.py: ZeroDivisionError"):
        registry.get("Postcard")
    with pytest.raises(UnknownModifier, match="unknown modifier 'Plakat'"):
        registry.get("Plakat")


def test_a_file_may_import_the_package_by_its_name_of_before(tmp_path: Path) -> None:
    code = "from modifiers.modifier import Modifier\n\nclass Old(Modifier):\n    workflow_file = 'flow.json'\n"
    (tmp_path / "flow.json").write_text(json.dumps(WORKFLOW))
    (tmp_path / "old.py").write_text(code)
    (found,) = (entry for entry in read_folder(tmp_path) if entry.name == "Old")
    assert isinstance(found, FoundModifier), found
    assert not any(f"{name}.".startswith("modifiers.") for name in sys.modules)
