"""`python -m darkroom.engine model-faults`: faults of model files by their headers, for programs without torch.

Standard input is a JSON list of `[kind, path]`; output a list of the faults in its order, null for a file without one.
No weights are read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from darkroom.engine.models.files.faults import fault_of_file


def main() -> int:
    """Answer one question; return the exit code."""
    files = json.load(sys.stdin)
    json.dump([fault_of_file(Path(path), kind) for kind, path in files], sys.stdout)
    return 0
