"""The pages on adding a node, a sampler and a model family, and CONTRIBUTING, followed to the letter in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.markdown import code_blocks

ROOT = Path(__file__).parents[1]
COPIED = ("contract", "docs", "engine", "host", "misc", "tests", "tools")
BESIDE = ("benchmark", "demo", "modifiers", "worker", "pyproject.toml")  # read by tests, and unchanged


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout to change: engine and tests as copies without weights and recorded cases, the rest as links."""
    left_out = shutil.ignore_patterns("weights", "cases", "layouts")  # with what is compiled: that takes 5 s anew
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    (tmp_path / "engine" / "weights").symlink_to(ROOT / "engine" / "weights")
    shutil.copytree(ROOT / "darkroom", tmp_path / "darkroom", symlinks=True)  # whose links lead to the copies
    for name in BESIDE:
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def follow(page: str, copy: Path) -> list[Path]:
    """Write the files of a page's blocks, each named by its first line, and return their paths."""
    written = []
    for block in code_blocks((ROOT / "docs" / page).read_text("utf-8"), "python"):
        name, _, source = block.removeprefix("# ").partition("\n")
        path = copy / name
        assert not path.exists(), f"{name} is there already"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        written.append(path)
    return written


def run(copy: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built_in_names(copy: Path) -> str:
    return run(
        copy,
        "-c",
        "from darkroom.engine.nodes.built_in import built_in_nodes; print([n.class_type for n in built_in_nodes()])",
    )


def check_form(copy: Path, files: list[Path]) -> None:
    """The files of a page keep the house's rules themselves."""
    names = [str(path.relative_to(copy)) for path in files]
    run(copy, "-m", "ruff", "check", "-q", *names)
    run(copy, "-m", "ruff", "format", "-q", "--check", *names)


def test_the_page_on_nodes_adds_a_node(copy: Path) -> None:
    files = follow("adding_a_node.md", copy)
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(files[1]))
    assert "'ImageVignette'" in built_in_names(copy)
    check_form(copy, files)


@pytest.mark.slow
def test_the_page_on_samplers_adds_a_sampler(copy: Path) -> None:
    files = follow("adding_a_sampler.md", copy)
    tests = [str(files[1]), "tests/engine/diffusion/samplers/test_samplers.py"]
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", "midpoint or offered or parabola or find")
    check_form(copy, files)


@pytest.mark.slow
def test_the_first_contribution_works_as_it_is_written(copy: Path) -> None:
    follow("adding_a_node.md", copy)
    (copy / ".venv").symlink_to(sys.prefix)
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## The commands")[0]
    (commands,) = (block for block in indented_blocks(section) if ".venv/bin/ruff" in block)
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-euc", commands], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "ImageInvert" in (copy / "docs" / "nodes.md").read_text("utf-8")


def indented_blocks(text: str) -> list[str]:
    """Return the shell commands within a list."""
    return [textwrap.dedent(block) for block in re.findall(r"^ +```sh\n(.*?)^ +```$", text, re.MULTILINE | re.DOTALL)]


FAMILY_TESTS = "tests/engine/families/test_every_family.py"


def add_family(copy: Path) -> list[Path]:
    files = follow("adding_a_family.md", copy)
    (files[0].parent / "__init__.py").touch()
    return files


@pytest.mark.slow
def test_the_page_on_families_adds_a_family(copy: Path) -> None:
    files = add_family(copy)
    quick = "linear and (recognised or defaults or cover)"
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", FAMILY_TESTS, "-k", quick)
    assert "'EmptyLinearLatent'" in built_in_names(copy)
    check_form(copy, files)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_family_of_the_page_passes_what_every_family_passes(copy: Path) -> None:
    add_family(copy)
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", FAMILY_TESTS, "-k", "linear and not draws")
