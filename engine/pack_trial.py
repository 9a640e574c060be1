"""`python -m engine nodes trial`: import one pack of custom nodes in this process and report the outcome.

`engine/custom_nodes/trial.py` runs this in a child process, before the engine imports the pack itself.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.custom_nodes.loader import CustomNodes
from engine.custom_nodes.packs import Pack
from engine.engine import Engine
from engine.settings import EngineSettings


def main(arguments: Sequence[str]) -> int:
    """Import the pack and write the outcome to the report file; return the exit code 0, whatever the outcome."""
    parser = argparse.ArgumentParser(prog="python -m engine nodes trial")
    parser.add_argument("pack", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--base-directory", type=Path, default=Path())
    given = parser.parse_args(arguments)

    path = given.pack.resolve()
    with Engine(EngineSettings(base_directory=given.base_directory, cpu=True)) as engine:
        report = CustomNodes(engine, [path.parent]).load([Pack(path.stem if path.is_file() else path.name, path)])[0]
    sys.stderr.write(report.trace)
    found = re.search(r"ModuleNotFoundError: No module named '([^']+)'", report.error or "")
    data = {
        "error": report.error,
        "nodes": list(report.nodes),
        "missing": list(report.missing),
        "missing_package": found[1] if found else None,
        "seconds": report.seconds,
    }
    given.report.write_text(json.dumps(data), "utf-8")
    return 0
