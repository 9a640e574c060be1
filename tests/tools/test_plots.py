"""The plots of the documentation: drawn from the committed results, readable, and each on a page."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools.plots import IMAGES, PLOTS, main
from tools.svg_charts import WIDTH, Bars, Line, bar_chart, ceiling, line_chart

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_plots_are_current() -> None:
    assert main(["--check"]) == 0, "run `python -m tools.plots`"


def test_a_plot_that_is_out_of_date_is_named_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"], tmp_path) == 1
    assert "plot_speed.svg" in capsys.readouterr().err
    assert main([], tmp_path) == 0 and main(["--check"], tmp_path) == 0
    (tmp_path / "plot_start.svg").write_text("<svg/>")
    assert main(["--check"], tmp_path) == 1


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_on_a_page_and_says_what_it_shows(name: str) -> None:
    root = ElementTree.parse(IMAGES / f"{name}.svg").getroot()
    title = root.find(f"{SVG}title")
    assert title is not None and title.text
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    assert any(re.search(rf"!\[[^\]]+\]\([\w/]*images/{name}\.svg\)", page.read_text("utf-8")) for page in pages)
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= WIDTH


def test_bars_are_as_long_as_their_values_and_an_absent_one_is_left_out() -> None:
    chart = bar_chart("T", "about", ("a", "b"), [Bars("x", (2.0, 4.0)), Bars("y & z", (None, 1.0))], "s")
    root = ElementTree.fromstring(chart)
    lengths = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect") if bar.attrib.get("x") == "210"]
    assert [round(length / lengths[1], 2) for length in lengths] == [0.5, 1.0, 0.25]
    assert "y & z" in [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("is_logarithmic", [True, False])
def test_lines_stand_at_their_places(is_logarithmic: bool) -> None:
    points = [(1.0, 0.0), (10.0, 5.0), (100.0, 10.0)]
    root = ElementTree.fromstring(line_chart("T", "", [Line("a", points)], "x", "ms", is_logarithmic=is_logarithmic))
    (line,) = root.iter(f"{SVG}polyline")
    places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = places
    share = 0.5 if is_logarithmic else 9 / 99
    assert math.isclose((x1 - x0) / (x2 - x0), share, abs_tol=0.01)
    assert math.isclose((y0 - y1) / (y0 - y2), 0.5, abs_tol=0.01)


@pytest.mark.parametrize(("value", "end"), [(0.3, 0.5), (1.0, 1.0), (7.0, 10.0), (118.0, 200.0)])
def test_an_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert math.isclose(ceiling(value), end)
