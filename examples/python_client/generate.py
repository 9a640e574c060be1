"""Generate an image by the Python client and save it: python examples/python_client/generate.py FILE"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from darkroom.client import Client, Event, Request

WORKFLOW = Path(__file__).resolve().parent.parent / "workflow" / "workflow.json"


def show(event: Event) -> None:
    """Write the state of the job to standard error."""
    sys.stderr.write(f"{event.status} {event.percent or 0:.0f} %\n")


def main() -> None:
    """Send the workflow of the example next to this one with another prompt."""
    url, key = os.environ.get("DARKROOM_URL", "http://127.0.0.1:8000"), os.environ.get("DARKROOM_KEY", "")
    request = Request.of_workflow(WORKFLOW, **{"2.text": "a blue heart"})
    with Client(url, key) as worker:
        result = worker.generate(request, show)
        worker.save(result.files[0], Path(sys.argv[1]))


if __name__ == "__main__":
    main()
