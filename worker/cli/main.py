"""Command line `darkroom`: serve, generate, jobs, benchmark, models, nodes, engine.

Commands that need the engine's code exec `python -m darkroom.engine`, a separate program.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from darkroom.contract.nearest import nearest_name
from darkroom.host.distribution import install_command
from darkroom.start import command_of
from darkroom.worker.cli.chosen_worker import API_KEY_VARIABLE, INSECURE, worker_at
from darkroom.worker.cli.jobs import commands as job_commands
from darkroom.worker.cli.models import commands as model_commands
from darkroom.worker.cli.tuning import commands as tuning_commands
from darkroom.worker.cli.workers import commands as worker_commands
from darkroom.worker.errors import SettingsInvalid, WorkerError
from darkroom.worker.settings.api_keys import ALL_SCOPES, KeyMalformed, new_key, read_scopes
from darkroom.worker.settings.child_environment import INSTALLERS
from darkroom.worker.settings.environment import child_environment
from darkroom.worker.version import version

app = typer.Typer(no_args_is_help=True)
app.add_typer(model_commands, name="models")
app.add_typer(tuning_commands, name="tuning")
app.add_typer(job_commands, name="jobs")
app.add_typer(worker_commands, name="workers")
key_commands = typer.Typer(no_args_is_help=True, help="API keys of callers.")
app.add_typer(key_commands, name="keys")
EXIT_BAD_SETTING = 2
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"darkroom {version()}")
        raise typer.Exit


@app.callback()
def darkroom(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run and use a serverless GPU worker for node-graph images."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="WORKER_HOST")] = None,
    port: Annotated[int | None, typer.Option(help="WORKER_PORT")] = None,
    engine_url: Annotated[str | None, typer.Option(help="ENGINE_URL: use this ComfyUI server, start none")] = None,
    base_directory: Annotated[Path | None, typer.Option(help="BASE_DIRECTORY")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="run the engine on the CPU")] = False,
    thaw_file: Annotated[
        Path | None, typer.Option(help="import everything, then wait for this file: for a snapshot of the process")
    ] = None,
) -> None:
    """Run the front, and the engine as its child unless ENGINE_URL is set."""
    if thaw_file is not None:
        from darkroom.worker.app.thaw_gate import wait_at_gate
        from darkroom.worker.settings.environment import add_to_environment

        add_to_environment(wait_at_gate(thaw_file))
    from darkroom.worker.app.serve import leave  # the server's modules take half a second; the other commands need none
    from darkroom.worker.app.serve import serve as run

    given: dict[str, Any] = {"worker_host": host, "worker_port": port, "engine_url": engine_url}
    given |= {"base_directory": base_directory, "cpu": cpu or None}
    leave(run(**{name: value for name, value in given.items() if value is not None}))


@app.command()
def gateway(
    host: Annotated[str | None, typer.Option(help="WORKER_HOST")] = None,
    port: Annotated[int | None, typer.Option(help="WORKER_PORT")] = None,
) -> None:
    """Run the API without an engine: jobs go to PostgreSQL and BROKER_URL, workers take them from there."""
    from darkroom.worker.app.serve_gateway import serve_gateway

    given: dict[str, Any] = {"worker_host": host, "worker_port": port}
    raise typer.Exit(serve_gateway(**{name: value for name, value in given.items() if value is not None}))


@app.command()
def generate(
    subject: Annotated[
        str, typer.Argument(help="a prompt, a modifier's name, or a workflow's file: JSON or an image that has it")
    ] = "",
    values: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=VALUE: parameters of a modifier, overrides of a workflow; =@FILE for a file"),
    ] = None,
    url: Annotated[str, typer.Option(help="where the front listens")] = "",
    output: Annotated[Path, typer.Option("-o", "--output", help="the image's file; more get a number")] = Path(
        "image.png"
    ),
    workflow: Annotated[str, typer.Option("-w", "--workflow", help="a stored workflow: NAME or NAME@VERSION")] = "",
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="how many jobs")] = 1,
    negative: Annotated[str, typer.Option(help="what not to draw")] = "",
    width: Annotated[int | None, typer.Option(help="pixels; else what suits the worker's checkpoint")] = None,
    height: Annotated[int | None, typer.Option(help="pixels; else what suits the worker's checkpoint")] = None,
    steps: Annotated[int | None, typer.Option(help="else what suits the worker's checkpoint")] = None,
    seed: int | None = None,
    checkpoint: Annotated[str | None, typer.Option(help="file name below models/checkpoints")] = None,
    priority: Annotated[int, typer.Option(min=-10, max=10, help="higher ones are made first")] = 0,
    is_json: Annotated[bool, typer.Option("--json", help="print results and file names as JSON")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="show no progress")] = False,
    api_key: Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker that asks for one")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE)] = False,
) -> None:
    """Generate images, show the progress and save them."""
    from darkroom.worker.cli import generate as generate_command  # 0.1 s that the other commands save

    if not (subject or workflow):
        raise typer.BadParameter("a prompt, a modifier, a file or --workflow is missing")
    if workflow and subject:
        subject, values = "", [subject, *(values or ())]
    given: dict[str, Any] = {"negative_prompt": negative or None, "width": width, "height": height, "steps": steps}
    given |= {"seed": seed, "ckpt_name": checkpoint}
    parameters = {name: value for name, value in given.items() if value is not None}
    work = generate_command.Work(subject, values or (), parameters, workflow, count, priority)
    worker = worker_at(url, is_insecure=insecure)
    generate_command.run(work, worker, api_key or worker.own_key, output, is_json=is_json, is_quiet=quiet)


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help="a workflow's file: JSON or an image that has it")],
    url: Annotated[str, typer.Option(help="where the front listens")] = "",
    card: Annotated[str, typer.Option(help="a card to plan the memory for, such as 'RTX 4090'")] = "",
    vram_gb: Annotated[float | None, typer.Option("--vram-gb", help="memory of a card to plan for, in GiB")] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="price of an hour of the worker")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="print the plan as JSON")] = False,
    api_key: Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker that asks for one")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE)] = False,
) -> None:
    """Show what a workflow lacks on a worker, and the memory and time it takes; exit code 1: it cannot run.

    Where no worker runs on this machine, one is started on the processor for the plan.
    """
    from darkroom.worker.cli import plan as plan_command  # as above

    worker = worker_at(url, is_insecure=insecure)
    given = {"card": card, "vram_gb": vram_gb, "price_per_hour": price_per_hour}
    terms = {name: str(value) for name, value in given.items() if value not in ("", None)}
    key = api_key or worker.own_key
    raise typer.Exit(plan_command.run(file, worker, key, terms, is_json=is_json, may_start=not url))


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(help="the snapshot's directory: new or empty")],
    weights: Annotated[bool, typer.Option("--weights", help="also the model files that the manifest asks for")] = False,
    base_directory: Annotated[Path | None, typer.Option(help="BASE_DIRECTORY")] = None,
    manifest: Annotated[Path | None, typer.Option(help="MODELS_MANIFEST")] = None,
) -> None:
    """Write a snapshot of program, packs and models, from which a machine or an image starts without a network."""
    from darkroom.worker.cli import build as build_command  # as above

    raise typer.Exit(build_command.run(folder, base_directory, manifest, has_weights=weights))


@app.command()
def benchmark(
    url: Annotated[str, typer.Option(help="a worker that runs; else the local one, else one is started")] = "",
    last: Annotated[bool, typer.Option("--last", help="show what was measured last, run nothing")] = False,
    is_json: Annotated[bool, typer.Option("--json", help="print the whole report as JSON")] = False,
    api_key: Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker on another machine")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE)] = False,
) -> None:
    """Run the start-up benchmark now and show its report; exit code 1 means that the machine did not pass."""
    from darkroom.worker.cli import benchmark as benchmark_command  # 0.1 s that the other commands save

    worker = worker_at(url, is_insecure=insecure)
    try:
        report = (
            benchmark_command.last_benchmark(worker.url, worker.verify)
            if last
            else benchmark_command.run_benchmark(worker.url, api_key or worker.own_key, worker.verify)
        )
    except httpx.TransportError as error:
        if url or last:
            typer.echo(worker.no_answer(error), err=True)
            raise typer.Exit(2) from None
        typer.echo(f"No worker answers at {worker.url}: starting one for the benchmark", err=True)
        try:
            report = benchmark_command.run_benchmark_alone()
        except WorkerError as failure:
            typer.echo(failure.message, err=True)
            raise typer.Exit(2) from None
    except httpx.HTTPStatusError as error:
        typer.echo(f"{worker.url} refused: {error.response.status_code} {error.response.text}", err=True)
        raise typer.Exit(2) from None
    if is_json:
        Console().print_json(data=report)
    else:
        for line in benchmark_command.report_lines(report):
            typer.echo(line)
    raise typer.Exit(0 if report["verdict"] in ("pass", "skipped") else 1)


@app.command()
def mcp(
    url: Annotated[str, typer.Option(help="where the front listens")] = "",
    folder: Annotated[
        Path | None, typer.Option(help="where images are saved, and the only place that files are sent from")
    ] = None,
    api_key: Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker that asks for one")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE)] = False,
) -> None:
    """Serve the Model Context Protocol on standard input and output, so that assistants draw with a worker."""
    from darkroom.client import AsyncClient
    from darkroom.worker.app.integrations import mcp_server

    try:
        server = mcp_server()
    except ModuleNotFoundError as error:
        typer.echo(f"mcp: the module {error.name} is not installed; {install_command('mcp')}", err=True)
        raise typer.Exit(EXIT_BAD_SETTING) from None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    worker = worker_at(url, is_insecure=insecure)

    async def serve_tools() -> None:
        async with AsyncClient(worker.url, api_key or worker.own_key, verify=worker.verify) as client:
            await server.serve_stdio(server.DrawingTools(client, folder))

    asyncio.run(serve_tools())


@app.command()
def doctor(is_json: Annotated[bool, typer.Option("--json", help="print a list of checks as JSON")] = False) -> None:
    """Check the machine and the settings, and say what to do; exit code 1 means that a check failed."""
    from darkroom.worker.cli import (
        doctor as doctor_command,  # the stores' modules take half a second; the other commands need none
    )

    raise typer.Exit(doctor_command.show_checks(doctor_command.examine_here(), is_json=is_json))


@key_commands.callback()
def keys() -> None:
    """Manage API keys of callers."""


@key_commands.command("new")
def new(
    name: str,
    scopes: Annotated[str, typer.Option(help="submit, read and admin, joined by +")] = "submit+read",
) -> None:
    """Make a key: print its secret, which is shown once, and the hashed line for API_KEYS_FILE."""
    try:
        secret, line = new_key(name, read_scopes(scopes))
    except KeyMalformed as error:
        near = [nearest_name(part.strip(), ALL_SCOPES) for part in scopes.split("+")]
        hint = f"; did you mean {'+'.join(dict.fromkeys(filter(None, near)))}?" if all(near) else ""
        typer.echo(f"{error}{hint}", err=True)
        raise typer.Exit(EXIT_BAD_SETTING) from None
    typer.echo(f"secret: {secret}")
    typer.echo(f"line:   {line}")


@app.command(context_settings=PASS_ON)
def engine(context: typer.Context) -> None:
    """Run the engine alone; takes ComfyUI's flags."""
    _engine_command(context.args)


@app.command(context_settings=PASS_ON)
def nodes(context: typer.Context) -> None:
    """List, check, install and sync custom nodes."""
    _engine_command(["nodes", *context.args], INSTALLERS)


def _engine_command(arguments: list[str], extra: Sequence[str] = ()) -> None:
    """Exec the engine's command, with the environment that is listed for packs, which may run in it."""
    environment = {**child_environment(), **child_environment(extra, has_proxy_passwords=bool(extra))}
    sys.stdout.flush()
    os.execve(sys.executable, [*command_of("darkroom.engine"), *arguments], environment)


def main() -> None:
    try:
        app(prog_name="darkroom")
    except SettingsInvalid as error:
        typer.echo(f"Settings: {error.message}", err=True)
        sys.exit(EXIT_BAD_SETTING)
