"""Writes the lists of settings, and the names of removed ones, into `docs/settings.md`, from `worker/settings/`.

python tools/settings_table.py            # the file is rewritten in place
python tools/settings_table.py --check    # exit code 1 when the lists are out of date
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from darkroom.worker.settings.removed import REMOVED_NAMES
from darkroom.worker.settings.section import Variable, variables_of
from darkroom.worker.settings.settings import Settings

if not __package__:  # run as a script, whose own folder alone is searched
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.marked_part import PAGE_WIDTH, list_item, with_part

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
BEGIN, END = "<!-- settings: tools/settings_table.py -->", "<!-- end of settings -->"
BEGIN_REMOVED, END_REMOVED = "<!-- removed settings: tools/settings_table.py -->", "<!-- end of removed settings -->"
EMPTY = "–"


def settings_tables() -> str:
    """Return a heading and a list for each section, in the order of `Settings`."""
    parts, titles = [], attribute_docstrings(Settings)
    for section, field in Settings.model_fields.items():
        variables = [variable for variable in variables_of(Settings) if variable.section == section]
        if not variables:
            continue
        described = attribute_docstrings(field.annotation)
        items = [_item(name, variables, described) for name in _settings_among(variables)]
        parts.append("\n".join([f"## {titles[section]}", "", *items]))
    return "\n\n".join(parts)


def removed_names() -> str:
    """Return the paragraph that names the settings of earlier versions."""
    names = ", ".join(f"`{name}`" for name in REMOVED_NAMES)
    intro = "Settings of earlier versions, named at the start and by `darkroom doctor` with what to do"
    return textwrap.fill(f"{intro}: {names}.", width=PAGE_WIDTH, break_long_words=False, break_on_hyphens=False)


def attribute_docstrings(owner: Any) -> dict[str, str]:
    """Return the docstring below each attribute that the source of a class declares, on one line."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(declared, ast.ClassDef)
    return {
        statement.target.id: " ".join(following.value.value.split())
        for statement, following in pairwise(declared.body)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(following.value.value, str)
    }


def shown_default(value: Any) -> str:
    """Return a default as its item shows it: a dash for an empty one, lists by comma."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", ()) or (isinstance(value, Mapping) and not value):
        return EMPTY
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return f"`{value}`"


def _settings_among(variables: Sequence[Variable]) -> list[str]:
    """Return the names of settings, in the order of their first variables."""
    return list(dict.fromkeys(variable.part_of or variable.name for variable in variables))


def _item(name: str, variables: Sequence[Variable], described: Mapping[str, str]) -> str:
    """Return the item of a setting, with an item for each of its parts below it."""
    own = next((variable for variable in variables if variable.name == name), None)
    first = list_item(
        f"`{name}` ({EMPTY}): {described['whole']}" if own is None else _described(own, described[own.attribute])
    )
    parts = (variable for variable in variables if variable.part_of == name)
    return "\n".join([first, *(_part(variable, described[variable.attribute]) for variable in parts)])


def _part(variable: Variable, meaning: str) -> str:
    default = shown_default(variable.field.default)
    named = f"`{variable.key}` ({default}; `{variable.name}`)" if variable.key else f"`{variable.name}` ({default})"
    return textwrap.indent(list_item(f"{named}: {meaning}", width=PAGE_WIDTH - 4), "    ")


def _described(variable: Variable, meaning: str) -> str:
    if variable.names[1:]:
        meaning += f" Also {', '.join(f'`{name}`' for name in variable.names[1:])}."
    if variable.is_secret and f"{variable.name}_FILE" not in _declared_names():
        meaning += f" `{variable.name}_FILE` names a file that holds it instead."
    return f"`{variable.name}` ({shown_default(variable.field.default)}): {meaning}"


def _declared_names() -> frozenset[str]:
    return frozenset(name for variable in variables_of(Settings) for name in variable.names)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(given)
    old = PAGE.read_text(encoding="utf-8")
    new = with_part(old, removed_names(), BEGIN_REMOVED, END_REMOVED)
    new = with_part(new, settings_tables(), BEGIN, END)
    if arguments.check:
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
