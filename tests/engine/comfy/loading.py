"""An engine with packs of custom nodes that a test writes, imported in this process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from darkroom.engine.comfy.packs.discovery import Pack, find_packs
from darkroom.engine.comfy.packs.loader import CustomNodes, PackReport
from darkroom.engine.engine import Engine
from darkroom.engine.events import Event
from darkroom.engine.runtime.request import RunRequest, RunResult
from darkroom.engine.settings import EngineSettings

SHOW = """
    class Show:
        INPUT_TYPES = classmethod(lambda cls: {"required": {"value": ("*",)}})
        RETURN_TYPES = ()
        FUNCTION = "show"
        OUTPUT_NODE = True

        def show(self, value):
            return {"ui": {"value": [str(value)]}}

        @classmethod
        def VALIDATE_INPUTS(cls, input_types):
            return True

    NODE_CLASS_MAPPINGS = {"Show": Show}
"""


@dataclass
class Loaded:
    engine: Engine
    reports: Mapping[str, PackReport]
    events: list[Event] = field(default_factory=list)

    def run(self, prompt: Mapping[str, Any]) -> RunResult:
        self.events.clear()
        checked = self.engine.check(prompt)
        return self.engine.submit(RunRequest("p", checked.prompt, checked.outputs), self.events.append).result(30)

    def shown(self, class_type: str, **inputs: Any) -> str:
        """Run one node and return its result as text."""
        result = self.run(
            {
                "1": {"class_type": class_type, "inputs": inputs},
                "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
            }
        )
        assert result.status == "success", self.events[-1]
        text: str = result.outputs["2"]["value"][0]
        return text


def write_pack(base: Path, name: str, source: str, **files: str) -> Path:
    """A pack as a folder, or as a single file when its name ends in `.py`; `files` go beside its `__init__.py`."""
    folder = base / "custom_nodes"
    path = folder / name
    if name.endswith(".py"):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return path
    path.mkdir(parents=True, exist_ok=True)
    for file, content in {"__init__.py": source, **{f"{key}.py": value for key, value in files.items()}}.items():
        (path / file).write_text(textwrap.dedent(content))
    return path


@contextmanager
def loaded(base: Path, **flags: Any) -> Iterator[Loaded]:
    """The packs below `base`, without a trial in a process of their own."""
    write_pack(base, "zz_show.py", SHOW)
    settings = EngineSettings(base_directory=base, cpu=True, **flags)
    for folder in (settings.input_path, settings.output_path, settings.temp_path):
        folder.mkdir(parents=True, exist_ok=True)
    with Engine(settings) as engine:
        packs: list[Pack] = find_packs([settings.custom_nodes_path])
        reports = CustomNodes(engine, [settings.custom_nodes_path]).load(packs)
        yield Loaded(engine, {report.name: report for report in reports})
