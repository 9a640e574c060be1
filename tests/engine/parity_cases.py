"""ComfyUI's recorded cases: run by an engine in this process and compared with what was recorded.

Tolerances are far below those that came with the cases, as what differs is the order of sums, except where a case
brings one of its own. Each case's models are made when it is the first to need them.
"""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from engine.engine import Engine
from engine.formats.safetensors_file import SafetensorsFile
from engine.runtime.request import RunRequest

PARITY = Path(__file__).parents[3] / "shared" / "parity"
FAMILY_PARITY = PARITY / "families"
LATENT_REL_L2 = 5e-5
PIXEL_MAX = 1


class ParityCases:
    """The cases of a folder and an engine over a base directory of their models and inputs."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.engine = engine
        self._folder = folder
        self._functions = runpy.run_path(str(folder / "make_models.py"))
        shutil.copytree(PARITY / "inputs", engine.settings.input_path, dirs_exist_ok=True)

    @staticmethod
    def names(folder: Path, start: str = "") -> list[str]:
        """Return the cases whose names begin so, none where the folder is not there."""
        paths = sorted((folder / "cases").glob(f"{start}*.json"))
        return [path.stem for path in paths if not path.stem.endswith(".tolerance")]

    def assert_like_the_reference(self, case: str) -> None:
        """Run a case and compare every output."""
        own = self._folder / "cases" / f"{case}.tolerance.json"
        tolerance = json.loads(own.read_text("utf-8")) if own.exists() else {}
        outputs = self._run(case)
        folder = self._folder / "cases" / f"{case}.expected"
        assert sorted(outputs) == sorted(path.stem for path in folder.iterdir())
        for expected in sorted(folder.iterdir()):
            path = outputs[expected.stem]
            if isinstance(path, str):
                assert path == expected.read_text("utf-8"), expected.name
            elif expected.suffix == ".latent":
                ours, theirs = (SafetensorsFile(item).tensor("latent_tensor").double() for item in (path, expected))
                assert float((ours - theirs).norm() / theirs.norm()) < tolerance.get("latent_rel_l2", LATENT_REL_L2)
            else:
                pixels, reference = (
                    np.asarray(Image.open(item).convert("RGBA")).astype(int) for item in (path, expected)
                )
                assert np.abs(pixels - reference).max() <= tolerance.get("png_max", PIXEL_MAX), expected.name

    def _run(self, case: str) -> dict[str, Path | str]:
        """Run a case; the file or text of each output by `NODE_INDEX`, as the expected ones are named."""
        text = (self._folder / "cases" / f"{case}.json").read_text("utf-8")
        self._make_models(text)
        prompt: dict[str, Any] = json.loads(text)
        request = RunRequest(case, prompt, self.engine.check(prompt).outputs, {})
        result = self.engine.submit(request, lambda event: None).result()
        self.engine.memory.pool.check_integrity()
        assert result.status == "success"
        found: dict[str, Path | str] = {}
        for node_id, shown in result.outputs.items():
            items = [item for kind in shown.values() for item in kind if isinstance(item, (dict, str))]
            for index, item in enumerate(items):
                found[f"{node_id}_{index}"] = item if isinstance(item, str) else self._path(item)
        return found

    def _path(self, file: dict[str, Any]) -> Path:
        return Path(self.engine.files.of(file["type"]), file["subfolder"], file["filename"])

    def _make_models(self, prompt_text: str) -> None:
        """Write the model files that a prompt names and that are not there yet."""
        models = self.engine.settings.models_path
        write_model: Callable[..., Any] = self._functions["write_model"]
        for path in sorted((self._folder / "layouts").glob("*.json")):
            layout = json.loads(path.read_text("utf-8"))
            file = models / layout["file"]
            name = file.stem if "embeddings" in file.parts else file.name  # prompts name embeddings without an ending
            if name in prompt_text and not file.exists():
                _write(write_model, path, layout, models)


def _write(write_model: Callable[..., Any], path: Path, layout: dict[str, Any], models: Path) -> None:
    """The makers of the two folders take a layout's content, or its path."""
    if path.is_relative_to(FAMILY_PARITY):
        write_model(path, models)
    else:
        write_model(layout, models, "float16")
