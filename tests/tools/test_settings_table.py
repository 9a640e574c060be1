"""The page of settings is generated from the fields of the sections, and lists every variable."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePath

import pytest
from pydantic import SecretStr

from darkroom.worker.settings.removed import REMOVED_NAMES
from darkroom.worker.settings.section import settings_of, variables_of
from darkroom.worker.settings.settings import Settings
from darkroom.worker.settings.variable_names import IGNORED_NAMES, known_names
from tests.markdown import list_items
from tools import settings_table
from tools.marked_part import with_part
from tools.settings_table import BEGIN_REMOVED, END_REMOVED, PAGE, settings_tables, shown_default


def described(text: str) -> list[tuple[str, str]]:
    """The variables of the lists, each with its meaning."""
    items = (re.fullmatch(r"`([A-Z0-9_]+)` \((?:–|\w+|`.*?`)\): (.*)", item) for item in list_items(text))
    return [(item[1], item[2]) for item in items if item is not None]


def test_the_page_is_current() -> None:
    assert settings_table.main(["--check"]) == 0, "run `python tools/settings_table.py`"


@pytest.mark.parametrize(
    "name", ["settings_table", *(pytest.param(name, marks=pytest.mark.slow) for name in ("node_table", "flags_table"))]
)
def test_a_table_is_written_by_a_script_from_any_folder(name: str, tmp_path: Path) -> None:
    script = Path(settings_table.__file__).with_name(f"{name}.py")
    shown = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--check" in shown.stdout


def test_the_page_names_every_removed_setting() -> None:
    paragraph = PAGE.read_text("utf-8").partition(BEGIN_REMOVED)[2].partition(END_REMOVED)[0]
    assert re.findall(r"`([A-Z0-9_]+)`", paragraph) == list(REMOVED_NAMES)


def test_the_page_names_every_setting_once() -> None:
    names = [name for name, _ in described(PAGE.read_text("utf-8"))]
    assert names == list(settings_of(Settings))
    assert 100 < len(set(names)) == len(names) <= 120


def test_the_page_names_every_part_below_its_setting() -> None:
    items = list_items(PAGE.read_text("utf-8"))
    for variable in variables_of(Settings):
        if variable.part_of:
            (item,) = (item for item in items if item.startswith(f"`{variable.part_of}`"))
            assert f"`{variable.name}`" in item and f"`{variable.key or variable.name}`" in item


def test_the_page_names_every_other_name() -> None:
    page = PAGE.read_text("utf-8")
    assert not [name for name in known_names() | IGNORED_NAMES if f"`{name}`" not in page]


def test_every_setting_is_described_by_sentences() -> None:
    assert not [name for name, meaning in described(settings_tables()) if not re.search(r"\w.*\.$", meaning)]


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        (None, "–"),
        ("", "–"),
        ((), "–"),
        ({}, "–"),
        (SecretStr(""), "–"),
        (False, "false"),
        (30.0, "`30`"),
        (0.5, "`0.5`"),
        (0, "`0`"),
        (("a", "b"), "`a,b`"),
        (PurePath("."), "`.`"),
    ],
)
def test_defaults_are_shown_as_they_are_written(default: object, shown: str) -> None:
    assert shown_default(default) == shown


def test_a_page_without_marks_is_refused() -> None:
    assert with_part("a<b>old<e>c", "new", "<b>", "<e>") == "a<b>\nnew\n<e>c"
    with pytest.raises(ValueError, match="no <b>"):
        with_part("a", "new", "<b>", "<e>")
