"""`darkroom` is the one name of ours in a process that loads node packs: theirs may be called as our folders are."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.loader import MEMORY_FILE
from darkroom.engine.comfy.packs.pack_memory import PackMemory, fingerprint
from tests.engine.server.running_engine import listening_engine
from tests.installed import InstalledWheel

ROOT = Path(__file__).parents[2]
PACKS: Mapping[str, tuple[str, ...]] = {
    "engine": ("engine", "worker", "contract", "host", "modifiers"),
    "misc": ("misc", "benchmark", "tools", "names", "machine"),
}
"""Names of packs, each with the names of its helper modules."""

NAMES = tuple(name for helpers in PACKS.values() for name in helpers)
PACK = """
import importlib
import subprocess
import sys
from pathlib import Path

ASK = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name)), sep=',')"
CHILD = subprocess.run([sys.executable, "-c", ASK, *{names!r}], capture_output=True, text=True).stdout.split()
RELATIVE = [str(path.resolve()) for path in Path("custom_nodes").glob("{pack}")]

sys.path.append(str(Path(__file__).with_name("helpers")))
FOUND = [importlib.import_module(name).__file__ for name in {helpers!r}]


class Told:
    CATEGORY, FUNCTION, RETURN_TYPES = "told", "run", ("INT",)

    @classmethod
    def INPUT_TYPES(cls):
        return {{"required": {{"found": (FOUND,), "child": (CHILD,), "relative": (RELATIVE,)}}}}

    def run(self, found):
        return (0,)


NODE_CLASS_MAPPINGS = {{"Told {pack}": Told}}
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base directory with the packs."""
    for pack, helpers in PACKS.items():
        folder = tmp_path / "custom_nodes" / pack
        (folder / "helpers").mkdir(parents=True)
        for name in helpers:
            (folder / "helpers" / f"{name}.py").touch()
        (folder / "__init__.py").write_text(PACK.format(pack=pack, helpers=helpers, names=NAMES))
    return tmp_path


def spare_trials(base: Path) -> None:
    """Let an engine take the packs as known to work: a trial of each is a process that imports the engine again."""
    memory = PackMemory(base / MEMORY_FILE)
    for pack in PACKS:
        path = base / "custom_nodes" / pack
        memory.begin(path, fingerprint(path))
        memory.end(path, fingerprint(path), is_good=True)


def check_packs(url: str, base: Path) -> None:
    """Each pack reports the files of its own helper modules.

    A program that it starts finds none of ours, and a relative path leads from the base directory.
    """
    with urllib.request.urlopen(f"{url}/object_info", timeout=90) as response:
        told = json.load(response)
    for pack, helpers in PACKS.items():
        folder = base / "custom_nodes" / pack / "helpers"
        reported = told[f"Told {pack}"]["input"]["required"]
        assert reported["found"][0] == [str(folder / f"{name}.py") for name in helpers]
        assert reported["child"][0] == []
        assert reported["relative"][0] == [str(folder.parent.resolve())]


def test_the_wheel_has_one_top_level_name(installed_wheel: InstalledWheel) -> None:
    names = {path.name for path in installed_wheel.site.iterdir() if path.suffix != ".dist-info"}
    assert names == {"darkroom", "bin"}


def test_packs_of_an_installed_engine_load_their_own_modules(installed_wheel: InstalledWheel, base: Path) -> None:
    spare_trials(base)
    command = [str(installed_wheel.site / "bin" / "darkroom"), "engine"]
    with listening_engine(command, base, cwd=base, environment=installed_wheel.environment()) as engine:
        check_packs(engine.url, base)


@pytest.mark.parametrize("module", [pytest.param("darkroom.engine", marks=pytest.mark.slow), "engine"])
def test_packs_of_a_checkouts_engine_load_their_own_modules(module: str, base: Path) -> None:
    with listening_engine([sys.executable, "-m", module], base, cwd=ROOT) as engine:
        check_packs(engine.url, base)


def test_a_program_of_a_checkout_finds_no_room_by_its_import_path(tmp_path: Path) -> None:
    code = "import importlib.util, sys; print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    (tmp_path / "asked.py").write_text(code)
    command = [sys.executable, "-P", str(ROOT / "darkroom" / "start.py"), "asked", *NAMES]
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
