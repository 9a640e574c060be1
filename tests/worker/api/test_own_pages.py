"""The worker's own pages as files: small, whole, and examples that are workflows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from darkroom.worker.api import own_pages
from darkroom.worker.prompts.workflows.forms import is_workflow
from tests.worker.running_front import RunningFront

FOLDER = Path(own_pages.__file__).parent / own_pages.FOLDER
MAX_BYTES = 150_000


def loaded_by(page: Path) -> set[Path]:
    """Return the files of a page: itself and what it names, styles, scripts and data, and so on."""
    found, waiting = {page}, [page]
    while waiting:
        text = waiting.pop().read_text()
        named = {FOLDER / name for name in re.findall(r"""["'](?:\./|[^"']*\bpage/)([\w.-]+)["']""", text)}
        waiting += named - found
        found |= named
    return found


def test_each_page_is_small_with_all_that_it_loads_and_no_script_is_long() -> None:
    pages = {page.name: loaded_by(page) for page in FOLDER.glob("*.html")}
    assert set().union(*pages.values()) == set(FOLDER.iterdir()), "a file that no page loads"
    sizes = {name: sum(path.stat().st_size for path in files) for name, files in pages.items()}
    assert max(sizes.values()) < MAX_BYTES, sizes
    assert all(len(path.read_text().splitlines()) < 300 for path in FOLDER.glob("*.js"))


def test_every_module_that_a_script_imports_is_there_and_every_script_is_used() -> None:
    pattern = r'(?:from |import\()"\./([^"]+)"'
    imported = {name for path in FOLDER.glob("*.js") for name in re.findall(pattern, path.read_text())}
    loaded = {
        name for path in FOLDER.glob("*.html") for name in re.findall(r'src="[^"]*page/([^"]+\.js)"', path.read_text())
    }
    assert imported | loaded == {path.name for path in FOLDER.glob("*.js")}


async def test_the_examples_are_workflows_of_the_demo_model(front: RunningFront) -> None:
    reply = await front.http.get("/page/examples.json")
    assert reply.headers["content-type"] == "application/json"
    examples = reply.json()
    assert len({item["name"] for item in examples}) == len(examples) >= 4
    for item in examples:
        assert is_workflow(item["workflow"]) and item["about"]
        assert "darkroom-emoji.safetensors" in json.dumps(item["workflow"])
