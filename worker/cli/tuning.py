"""Commands `darkroom tuning`: outcomes of tuning out of a worker's state and into another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from darkroom.worker.qualification.tuning_store import NoOutcomes, TuningStore, read_exported
from darkroom.worker.settings.environment import load_settings

commands = typer.Typer(no_args_is_help=True, help="Outcomes of tuning, for a fleet that tunes once per card type.")
StateDirectory = Annotated[Path | None, typer.Option(help="STATE_DIRECTORY")]
EXIT_NOTHING = 4


@commands.command("export")
def export_command(
    file: Annotated[Path | None, typer.Argument(help="the file to write; the standard output without one")] = None,
    state_directory: StateDirectory = None,
) -> None:
    """Write the outcomes that this worker has measured or imported. Exit code 4: there are none."""
    exported = _store(state_directory).export()
    if not exported["results"]:
        typer.echo("No outcomes: the worker has not been tuned", err=True)
        raise typer.Exit(EXIT_NOTHING)
    text = json.dumps(exported, indent=1)
    if file is None:
        typer.echo(text)
    else:
        file.write_text(text + "\n", encoding="utf-8")


@commands.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="a file that `export` wrote")], state_directory: StateDirectory = None
) -> None:
    """Add exported outcomes; the worker uses them from its next start. Exit code 4: the file holds none."""
    try:
        machines = _store(state_directory).add(read_exported(file))
    except NoOutcomes as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_NOTHING) from None
    for machine in machines:
        typer.echo(machine)


def _store(state_directory: Path | None) -> TuningStore:
    return TuningStore(state_directory or load_settings().settings.folders.state_path)
