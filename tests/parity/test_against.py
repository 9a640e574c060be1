"""The program that runs recorded cases on another release, with a stand-in for ComfyUI's server (`fake_comfyui`)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.parity.against import main, own_finding
from tests.parity.archive import files_beside, write_archive
from tests.parity.differences import Finding, Report
from tests.parity.recorded import Case, forget

SERVER = Path(__file__).parent / "fake_comfyui"


def recorded(**texts: tuple[str, str]) -> dict[str, bytes]:
    """Return the files of cases of one node each: its class and its text, and with `Say` the recorded output."""
    files = {}
    for name, (kind, text) in texts.items():
        files[f"{name}.json"] = json.dumps({"1": {"class_type": kind, "inputs": {"text": text}}}).encode()
        files[f"{name}.expected/1_0.txt"] = b"red"
    return files


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    folder = tmp_path / "cases"
    folder.mkdir()
    write_archive(
        folder / "a.zip", recorded(blue=("Say", "blue"), exit=("Exit", ""), fail=("Fail", ""), red=("Say", "red"))
    )
    write_archive(folder / "b.zip", recorded(other=("Say", "red"), unknown=("Unknown", "")))
    return folder


def run(cases: Path, *more: str) -> tuple[int, Mapping[str, Finding]]:
    """Run the program on the stand-in; return its exit code and its findings of the reference."""
    out = cases.parent / "report.json"
    named = ("--comfyui", str(SERVER), "--python", sys.executable, "--out", str(out), "--cases", str(cases))
    code = main([*named, "--work", str(cases.parent / "work"), *more])
    report = Report.read(out)
    return code, {name: report.findings(name)["reference"] for name in json.loads(out.read_text("utf-8"))}


def test_continues_past_cases_that_differ_fail_and_end_the_server(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(cases)
    assert code == 1
    assert sorted(found) == ["a/blue", "a/exit", "a/fail", "a/red", "b/other", "b/unknown"]
    assert [name for name, finding in found.items() if not finding.problems] == ["a/red", "b/other"]
    assert found["a/red"].difference == 0
    assert found["a/blue"].problems == ["1_0.txt: got b'blue', expected b'red'"]
    assert "the server died" in found["a/exit"].problems[0]
    assert "it failed" in found["a/fail"].problems[0] and found["a/fail"].difference == math.inf
    assert "HTTP 400" in found["b/unknown"].problems[0]
    printed = capsys.readouterr().out
    assert "FAIL a/blue" in printed and "ok   a/red" in printed
    assert "a: 4 cases; reference: 1 of 4 agree, within 0.00e+00" in printed.splitlines()


def test_runs_only_the_cases_that_are_asked_for_and_not_reported_yet(cases: Path) -> None:
    assert run(cases, "--only", "a/*", "--without", "*/exit", "*/fail", "*/blue") == (
        0,
        {"a/red": Finding(0, ["1_0.txt equal"])},
    )
    write_archive(cases / "a.zip", recorded(blue=("Say", "red"), red=("Say", "green")))
    code, found = run(cases, "--only", "a/*")
    assert code == 0 and not found["a/red"].problems  # reported before, so that its new text was not run
    code, found = run(cases, "--only", "a/*", "--again")
    assert code == 0 and not found["a/red"].problems  # it neither differed nor failed


def test_runs_cases_that_differed_once_more_where_asked(cases: Path) -> None:
    run(cases, "--only", "a/blue")
    write_archive(cases / "a.zip", recorded(blue=("Say", "red")))
    assert run(cases, "--only", "a/blue")[0] == 1
    assert run(cases, "--only", "a/blue", "--again")[0] == 0


def test_keeps_outputs_that_differ_as_the_archive_tool_reads_them(cases: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run(cases, "--only", "a/*", "--keep", str(kept))
    assert sorted(path.name for path in (kept / "a").iterdir()) == ["blue.expected", "blue.json"]
    write_archive(cases / "a.zip", files_beside(kept / "a" / "blue.json"))
    forget()
    assert Case("a", "blue", cases).expected() == {"1_0.txt": b"blue"}


def test_our_engine_is_compared_with_what_the_reference_returned(cases: Path) -> None:
    case = Case("a", "blue", cases)
    assert own_finding(case, {"1_0.txt": b"blue"}, lambda case: {"1_0.txt": b"blue"}).problems == []
    assert own_finding(case, {"1_0.txt": b"blue"}, lambda case: case.expected()).problems != []

    def fail(case: Case) -> Mapping[str, bytes]:
        raise ValueError("no such sampler")

    assert own_finding(case, {}, fail).problems == ["ValueError: no such sampler"]
