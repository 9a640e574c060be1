"""The README and the pages that begin with it say what is: files, modifiers, commands and example requests."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from darkroom.modifiers.modifier import RANDOM_INT
from darkroom.modifiers.registry import build_registry
from darkroom.worker.api.schemas import GenerateRequest
from darkroom.worker.app.application import PARTS
from darkroom.worker.app.integrations import dialect_routers
from tests.markdown import code_blocks, links, list_items
from tools import node_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
MODIFIERS = (ROOT / "docs" / "modifiers.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
README_LINES = 120
FROM_A_FILE = re.compile(r"""'"\$\(cat ([\w/.]+)\)"'""")
A_WORKFLOW = '{"1": {"class_type": "EmptyImage", "inputs": {}}}'  # for "workflow.json", a file of one's own


def section(page: str, title: str) -> str:
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def content_of(found: re.Match[str]) -> str:
    """Return the text that a command puts in place of `$(cat FILE)`."""
    return A_WORKFLOW if found[1] == "workflow.json" else (ROOT / found[1]).read_text("utf-8")


def curl_bodies() -> list[dict[str, Any]]:
    blocks = [FROM_A_FILE.sub(content_of, block) for page in (README, API) for block in code_blocks(page, "sh")]
    return [json.loads(body) for block in blocks for body in re.findall(r"/generate.*?-d '(.*?)'", block, re.DOTALL)]


def test_the_readme_stays_short_and_leads_to_every_page() -> None:
    assert len(README.splitlines()) <= README_LINES
    found: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        targets = ((page.parent / link.partition("#")[0]).resolve() for link in links(page.read_text("utf-8")))
        fresh = {target for target in targets if target.suffix == ".md"} - found
        found |= fresh
        ahead += fresh
    assert set((ROOT / "docs").rglob("*.md")) - found == set()


def test_the_flow_table_names_files_that_exist() -> None:
    files = re.findall(r"`([\w/]+\.py)`", section(ARCHITECTURE, "How a request flows"))
    assert len(files) > 20
    assert not [name for name in files if not (ROOT / name).is_file()]


EVERYWHERE = re.findall(r"Every modifier also takes `(\w+)`", MODIFIERS)
INHERITED = re.compile(r"^those of `(\w+)`( without a size)?")


def described_in(name: str, rows: dict[str, str]) -> dict[str, str]:
    """Parameter -> what the row of a modifier says is its default ("" where it says none), the other row's included."""
    row = rows[name]
    told = dict(re.findall(r"`(\w+)`(?: \(([^);]*)[^)]*\))?", re.sub(r"^those of `\w+`|: names, or .*", "", row)))
    inherited = INHERITED.match(row)
    if inherited is None:
        return told
    base = described_in(inherited[1], rows)
    if inherited[2]:
        base = {key: value for key, value in base.items() if key not in ("width", "height")}
    return base | told


@pytest.mark.parametrize("name", build_registry().names())
def test_the_row_of_a_modifier_names_its_parameters_and_their_defaults(name: str) -> None:
    known = build_registry().names()
    items = (re.match(r"`(\w+)`: (.*)", item) for item in list_items(MODIFIERS))
    rows = {item[1]: item[2] for item in items if item is not None and item[1] in known}
    told = described_in(name, rows)
    (described,) = (item for item in build_registry().describe() if item["name"] == name)
    properties = described["schema"]["properties"]
    assert set(told) | set(EVERYWHERE) == set(properties)
    for parameter, schema in properties.items():
        default = schema.get("default")
        if isinstance(default, int | float | str) and default not in ("", RANDOM_INT):
            assert told[parameter] == (f"{default:g}" if not isinstance(default, str) else default), parameter


def test_lists_every_modifier() -> None:
    assert set(build_registry().names()) <= {item.partition(":")[0].strip("`") for item in list_items(MODIFIERS)}


def test_the_routes_of_the_page_are_the_worker_s() -> None:
    told = set(re.findall(r"`(?:[A-Z]+ )?(/[^` ]*)`", section(API, "Routes")))
    routers = (*(module.router for module in PARTS), *dialect_routers())
    real = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    assert {re.sub(r"{\w+}", "{}", path) for path in told} <= {re.sub(r"{.*?}", "{}", path) for path in real}


@pytest.mark.parametrize("body", curl_bodies())
def test_example_requests_are_well_formed(body: dict[str, Any]) -> None:
    GenerateRequest.model_validate(body)
    request = body["input"]
    if "modifier" in request:
        build_registry().build(request["modifier"], request["modifications"], {})


@pytest.mark.parametrize(
    "script",
    [
        "run.sh",
        "test.sh",
        "docs.sh",
        ".ci/run",
        "tools/install.sh",
        "tools/lock.sh",
        "demo/make.sh",
        "deploy/compose/setup.sh",
    ],
)
def test_scripts_parse_and_may_be_run(script: str) -> None:
    path = ROOT / script
    subprocess.run(["bash", "-n", path], check=True)
    assert path.stat().st_mode & 0o111


def test_continuous_integration_runs_the_readmes_own_command() -> None:
    assert "test.sh" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_table_of_nodes_is_that_of_the_catalogue() -> None:
    assert node_table.main(["--check"]) == 0, "run `python tools/node_table.py`"
