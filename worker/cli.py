"""Command line `darkroom`: serve, generate, benchmark, models, nodes, engine.

Commands that need the engine's code exec `python -m engine`, a separate program.
"""

from __future__ import annotations

import base64
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from worker.child_environment import INSTALLERS
from worker.client_stream import ResultStream, WorkerUnreachable
from worker.errors import SettingsInvalid, WorkerError
from worker.guard.own_certificate import trusting_context
from worker.identity.api_keys import KeyMalformed, new_key, read_scopes
from worker.identity.loopback import is_loopback
from worker.identity.own_key import read_own_key
from worker.models_command import commands as model_commands
from worker.plan_command import plan_lines
from worker.settings.environment import child_environment, load_settings
from worker.tuning_command import commands as tuning_commands
from worker.version import version
from worker.worker_client import worker_client
from worker.workflows.media import NoWorkflow, find_workflow

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(model_commands, name="models")
app.add_typer(tuning_commands, name="tuning")
key_commands = typer.Typer(no_args_is_help=True, help="API keys of callers.")
app.add_typer(key_commands, name="keys")
EXIT_BAD_SETTING = 2
MAX_PATH_LENGTH = 250  # a longer text is a prompt
API_KEY_VARIABLE = "DARKROOM_API_KEY"
INSECURE = "take whatever certificate an https worker shows"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@dataclass(frozen=True, slots=True)
class _Worker:
    """Address of a worker, verification of its certificate, and the key it created for this machine's commands."""

    url: str
    verify: ssl.SSLContext | bool
    own_key: str = ""

    def no_answer(self, error: Exception) -> str:
        hint = "; --insecure takes any certificate" if "certificate" in str(error).lower() else ""
        return f"{self.url} does not answer: {error}{hint}"


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
) -> None:
    """Run the front, and the engine as its child unless ENGINE_URL is set."""
    from worker.serve import leave  # the server's modules take half a second; the other commands need none
    from worker.serve import serve as run

    given: dict[str, Any] = {"worker_host": host, "worker_port": port, "engine_url": engine_url}
    given |= {"base_directory": base_directory, "cpu": cpu or None}
    leave(run(**{name: value for name, value in given.items() if value is not None}))


@app.command()
def gateway(
    host: Annotated[str | None, typer.Option(help="WORKER_HOST")] = None,
    port: Annotated[int | None, typer.Option(help="WORKER_PORT")] = None,
) -> None:
    """Run the API without an engine: jobs go to PostgreSQL and BROKER_URL, workers take them from there."""
    from worker.gateway.serve import serve_gateway

    given: dict[str, Any] = {"worker_host": host, "worker_port": port}
    raise typer.Exit(serve_gateway(**{name: value for name, value in given.items() if value is not None}))


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="the prompt, or a workflow's file: JSON or a picture that has it")],
    url: Annotated[str, typer.Option(help="where the front listens")] = "",
    output: Annotated[Path, typer.Option("-o", "--output", help="the picture's file; more get a number")] = Path(
        "picture.png"
    ),
    negative: Annotated[str, typer.Option(help="what not to draw")] = "",
    width: Annotated[int | None, typer.Option(help="pixels; else what suits the worker's checkpoint")] = None,
    height: Annotated[int | None, typer.Option(help="pixels; else what suits the worker's checkpoint")] = None,
    steps: Annotated[int | None, typer.Option(help="else what suits the worker's checkpoint")] = None,
    seed: int | None = None,
    checkpoint: Annotated[str | None, typer.Option(help="file name below models/checkpoints")] = None,
    priority: Annotated[int, typer.Option(min=-10, max=10, help="higher ones are made first")] = 0,
    api_key: Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker that asks for one")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE)] = False,
) -> None:
    """Generate pictures from PROMPT with Text2Image or from a workflow's file, show the progress and save them."""
    modifications: dict[str, Any] = {"prompt": prompt, "negative_prompt": negative, "width": width, "height": height}
    modifications |= {"steps": steps, "seed": seed, "ckpt_name": checkpoint}
    known = {name: value for name, value in modifications.items() if value is not None}
    request = {**_work_of(prompt, known), "priority": priority, "return_outputs_as_base64": True}
    console = Console(stderr=True)
    worker = _worker_at(url, is_insecure=insecure)
    result = _result_of(worker, request, api_key or worker.own_key, console)
    for warning in result.get("warnings") or ():
        console.print(f"[yellow]{escape(str(warning.get('message')))}[/yellow]")
    if result.get("status") != "completed":
        console.print(f"[red]{escape(str(result.get('message')))}[/red]")
        for problem in (result.get("error") or {}).get("problems", ()):
            console.print(f"  {problem.get('field') or problem.get('node_id')}: {escape(str(problem.get('message')))}")
        raise typer.Exit(1)
    for index, item in enumerate(result["output"]):
        path = output if index == 0 else output.with_stem(f"{output.stem}_{index + 1}")
        path.write_bytes(base64.b64decode(item["data"]) if item.get("data") else _fetched(item["url"], worker))
        typer.echo(path)


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help="a workflow's file: JSON or a picture that has it")],
    url: Annotated[str, typer.Option(help="where the front listens")] = "",
    is_json: Annotated[bool, typer.Option("--json", help="print the plan as JSON")] = False,
    api_key: Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker that asks for one")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE)] = False,
) -> None:
    """Show what a workflow lacks on a worker: nodes, models, their sources and bytes; exit code 1: it cannot run."""
    worker = _worker_at(url, is_insecure=insecure)
    try:
        workflow = find_workflow(file.read_bytes())
        with worker_client(api_key=api_key or worker.own_key, timeout=60, verify=worker.verify) as http:
            response = http.post(f"{worker.url}/plan", json={"workflow_json": workflow})
    except (NoWorkflow, OSError) as error:
        typer.echo(f"{file}: {error}", err=True)
        raise typer.Exit(2) from None
    except httpx.TransportError as error:
        typer.echo(worker.no_answer(error), err=True)
        raise typer.Exit(2) from None
    answer = response.json()
    if response.status_code != 200:
        typer.echo(f"{worker.url} refused: {response.status_code} {answer.get('message', '')}", err=True)
        raise typer.Exit(2)
    if is_json:
        Console().print_json(data=answer)
    else:
        for line in plan_lines(answer):
            typer.echo(line)
    raise typer.Exit(0 if answer["can_run"] else 1)


