"""Run the recorded cases on another release of ComfyUI, and say where its outputs differ from the recorded ones.

    python -m tests.parity.against --comfyui DIR --python PYTHON --out report.json [--only 'wan/*' …] [--ours here|URL]

DIR is a checkout of ComfyUI that whoever runs this fetched; PYTHON has what its requirements.txt names. It must read
the sizes that README.md lists from tensors; else the small files of some families do not load. The models of a family
are written when its first case needs them and removed after its last one. A server is started for each family, and
again after it died. A case that fails is noted and the next one runs.

The report is written after every case, and cases that it holds are not run again, but for those that differ or failed
where `--again` is given. With `--ours` the same cases run on Darkroom's engine too, in this process (`here`) or on a
server whose models directory is FOLDER/models of `--work FOLDER`; its outputs are compared with those of the reference.
`--keep FOLDER` stores what the reference returned where it differs, as `python -m tests.parity.archive add` reads it.
Prints a line a case and a summary by family; the exit code is 1 where a case differs or failed.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import httpx

from darkroom.engine.engine import Engine
from darkroom.engine.settings import EngineSettings
from tests.parity.archive import matching
from tests.parity.differences import Finding, Report
from tests.parity.in_process import CLOSE, run_case
from tests.parity.models import write_models_of
from tests.parity.outputs import compare_outputs
from tests.parity.record import recorded_files, running_comfyui
from tests.parity.recorded import CASES, INPUTS, Case
from tests.parity.server import ComfyServer, RunFailed

Outputs = Mapping[str, bytes]
Runner = Callable[[Case], Outputs]
HERE = "here"


@dataclass(frozen=True, slots=True)
class Sides:
    """Runners of the cases of a family: the reference, started when it is asked for, and ours where it is compared."""

    reference: Callable[[], AbstractContextManager[Runner]]
    ours: Callable[[], AbstractContextManager[Runner | None]]
    keep: Path | None = None
    """Folder for outputs of the reference that differ from the recorded ones."""


def finding_of(expected: Outputs, found: Outputs, case: Case) -> Finding:
    """Compare outputs by the tests' tolerance and the case's own."""
    compared = compare_outputs(expected, found, CLOSE.with_own(case.tolerance()))
    return Finding(
        difference=max(item.difference for item in compared),
        measured=[item.measured for item in compared if item.measured],
        problems=[item.problem for item in compared if item.problem],
    )


def run_family(cases: Sequence[Case], sides: Sides, report: Report) -> None:
    """Run cases of one family and note each in the report; the reference is started anew where its server died."""
    remaining = list(cases)
    with sides.ours() as ours:
        while remaining:
            with sides.reference() as reference:
                while remaining and compare_case(remaining.pop(0), reference, ours, sides.keep, report):
                    pass


def compare_case(case: Case, reference: Runner, ours: Runner | None, keep: Path | None, report: Report) -> bool:
    """Run a case, note and print what differs. Returns False where the reference's server died."""
    began = time.monotonic()
    is_alive = True
    try:
        found = reference(case)
        finding = finding_of(case.expected(), found, case)
    except RunFailed as error:
        found, finding = None, Finding.failed(str(error))
    except httpx.HTTPError as error:
        found, finding, is_alive = None, Finding.failed(f"the server died: {error!r}"), False
    if found is not None and keep is not None and finding.problems:
        write_case(case, found, keep)
    own = None if ours is None or found is None else own_finding(case, found, ours)
    report.note(str(case), finding, own, time.monotonic() - began)
    print(report.line(str(case)), flush=True)
    return is_alive


def own_finding(case: Case, wanted: Outputs, ours: Runner) -> Finding:
    """Run a case on our engine and compare its outputs with what the reference returned just now."""
    try:
        return finding_of(wanted, ours(case), case)
    except Exception as error:  # noqa: BLE001 - the boundary of a case: whatever our engine raises is its finding
        return Finding.failed(f"{type(error).__name__}: {error}")


def write_case(case: Case, outputs: Outputs, folder: Path) -> None:
    """Write the case with these outputs to FOLDER/FAMILY, in place of what lies there of it."""
    target = folder / case.family
    shutil.rmtree(target / f"{case.name}.expected", ignore_errors=True)
    for name, content in recorded_files(case.name, case.files(), outputs).items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def on_server(server: ComfyServer, models: Path, timeout_seconds: float) -> Runner:
    """Upload the inputs and return what runs a case there, its models written first."""
    for path in sorted(INPUTS.iterdir()):
        server.upload(path)

    def run(case: Case) -> Outputs:
        write_models_of(case.text, models)
        return server.run(case.prompt, timeout_seconds)

    return run


@contextmanager
def reference_of(checkout: Path, python: str, base: Path, timeout_seconds: float) -> Iterator[Runner]:
    """Start ComfyUI and yield what runs a case on it."""
    with running_comfyui(checkout, python, base) as server:
        yield on_server(server, base / "models", timeout_seconds)


@contextmanager
def ours_of(asked: str | None, base: Path, timeout_seconds: float) -> Iterator[Runner | None]:
    """Yield the function that runs a case on our engine, in this process or on a server; None without one."""
    if asked is None:
        yield None
    elif asked != HERE:
        yield on_server(ComfyServer(asked), base / "models", timeout_seconds)
    else:
        shutil.copytree(INPUTS, base / "input", dirs_exist_ok=True)
        with Engine(EngineSettings(base_directory=base, cpu=True)) as engine:
            yield lambda case: run_case(engine, case)


def run_all(cases: Iterable[Case], sides: Sides, report: Report, models: Path) -> None:
    """Run the cases that the report does not hold, family by family, and remove the models of each."""
    for family, found in groupby(cases, key=lambda case: case.family):
        remaining = [case for case in found if str(case) not in report]
        if remaining:
            run_family(remaining, sides, report)
            shutil.rmtree(models, ignore_errors=True)
            print(report.summary_of(family), flush=True)


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.parity.against", description=__doc__.partition("\n")[0], fromfile_prefix_chars="@"
    )
    parser.add_argument("--comfyui", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, required=True, metavar="REPORT.json")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="FAMILY/GLOB")
    parser.add_argument("--without", nargs="+", default=[], metavar="FAMILY/GLOB")
    parser.add_argument("--ours", metavar="here|URL")
    parser.add_argument("--again", action="store_true", help="run cases that differ or failed once more")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="for models and outputs, by default a temporary one"
    )
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one case")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    arguments = parse(given)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the server is stopped too
    report = Report.read(arguments.out)
    left_out = {str(case) for case in matching(arguments.without, arguments.cases)}
    cases = [case for case in matching(arguments.only, arguments.cases) if str(case) not in left_out]
    if arguments.again:
        report.forget_problems(map(str, cases))
    with ExitStack() as stack:
        base = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="against-")))
        base.mkdir(parents=True, exist_ok=True)
        checkout = arguments.comfyui.resolve()
        sides = Sides(
            lambda: reference_of(checkout, arguments.python, base, arguments.timeout),
            lambda: ours_of(arguments.ours, base, arguments.timeout),
            arguments.keep,
        )
        run_all(cases, sides, report, base / "models")
    print(report.summary({case.family for case in cases}))
    return 1 if report.has_problems(map(str, cases)) else 0


if __name__ == "__main__":
    sys.exit(main())
