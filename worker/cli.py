"""darkroom: serve, generate, benchmark, models, nodes, engine.

What needs the engine's code is handed to `python -m engine`, a program of its own.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from worker.client_stream import NobodyAnswers, ResultStream
from worker.errors import WorkerError
from worker.models import commands as model_commands
from worker.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A serverless GPU worker for node-graph images.")
app.add_typer(model_commands, name="models")
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="WORKER_HOST")] = None,
    port: Annotated[int | None, typer.Option(help="WORKER_PORT")] = None,
    engine_url: Annotated[str | None, typer.Option(help="ENGINE_URL: use this ComfyUI server, start none")] = None,
    base_directory: Annotated[Path | None, typer.Option(help="BASE_DIRECTORY")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="run the engine on the CPU")] = False,
) -> None:
    """The front, and the engine as its child unless ENGINE_URL is set."""
    from worker.__main__ import leave  # the server's modules take half a second; the other commands need none
    from worker.__main__ import serve as run

    given: dict[str, Any] = {"worker_host": host, "worker_port": port, "engine_url": engine_url}
    given |= {"base_directory": base_directory, "cpu": cpu or None}
    leave(run(**{name: value for name, value in given.items() if value is not None}))


@app.command()
def generate(
    prompt: str,
    url: Annotated[str, typer.Option(help="where the front listens")] = "",
    output: Annotated[Path, typer.Option("-o", "--output", help="the picture's file; more get a number")] = Path(
        "picture.png"
    ),
    negative: Annotated[str, typer.Option(help="what not to draw")] = "",
    width: Annotated[int | None, typer.Option(help="pixels; else what suits the worker's checkpoint")] = None,
    height: Annotated[int | None, typer.Option(help="pixels; else what suits the worker's checkpoint")] = None,
    steps: int = 20,
    seed: int | None = None,
    checkpoint: Annotated[str | None, typer.Option(help="file name below models/checkpoints")] = None,
    priority: Annotated[int, typer.Option(min=-10, max=10, help="higher ones are made first")] = 0,
    api_key: Annotated[str, typer.Option(help="for a worker that asks for one")] = "",
) -> None:
    """Draws PROMPT with Text2Image, shows the progress and saves the pictures."""
    modifications: dict[str, Any] = {"prompt": prompt, "negative_prompt": negative, "width": width, "height": height}
    modifications |= {"steps": steps, "seed": seed, "ckpt_name": checkpoint}
    known = {name: value for name, value in modifications.items() if value is not None}
    request = {"modifier": "Text2Image", "modifications": known, "priority": priority, "return_outputs_as_base64": True}
    console = Console(stderr=True)
    result = _result_of(url.rstrip("/") or _local_url(), request, api_key, console)
    if result.get("status") != "completed":
        console.print(f"[red]{escape(str(result.get('message')))}[/red]")
        for problem in (result.get("error") or {}).get("problems", ()):
            console.print(f"  {problem.get('field') or problem.get('node_id')}: {escape(str(problem.get('message')))}")
        raise typer.Exit(1)
    for index, item in enumerate(result["output"]):
        path = output if index == 0 else output.with_stem(f"{output.stem}_{index + 1}")
        path.write_bytes(base64.b64decode(item["data"]) if item.get("data") else _fetched(item["url"]))
        typer.echo(path)


def _result_of(url: str, request: dict[str, Any], api_key: str, console: Console) -> dict[str, Any]:
    """The result envelope, a progress bar shown until it is there."""
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("queued", total=100)

        def show(event: Mapping[str, Any]) -> None:
            percent = (event.get("progress") or {}).get("percent")
            bar.update(task, description=str(event.get("message", "")), completed=percent)

        try:
            return ResultStream(url, request, show, api_key=api_key).run()
        except NobodyAnswers as error:
            console.print(f"[red]{url} does not answer: {escape(error.reason)}[/red]")
            raise typer.Exit(2) from None


def _fetched(url: str) -> bytes:
    return httpx.get(url, timeout=60).raise_for_status().content


@app.command()
def benchmark(
    url: Annotated[str, typer.Option(help="a worker that runs; else the local one, else one is started")] = "",
    last: Annotated[bool, typer.Option("--last", help="show what was measured last, run nothing")] = False,
    api_key: Annotated[str, typer.Option(help="for a worker on another machine")] = "",
) -> None:
    """Runs the start-up benchmark now and shows its report; exit code 1 says that the machine did not pass."""
    from worker import benchmark_command  # 0.1 s that the other commands need not wait

    address = url.rstrip("/") or _local_url()
    try:
        report = (
            benchmark_command.last_benchmark(address) if last else benchmark_command.run_benchmark(address, api_key)
        )
    except httpx.TransportError as error:
        if url or last:
            typer.echo(f"{address} does not answer: {error}", err=True)
            raise typer.Exit(2) from None
        typer.echo(f"No worker answers at {address}: starting one for the benchmark", err=True)
        try:
            report = benchmark_command.run_benchmark_alone()
        except WorkerError as failure:
            typer.echo(failure.message, err=True)
            raise typer.Exit(2) from None
    except httpx.HTTPStatusError as error:
        typer.echo(f"{address} refused: {error.response.status_code} {error.response.text}", err=True)
        raise typer.Exit(2) from None
    Console().print_json(data=report)
    raise typer.Exit(0 if report["verdict"] in ("pass", "skipped") else 1)


@app.command(context_settings=PASS_ON)
def engine(context: typer.Context) -> None:
    """The engine alone; takes ComfyUI's flags."""
    _engine_command(context.args)


@app.command(context_settings=PASS_ON)
def nodes(context: typer.Context) -> None:
    """List, check and install custom nodes."""
    _engine_command(["nodes", *context.args])


def _engine_command(arguments: list[str]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "engine", *arguments])


def _local_url() -> str:
    settings = load_settings().settings
    host = "127.0.0.1" if settings.worker_host in ("0.0.0.0", "::") else settings.worker_host
    return f"http://{host}:{settings.worker_port}"


def main() -> None:
    app(prog_name="darkroom")
