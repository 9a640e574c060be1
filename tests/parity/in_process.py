"""Parity cases on an engine in this process: runs one and compares its outputs with the reference's."""

from __future__ import annotations

from pathlib import Path

from darkroom.engine.engine import Engine
from darkroom.engine.runtime.request import RunRequest
from tests.parity.models import write_models_of
from tests.parity.outputs import Tolerance, compare_outputs
from tests.parity.recorded import Case

KINDS = ("images", "latents", "audio", "3d", "text")
"""Lists of files and texts; others are for the page's own widgets."""

CLOSE = Tolerance(latent_rel_l2=5e-5, png_mean=1.0, png_max=1.0)


def run_case(engine: Engine, case: Case) -> dict[str, bytes]:
    """Run a case, its models written first where they are not there; return its outputs by NODE_INDEX.ENDING."""
    write_models_of(case.text, engine.settings.models_path)
    prompt = case.prompt
    request = RunRequest(case.name, prompt, engine.check(prompt).outputs, {})
    result = engine.submit(request, lambda event: None).result()
    engine.memory.pool.check_integrity()
    assert result.status == "success"
    found: dict[str, bytes] = {}
    for node_id, shown in result.outputs.items():
        items = [item for kind in KINDS for item in shown.get(kind, ()) if isinstance(item, (dict, str))]
        for index, item in enumerate(items):
            if isinstance(item, str):
                found[f"{node_id}_{index}.txt"] = item.encode()
            else:
                path = Path(engine.files.of(item["type"]), item["subfolder"], item["filename"])
                found[f"{node_id}_{index}{path.suffix}"] = path.read_bytes()
    return found


def assert_like_the_reference(engine: Engine, case: Case) -> None:
    """Fail with every output that differs by more than the case's tolerance."""
    compared = compare_outputs(case.expected(), run_case(engine, case), CLOSE.with_own(case.tolerance()))
    assert [item.problem for item in compared if item.problem] == []
