"""Writes the tables of the engine's flags from its command line, between the two marks of `docs/engine.md`.

python tools/flags_table.py            # the file is rewritten in place
python tools/flags_table.py --check    # exit code 1 when the tables are out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from darkroom.engine.server.flags import IGNORED_TITLE, build_parser

if not __package__:  # run as a script, whose own folder alone is searched
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.marked_part import with_part

PAGE = Path(__file__).resolve().parent.parent / "docs" / "engine.md"
BEGIN, END = "<!-- flags: tools/flags_table.py -->", "<!-- end of flags -->"
HEADING = ("| Flag | Default | Meaning |", "| --- | --- | --- |")
EMPTY = "–"
BRACKETS = {"?": "[{}]", "+": "{} …", "*": "[{} …]"}


def flags_tables() -> str:
    """Return a heading and a table for each group of flags, in the order of `--help`, then those without effect."""
    groups = dict(_groups(build_parser()))
    ignored = groups.pop(IGNORED_TITLE)
    parts = ["\n".join([f"### {title}", "", *HEADING, *map(_row, flags)]) for title, flags in groups.items()]
    names = ", ".join(f"`{flag.option_strings[0]}`" for flag in ignored)
    return "\n\n".join([*parts, f"### {IGNORED_TITLE}", names])


def _groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, Sequence[argparse.Action]]]:
    for group in parser._action_groups:
        flags = [flag for flag in group._group_actions if flag.help != argparse.SUPPRESS and flag.dest != "help"]
        if group.title is not None and flags:
            yield group.title, flags


def _row(flag: argparse.Action) -> str:
    assert flag.help, f"{flag.option_strings[0]} has no description"
    meaning = flag.help[:1].upper() + flag.help[1:]
    return f"| `{_form(flag)}` | {shown_default(flag)} | {meaning}. |"


def _form(flag: argparse.Action) -> str:
    """Return a flag with its value as it is written: in brackets what may be left out."""
    name = flag.option_strings[0]
    if flag.nargs == 0:
        return name
    return f"{name} {BRACKETS.get(str(flag.nargs), '{}').format(flag.metavar)}"


def shown_default(flag: argparse.Action) -> str:
    """Return a default as a cell shows it: a dash for none, a switch that is off, and an empty list."""
    value = flag.default
    if flag.nargs == 0 or value is None or value == []:
        return EMPTY
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{value}`"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(given)
    old = PAGE.read_text(encoding="utf-8")
    new = with_part(old, flags_tables(), BEGIN, END)
    if arguments.check:
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
