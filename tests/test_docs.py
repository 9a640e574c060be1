"""Every page of documentation says what is: its links, files, examples, error codes, metrics and commands."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_group

from darkroom.contract.quality import STRATEGIES
from darkroom.engine.server import catalogue, device, files, memory_report, prompts, tuning, v1, web_folders
from darkroom.modifiers.registry import build_registry
from darkroom.worker.cli.main import app
from darkroom.worker.errors import HTTP_STATUS, WorkerError, http_status
from darkroom.worker.guard.safe_address import AddressRefused
from darkroom.worker.inputs.refusals import DownloadFailed
from tests.markdown import anchors, code_blocks, links, list_items, shown, table_rows

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("demo", "examples")),
]
PLACES = (
    "benchmark",
    "demo",
    "deploy",
    "docs",
    "engine",
    "examples",
    "host",
    "misc",
    "modifiers",
    "contract",
    "tests",
    "tools",
    "worker",
)
LONGEST_CELL = 120
A_USERS_OWN = {"misc/benchmark.json"}
INPUT_ERRORS = (DownloadFailed.__module__, AddressRefused.__module__)
NOT_FOR_CALLERS = {
    "engine_start_failed",
    "state_unusable",
    "state_taken_over",
    "settings_invalid",
}  # they end the worker: nobody is answered

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(text_of(page)):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(text_of(target)), link


def is_there(path: Path) -> bool:
    """Return True if a fresh checkout has the path: folders whose files moved away stay behind with compiled ones."""
    return path.is_file() or any(
        child.is_file() and "__pycache__" not in child.parts and ".venv" not in child.parts for child in path.rglob("*")
    )


@every_page
def test_files_that_are_named_are_there(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(PLACES)})/[\w/.-]*)`", text_of(page))
    assert not [name for name in named if name not in A_USERS_OWN and not is_there(ROOT / name)]


@every_page
def test_examples_parse(page: Path) -> None:
    text = text_of(page)
    for block in code_blocks(text, "json"):
        json.loads(block)
    for block in code_blocks(text, "toml"):
        tomllib.loads(block)
    for block in code_blocks(text, "python"):
        ast.parse(block)
    for block in code_blocks(text, "sh"):
        subprocess.run(["bash", "-n", "-c", block], check=True)


@every_page
def test_cells_of_tables_are_short(page: Path) -> None:
    """A longer cell is a list."""
    cells = [shown(cell) for row in table_rows(text_of(page)) for cell in row]
    assert [cell for cell in cells if len(cell) > LONGEST_CELL] == []


@every_page
def test_modules_that_are_run_are_there(page: Path) -> None:
    for module in re.findall(r"python -m ((?:benchmark|demo|tests|engine|worker)[\w.]*)", text_of(page)):
        path = ROOT / module.rstrip(".").replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_table_of_errors_is_that_of_the_code() -> None:
    rows: dict[int, set[str]] = {}
    for status, codes in table_rows(text_of(ROOT / "docs" / "api.md").partition("## Errors")[2]):
        if found := re.match(r"(\d{3})\b", status):
            rows.setdefault(int(found[1]), set()).update(re.findall(r"`(\w+)`", codes))
    real: dict[int, set[str]] = {}
    for error in _all_errors():
        if error in HTTP_STATUS or any(base in HTTP_STATUS for base in error.__mro__):
            real.setdefault(http_status(error), set()).add(error.code)
    assert rows == {status: codes - NOT_FOR_CALLERS for status, codes in real.items()}


def _all_errors() -> list[type[WorkerError]]:
    """Those of `worker/errors.py` and of inputs; a platform's own words are its page's subject."""
    found, ahead = [], [WorkerError]
    while ahead:
        ahead += (error := ahead.pop()).__subclasses__()
        found.append(error)
    return [error for error in found if error.__module__ in (WorkerError.__module__, *INPUT_ERRORS)]


def test_the_page_of_the_engine_s_api_names_its_routes() -> None:
    page = text_of(ROOT / "docs" / "engine.md")
    told = {re.sub(r"[?{].*", "", path) for path in re.findall(r"`(?:[A-Z]+ )?(/[^` ]*)`", page)}
    modules = (prompts, files, catalogue, web_folders, v1, device, memory_report, tuning)
    real = {re.sub(r"{.*", "", route.path) for module in modules for route in module.ROUTES}
    internal = {path for path in real if path.startswith(("/internal", "/extensions/"))}
    assert real - internal <= told


def test_metrics_that_are_named_are_on_the_page_that_lists_them() -> None:
    """A real run proves that page, in tests/flow/test_observability.py."""
    table = text_of(ROOT / "docs" / "observability.md")
    listed = set(re.findall(r"^\| `(darkroom_\w+)`", table, re.MULTILINE)) | {
        "darkroom_memory",
        "darkroom_saving",
        "darkroom_unread",
    }  # of other routes
    named = {name for page in PAGES for name in re.findall(r"`(darkroom_\w+)", text_of(page))}
    assert len(listed) > 80 and named <= listed


def test_the_page_of_performance_explains_every_strategy() -> None:
    """With the figure before and after, or that it is unmeasured."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    explained = page.partition("## The strategies")[2].partition("### Measured so far")[0]
    items = {match[1]: match[2] for item in list_items(explained) if (match := re.match(r"`(\w+)` \((.*)", item))}
    assert set(items) == set(STRATEGIES)
    assert all(re.search(r"Before and after: .+\.$", items[name]) for name in STRATEGIES)


