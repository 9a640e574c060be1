"""The tables of model families are generated from the full configurations, and count the recorded cases."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from darkroom.engine.families.registry import families, family_named
from tests.markdown import table_rows
from tools.models_table import main, num_cases, parts

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    assert main(["--check"]) == 0, "run `python -m tools.models_table`"


def test_every_family_has_a_row_in_both_tables() -> None:
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    generated = page.partition("<!-- models")[2].partition("<!-- end of models")[0]
    rows = [row[0] for row in table_rows(generated)]
    for family in families():
        assert sum(f"`{family.name}`" in cell for cell in rows) == 2, family.name


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("sd15", {"denoiser": 860, "clip_l": 124, "VAE": 84}),
        ("sdxl", {"denoiser": 2567, "clip_l": 124, "clip_g": 695, "VAE": 84}),
    ],
)
def test_sizes_are_those_that_were_published(name: str, millions: dict[str, int]) -> None:
    found = {part.name: round(part.num_weights / 1e6) for part in parts(family_named(name))}
    assert found == millions


def test_a_tolerance_is_no_case(tmp_path: Path) -> None:
    family = families()[0]
    assert num_cases(family, tmp_path) == 0
    with zipfile.ZipFile(tmp_path / f"{family.name}.zip", "w") as archive:
        for name in ("a.json", "a.tolerance.json", "a.expected/9_0.png", "b.json", "b.expected/9_0.png"):
            archive.writestr(name, "{}")
    assert num_cases(family, tmp_path) == 2
