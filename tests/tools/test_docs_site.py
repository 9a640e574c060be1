"""The documentation as a site: which pages it has, where their links lead, and that it builds without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.markdown import anchors, links
from tools import docs_site

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    docs_site.prepare(folder)
    return folder


def listed() -> list[str]:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader=docs_site._WithoutTags)
    return list(docs_site._pages_of(settings["nav"]))


def test_every_page_is_listed_once(pages: Path) -> None:
    names = listed()
    assert sorted(names) == sorted(str(page.relative_to(pages)) for page in pages.rglob("*.md"))


def test_links_of_the_site_lead_to_its_own_pages(pages: Path) -> None:
    for name in listed():
        page = pages / name
        for link in links(page.read_text("utf-8")):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.is_file() and target.resolve().is_relative_to(pages), f"{name}: {link}"
            assert not anchor or anchor in anchors(target.read_text("utf-8")), f"{name}: {link}"


def test_a_file_that_is_no_page_is_named_by_its_path(pages: Path) -> None:
    page = pages / "made_up.md"
    text = docs_site.with_links_inside("[it](../run.sh), [that](api.md#routes)", ROOT / "docs" / "x.md", page, pages)
    assert text == "`run.sh`, [that](api.md#routes)"


def test_llms_txt_names_each_page_with_its_first_sentence(pages: Path, tmp_path: Path) -> None:
    docs_site.write_llms(pages, tmp_path)
    written = (tmp_path / "llms.txt").read_text("utf-8")
    assert written.startswith("# Darkroom\n\n> ")
    assert [line for line in written.splitlines() if line.startswith("## ")] == [
        "## Start", "## Use", "## Operate", "## Extend", "## Project",
    ]  # fmt: skip
    assert "- [Settings](settings.md): The worker reads its settings from the environment" in written
    assert all((tmp_path / name).is_file() for name in listed())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(docs_site.missing_packages()), reason="mkdocs is not installed; ./docs.sh installs it")
def test_the_site_builds_without_a_warning() -> None:
    done = subprocess.run([sys.executable, "-m", "tools.docs_site"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    index = (docs_site.SITE / "search" / "search_index.json").read_text("utf-8")
    assert "darkroom.client.Client" in index and "engine.Engine" in index
