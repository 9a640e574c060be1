"""`python -m darkroom.engine nodes trial`: import one pack in this process, run its nodes, report the outcome.

`engine/comfy/packs/trial.py` runs this in a child process, before the engine imports the pack itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from darkroom.engine.comfy.packs.discovery import Pack
from darkroom.engine.comfy.packs.layer import LINK
from darkroom.engine.comfy.packs.loader import CustomNodes
from darkroom.engine.comfy.packs.node_trial import CHECKPOINT, NodeTrials, try_nodes
from darkroom.engine.engine import Engine
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.settings import EngineSettings


def main(arguments: Sequence[str]) -> int:
    """Import the pack and write the outcome to the report file; return the exit code 0, whatever the outcome."""
    parser = argparse.ArgumentParser(prog="python -m darkroom.engine nodes trial")
    parser.add_argument("pack", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--base-directory", type=Path, default=Path())
    parser.add_argument("--run-nodes", action="store_true", help="run each node once with made-up inputs")
    given = parser.parse_args(arguments)

    path, file, own = given.pack.resolve(), given.report.absolute(), given.base_directory.absolute()
    pack = Pack(path.stem if path.is_file() else path.name, path)
    with ExitStack() as stack:
        base = own
        if given.run_nodes:  # what they write is thrown away
            base = Path(stack.enter_context(TemporaryDirectory(prefix="node-trial-")))
            _make_base(base, own)
        os.chdir(base)  # the working directory of packs in the engine, too
        engine = stack.enter_context(Engine(EngineSettings(base_directory=base, cpu=True)))
        report = CustomNodes(engine, [path.parent]).load([pack])[0]
        sys.stderr.write(report.trace)
        found = re.search(r"ModuleNotFoundError: No module named '([^']+)'", report.error or "")
        data: dict[str, Any] = {
            "error": report.error,
            "nodes": list(report.nodes),
            "missing": list(report.missing),
            "missing_package": found[1] if found else None,
            "seconds": report.seconds,
            "failed_nodes": dict(report.failed_nodes),
        }
        _write(file, data)
        if given.run_nodes and report.error is None:
            try_nodes(engine, report.nodes, lambda trials: _note(file, data, report.failed_nodes, trials))
    return 0


def _make_base(base: Path, own: Path) -> None:
    """Make a base directory with a small checkpoint, and with the Python packages of the own one's packs."""
    write_random_checkpoint(base / "models" / "checkpoints" / CHECKPOINT, "small", seed=0)
    for name in ("input", "output", "temp"):
        (base / name).mkdir()
    if (own / LINK).exists():
        (base / LINK).symlink_to((own / LINK).resolve(), target_is_directory=True)


def _note(file: Path, data: Mapping[str, Any], left_out: Mapping[str, str], trials: NodeTrials) -> None:
    found = {"tried": list(trials.tried), "untried": dict(trials.untried)}
    _write(file, {**data, **found, "failed_nodes": {**left_out, **trials.failed}})


def _write(file: Path, data: Mapping[str, Any]) -> None:
    """Write the outcome so far; the process may be killed at any time."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(data), "utf-8")
    part.replace(file)
