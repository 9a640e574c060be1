"""A base directory with one file of each kind of model and with modifiers of its user's own, good and broken ones."""

from __future__ import annotations

import json
from pathlib import Path

from tests.flow.running_worker import CHECKPOINT
from tests.flow.small_models import write_small_models

WORKFLOW = Path(__file__).parents[2] / "modifiers" / "workflows" / "text_to_image.json"

POSTER = """
description = "A small poster."
workflow = "poster_workflow.json"
[example]
subject = "a fox"
[parameters.subject]
into = "6.text"
type = "text"
required = true
[parameters.steps]
into = "3.steps"
type = "integer"
minimum = 1
maximum = 4
[parameters.seed]
into = "3.seed"
type = "seed"
[parameters.checkpoint]
into = "4.ckpt_name"
type = "file"
"""

BY_CODE = """
from typing import ClassVar
from darkroom.modifiers.modifier import Into, Modifier
from typing import Annotated

class Postcard(Modifier):
    \"\"\"A postcard.\"\"\"
    workflow_file: ClassVar[str] = "poster_workflow.json"
    greeting: Annotated[str, Into("6", "text")]
"""


def furnish(base: Path, side_px: int = 64) -> None:
    write_small_models(base / "models")
    own = base / "modifiers"
    own.mkdir()
    workflow = json.loads(WORKFLOW.read_text())
    workflow["4"]["inputs"]["ckpt_name"] = CHECKPOINT
    workflow["5"]["inputs"] |= {"width": side_px, "height": side_px}
    workflow["3"]["inputs"]["steps"] = 2
    (own / "poster_workflow.json").write_text(json.dumps(workflow))
    (own / "Poster.toml").write_text(POSTER)
    (own / "postcard.py").write_text(BY_CODE)
    (own / "broken.toml").write_text('workflow = "missing.json"')
    (own / "explodes.py").write_text("raise RuntimeError('on purpose')")
