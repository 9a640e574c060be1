"""Archives of recorded cases: what is read of them, how they are changed, and that equal cases give equal bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.parity.archive import main, matching, remove_cases, store_case, write_archive
from tests.parity.record import recorded
from tests.parity.recorded import CASES, Case, case_named, families, find_cases, opened

FILES = {
    "a.json": b'{"1": {}}',
    "a.expected/9_0.png": b"png",
    "a.expected/9_1.latent": b"latent",
    "a.tolerance.json": b'{"png_max": 3}',
    "b.json": b"{}",
    "b.expected/2_0.txt": b"text",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two families with the same cases, one as an archive and one as a folder."""
    write_archive(tmp_path / "packed.zip", FILES)
    for name, content in FILES.items():
        path = tmp_path / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("family", ["packed", "unpacked"])
def test_a_case_is_read_from_an_archive_as_from_a_folder(root: Path, family: str) -> None:
    first, second = find_cases(root, family)
    assert (str(first), str(second)) == (f"{family}/a", f"{family}/b")
    assert first.prompt == {"1": {}} and first.tolerance() == {"png_max": 3}
    assert first.expected() == {"9_0.png": b"png", "9_1.latent": b"latent"}
    assert second.tolerance() == {} and second.expected() == {"2_0.txt": b"text"}
    assert first.files() | second.files() == FILES
    with pytest.raises(KeyError):
        print(Case(family, "c", root).text)


def test_cases_are_found_by_patterns_of_family_and_name(root: Path) -> None:
    assert [str(case) for case in find_cases(root, "p*")] == ["packed/a", "packed/b"]
    assert [str(case) for case in find_cases(root, "*", "b", "c*")] == ["packed/b", "unpacked/b"]
    assert [str(case) for case in matching(["*/a", "un*/b"], root)] == ["packed/a", "unpacked/a", "unpacked/b"]


def test_an_archive_is_a_function_of_its_cases(root: Path) -> None:
    before = (root / "packed.zip").read_bytes()
    shuffled = list(FILES.items())
    random.Random(1).shuffle(shuffled)
    write_archive(root / "again.zip", dict(shuffled))
    assert (root / "again.zip").read_bytes() == before
    store_case(root, "packed", "c", {"c.json": b"{}"})
    assert (root / "packed.zip").read_bytes() != before
    remove_cases([Case("packed", "c", root)])
    assert (root / "packed.zip").read_bytes() == before


def test_a_case_is_taken_out_changed_and_put_back(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert main(["--cases", str(root), "extract", str(folder), "packed/a"]) == 0
    (folder / "packed" / "a.tolerance.json").unlink()
    (folder / "packed" / "a.expected" / "9_1.latent").write_bytes(b"other")
    assert main(["--cases", str(root), "add", "packed", str(folder / "packed" / "a.json")]) == 0
    changed = Case("packed", "a", root)
    assert changed.tolerance() == {} and changed.expected() == {"9_0.png": b"png", "9_1.latent": b"other"}
    assert Case("packed", "b", root).expected() == {"2_0.txt": b"text"}


def test_a_family_without_cases_has_no_archive(root: Path) -> None:
    assert main(["--cases", str(root), "remove", "packed/*"]) == 0
    assert families(root) == ["unpacked"] and not (root / "packed.zip").exists()


def test_cases_are_listed_with_their_sizes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", str(root), "list", "packed/*"]) == 0
    assert capsys.readouterr().out.splitlines() == ["packed/a 32", "packed/b 6"]
    assert main(["--cases", str(root), "list", "none"]) == 1


def test_a_recorded_case_has_the_workflow_its_outputs_and_the_tolerance_beside_it(root: Path) -> None:
    files = recorded(root / "unpacked" / "a.json", {"9_0.png": b"new"})
    assert files == {key: FILES[key] for key in ("a.json", "a.tolerance.json")} | {"a.expected/9_0.png": b"new"}


def test_archives_in_the_tree_are_as_the_tool_writes_them(tmp_path: Path) -> None:
    for family in ("sd2", "later_nodes"):
        archive = opened(CASES, family)
        assert archive is not None
        write_archive(tmp_path / f"{family}.zip", {name: archive.read(name) for name in archive.namelist()})
        assert (tmp_path / f"{family}.zip").read_bytes() == (CASES / f"{family}.zip").read_bytes()


def test_every_archive_holds_whole_cases() -> None:
    for case in find_cases():
        assert case.expected(), f"{case} has no output"
        assert case_named(str(case)).prompt == case.prompt
    names = {str(case) for case in find_cases()}
    for family in families():
        archive = opened(CASES, family)
        assert archive is not None
        assert {f"{family}/{case_file.partition('.')[0]}" for case_file in archive.namelist()} <= names
