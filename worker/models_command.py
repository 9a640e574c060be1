"""Commands `darkroom models`: fetch known models, list the files, verify them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from worker.models.errors import ModelBroken, ModelsError
from worker.models.fetch import fetch_model
from worker.models.files import BUILT_IN_FOLDER, find_problem, list_models
from worker.models.known import known_files, known_models, known_sets
from worker.settings.environment import load_settings

commands = typer.Typer(no_args_is_help=True, help="Fetch, list and verify model files.")
BaseDirectory = Annotated[Path | None, typer.Option(help="BASE_DIRECTORY")]


@commands.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="a name that `known` lists")],
    base_directory: BaseDirectory = None,
) -> None:
    """Download a known model, each of its files that is not there.

    Exit code 3: the hub is out of reach; 4: a file is broken; 5: it broke off.
    """
    try:
        for known in known_files(name):
            fetch_model(known, _models_directory(base_directory), typer.echo)
    except ModelsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from None


@commands.command("known")
def known_command() -> None:
    """List the models that `fetch` knows, with their sizes."""
    for name, model in known_models().items():
        size = f"{model.size_bytes / 1e6:10.1f} MB" if model.size_bytes else f"{'unknown':>13}"
        typer.echo(f"{size}  {name:22}{model.label} ({model.repository})")
    for name, item in known_sets().items():
        typer.echo(f"{len(item.files):7} files  {name:22}{item.label} ({', '.join(item.files)})")


@commands.command("list")
def list_command(base_directory: BaseDirectory = None) -> None:
    """List every model file below models/ with its size, and those that come with the engine."""
    folder = _models_directory(base_directory)
    models = list_models(folder)
    for model in models:
        typer.echo(f"{model.size_bytes / 1e6:10.1f} MB  {model.name}")
    for model in list_models(BUILT_IN_FOLDER):
        typer.echo(f"{model.size_bytes / 1e6:10.1f} MB  {model.name}  (built in)")
    if not models:
        typer.echo(f"No model files below {folder}", err=True)


@commands.command("verify")
def verify_command(base_directory: BaseDirectory = None) -> None:
    """Check every model file: its structure, and its checksum where one was recorded. Exit code 4: one is broken."""
    num_broken, folder = 0, _models_directory(base_directory)
    models = list_models(folder)
    for model in models:
        problem = find_problem(model.path)
        num_broken += problem is not None
        typer.echo(f"{'BROKEN' if problem else 'good':8}{model.name}{f': it {problem}' if problem else ''}")
    if models:
        typer.echo(f"{len(models)} checked, {num_broken} broken", err=True)
    else:
        typer.echo(f"No model files below {folder}", err=True)
    if num_broken:
        raise typer.Exit(ModelBroken.exit_code)


def _models_directory(base_directory: Path | None) -> Path:
    given: dict[str, Any] = {} if base_directory is None else {"base_directory": base_directory}
    return load_settings(**given).settings.folders.base / "models"
