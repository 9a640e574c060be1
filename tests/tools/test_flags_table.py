"""The page of the engine's flags is generated from its command line, and lists every flag."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from darkroom.engine.server.flags import IGNORED_OPTIONS, IGNORED_SWITCHES, build_parser
from tests.markdown import table_rows
from tools import flags_table
from tools.flags_table import flags_tables, shown_default


def test_the_page_is_current() -> None:
    assert flags_table.main(["--check"]) == 0, "run `python tools/flags_table.py`"


def test_every_flag_with_an_effect_has_one_row() -> None:
    rows = [row[0].strip("`").split()[0] for row in table_rows(flags_tables())]
    shown = [flag for flag in build_parser()._actions if flag.help != argparse.SUPPRESS and flag.dest != "help"]
    named = {flag.option_strings[0] for flag in shown}
    assert set(rows) == named - {*IGNORED_SWITCHES, *IGNORED_OPTIONS, "--fast"}
    assert len(set(rows)) == len(rows) > 50


def test_flags_without_effect_are_named() -> None:
    assert all(f"`{name}`" in flags_tables() for name in (*IGNORED_SWITCHES, *IGNORED_OPTIONS))


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"action": "store_true"}, "–"),
        ({"default": None}, "–"),
        ({"nargs": "+", "default": []}, "–"),
        ({"default": 0.0}, "`0`"),
        ({"default": 8188}, "`8188`"),
        ({"default": "INFO"}, "`INFO`"),
    ],
)
def test_defaults_are_shown_as_they_are_written(settings: dict[str, Any], shown: str) -> None:
    assert shown_default(argparse.ArgumentParser().add_argument("--flag", **settings)) == shown
