"""Record what ComfyUI returns for workflows, as new parity cases.

    python -m tests.parity.record --comfyui DIR --family NAME CASE.json … [--python PYTHON] [--pack DIR …]

DIR is a checkout of ComfyUI; PYTHON has what its requirements.txt names. Packs of custom nodes are loaded if named. The
models that a workflow loads are written from the layouts, the inputs uploaded, the workflow run on the CPU, and both
stored in `cases/FAMILY.zip`, with a NAME.tolerance.json that lies beside the workflow, in place of a case of that name.
A family's layout comes from `python -m tests.parity.layout`, which takes it from the family's own test scale.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.parity.archive import files_beside, store_case
from tests.parity.models import write_models_of
from tests.parity.recorded import CASES, EXPECTED, INPUTS
from tests.parity.server import ComfyServer, RunFailed
from tests.s3_server import free_ports

START_SECONDS = 300.0
FLAGS = ("--cpu", "--disable-all-custom-nodes", "--disable-auto-launch", "--disable-metadata", "--disable-api-nodes")


@contextmanager
def running_comfyui(checkout: Path, python: str, base: Path, packs: Sequence[Path] = ()) -> Iterator[ComfyServer]:
    """Start ComfyUI with these packs on a free port, with `base` as its base directory. Raises RunFailed."""
    (port,) = free_ports(1)
    command = [python, str(checkout / "main.py"), *FLAGS, "--port", str(port), "--base-directory", str(base)]
    for pack in packs:
        (base / "custom_nodes").mkdir(exist_ok=True)
        (base / "custom_nodes" / pack.name).symlink_to(pack.resolve())
    if packs:
        command += ["--whitelist-custom-nodes", *(pack.name for pack in packs)]
    with (base / "comfyui.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=subprocess.STDOUT)
        try:
            server = ComfyServer(f"http://127.0.0.1:{port}")
            server.wait_until_up(START_SECONDS, lambda: process.poll() is None)
            yield server
        except RunFailed as error:
            raise RunFailed(f"{error}\n{(base / 'comfyui.log').read_text()[-2000:]}") from None
        finally:
            process.terminate()
            process.wait(timeout=30)


def recorded_files(name: str, files: Mapping[str, bytes], outputs: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a case with these outputs in place of its own: the workflow, a tolerance, the outputs."""
    kept = {file: content for file, content in files.items() if EXPECTED not in file}
    return kept | {f"{name}{EXPECTED}/{output}": content for output, content in outputs.items()}


def recorded(workflow: Path, outputs: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a case: the workflow, a tolerance that lies beside it, and these outputs."""
    return recorded_files(workflow.stem, files_beside(workflow), outputs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Record what ComfyUI returns for workflows.")
    parser.add_argument("workflows", type=Path, nargs="+", metavar="CASE.json")
    parser.add_argument("--comfyui", type=Path, required=True, metavar="DIR")
    parser.add_argument("--family", required=True, metavar="NAME")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one workflow")
    parser.add_argument("--pack", type=Path, action="append", default=[], help="folder of custom nodes, repeatable")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
        base = Path(folder)
        for workflow in arguments.workflows:
            write_models_of(workflow.read_text("utf-8"), base / "models")
        with running_comfyui(arguments.comfyui.resolve(), arguments.python, base, arguments.pack) as server:
            for path in sorted(INPUTS.iterdir()):
                server.upload(path)
            for workflow in arguments.workflows:
                outputs = server.run(json.loads(workflow.read_text("utf-8")), arguments.timeout)
                files = recorded(workflow, outputs)
                case = store_case(arguments.cases, arguments.family, workflow.stem, files)
                print(f"{case}: {', '.join(sorted(outputs))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