def _work_of(prompt: str, modifications: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request for a prompt, or for the workflow in the file of that name."""
    path = Path(prompt)
    if len(prompt) > MAX_PATH_LENGTH or "\n" in prompt or not path.is_file():
        return {"modifier": "Text2Image", "modifications": modifications}
    unused = sorted(name for name, value in modifications.items() if name != "prompt" and value)
    try:
        if unused:
            raise NoWorkflow(f"is a workflow, which takes no {', '.join(unused)}")
        return {"workflow_json": find_workflow(path.read_bytes())}
    except (NoWorkflow, OSError) as error:
        typer.echo(f"{path}: {error}", err=True)
        raise typer.Exit(1) from None


def _result_of(worker: _Worker, request: dict[str, object], api_key: str, console: Console) -> dict[str, Any]:
    """Return the result envelope; show a progress bar until it arrives."""
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("queued", total=100)

        def show(event: Mapping[str, Any]) -> None:
            percent = (event.get("progress") or {}).get("percent")
            bar.update(task, description=str(event.get("message", "")), completed=percent)

        try:
            return ResultStream(worker.url, request, show, api_key=api_key, verify=worker.verify).run()
        except WorkerUnreachable as error:
            console.print(f"[red]{escape(worker.no_answer(error))}[/red]")
            raise typer.Exit(2) from None


def _fetched(url: str, worker: _Worker) -> bytes:
    verify = worker.verify if url.startswith(f"{worker.url}/") else True  # else it is in a store
    with worker_client(timeout=60, verify=verify) as http:
        return http.get(url).raise_for_status().content


@app.command()
def benchmark(
    url: Annotated[str, typer.Option(help="a worker that runs; else the local one, else one is started")] = "",
    last: Annotated[bool, typer.Option("--last", help="show what was measured last, run nothing")] = False,
    api_key: Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker on another machine")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help=INSECURE)] = False,
) -> None:
    """Run the start-up benchmark now and show its report; exit code 1 means that the machine did not pass."""
    from worker import benchmark_command  # 0.1 s that the other commands save

    worker = _worker_at(url, is_insecure=insecure)
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
    Console().print_json(data=report)
    raise typer.Exit(0 if report["verdict"] in ("pass", "skipped") else 1)


@app.command()
def doctor(is_json: Annotated[bool, typer.Option("--json", help="print a list of checks as JSON")] = False) -> None:
    """Check the machine and the settings, and say what to do; exit code 1 means that a check failed."""
    from worker import doctor_command  # the stores' modules take half a second; the other commands need none

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
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_SETTING) from None
    typer.echo(f"secret: {secret}")
    typer.echo(f"line:   {line}")


@app.command(context_settings=PASS_ON)
def engine(context: typer.Context) -> None:
    """Run the engine alone; takes ComfyUI's flags."""
    _engine_command(context.args)


@app.command(context_settings=PASS_ON)
def nodes(context: typer.Context) -> None:
    """List, check and install custom nodes."""
    _engine_command(["nodes", *context.args], INSTALLERS)


RUN = "darkroom.run"  # makes the engine importable from any working directory


def _engine_command(arguments: list[str], extra: Sequence[str] = ()) -> None:
    """Exec the engine's command, with the environment that is listed for packs, which may run in it."""
    environment = {**child_environment(), **child_environment(extra, has_proxy_passwords=bool(extra))}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", RUN, "engine", *arguments], environment)


def _worker_at(url: str, *, is_insecure: bool) -> _Worker:
    """Return the worker at this address; without one the one on this machine, by the settings, with its own key.

    Raises SettingsInvalid.
    """
    if url:
        return _Worker(url.rstrip("/"), not is_insecure)
    settings = load_settings().settings
    tls, own_key = settings.tls_files(), ""
    if is_loopback(urlsplit(settings.local_url).hostname):  # other addresses may go through a proxy of the environment
        own_key = read_own_key(settings.own_key_path)
    if tls is None or is_insecure:
        return _Worker(settings.local_url, not is_insecure, own_key)
    try:
        return _Worker(settings.local_url, trusting_context(tls.certificate), own_key)
    except OSError as error:
        raise SettingsInvalid(f"SSL_CERTFILE: {tls.certificate} cannot be used: {error.strerror or error}") from None


def main() -> None:
    try:
        app(prog_name="darkroom")
    except SettingsInvalid as error:
        typer.echo(f"Settings: {error.message}", err=True)
        sys.exit(EXIT_BAD_SETTING)
