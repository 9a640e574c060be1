"""Errors of a command's parser name the nearest command or option, of sub-commands as well."""

from __future__ import annotations

import pytest

from darkroom.contract.argument_parser import SuggestingParser


def parser() -> SuggestingParser:
    whole = SuggestingParser(prog="nodes")
    whole.add_argument("--base-directory")
    commands = whole.add_subparsers(required=True)
    for name in ("list", "check", "install"):
        commands.add_parser(name).add_argument("--dry-run", action="store_true")
    return whole


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["chek"], "'check'"), (["instal"], "'install'"), (["list", "--base-directry=x"], "'--base-directory'")],
)
def test_the_nearest_is_named(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    assert ended.value.code == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_what_is_like_nothing_gets_argparses_own_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["zzz"])
    error = capsys.readouterr().err
    assert "invalid choice: 'zzz'" in error and "did you mean" not in error