def test_every_command_and_option_that_is_named_exists() -> None:
    page = text_of(ROOT / "docs" / "interfaces.md")
    commands = get_group(app).commands
    assert not [name for name in commands if f"darkroom {name}" not in page]
    for line in re.findall(r"`darkroom ([a-z]+[^`]*)`", "".join(map(text_of, PAGES))):
        name, *words = shlex.split(line)
        assert name in commands, line
        options = {option for parameter in commands[name].params for option in parameter.opts}
        if name in ("serve", "generate", "benchmark"):
            assert {word for word in words if word.startswith("-")} <= options, line


def test_the_modifiers_of_their_page_work_as_they_stand(tmp_path: Path) -> None:
    page = text_of(ROOT / "docs" / "modifiers.md")
    (declaration,), (code,) = code_blocks(page, "toml"), code_blocks(page, "python")
    (tmp_path / "Poster.toml").write_text(declaration)
    (tmp_path / "postcard.py").write_text(code)
    for name in ("poster_workflow.json", "postcard_workflow.json"):
        shutil.copy(ROOT / "modifiers" / "workflows" / "text_to_image.json", tmp_path / name)
    registry = build_registry(tmp_path)
    assert registry.broken == ()
    assert registry.build("Poster", {"subject": "a lighthouse"})["6"]["inputs"]["text"] == "a lighthouse"
    assert "says hello" in registry.build("Postcard", {"greeting": "hello"})["6"]["inputs"]["text"]


def test_the_engine_in_a_program_of_ones_own_runs_as_it_stands(tmp_path: Path) -> None:
    program, snapshot = code_blocks(text_of(ROOT / "docs" / "engine.md"), "python")
    image = {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}}
    save = {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "own"}}
    (tmp_path / "workflow.json").write_text(json.dumps({"1": image, "2": save}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program + snapshot], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "own_00001_.png" in done.stdout.splitlines()[-3]
    assert "leases of a copy" in done.stdout.splitlines()[-1]
    assert (tmp_path / "base" / "output" / "own_00001_.png").is_file()


def test_the_changelog_has_sections_with_versions_and_dates_the_newest_first() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    titles = re.findall(r"^## (.*)$", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    released = [
        re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})", title) for title in titles if title != "Unreleased"
    ]
    found = [(match[1], match[2]) for match in released if match is not None]
    assert len(found) == len(released) and found[0][0] == project["version"]
    assert [date for _, date in found] == sorted((date for _, date in found), reverse=True)


def test_every_library_is_listed_with_what_it_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {re.split(r"[\[>=<]", line)[0] for line in project["dependencies"]}
    page = (ROOT / "docs" / "development.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    listed = {name.strip() for row in rows for name in row.split(",")}
    assert names - listed == set()
