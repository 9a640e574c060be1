"""`darkroom generate`: images of a prompt, a modifier, a file or a stored workflow, with a progress bar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from darkroom.client import Client, JobFailed, Problem, Request, RequestRefused, Result, WorkerUnreachable
from darkroom.contract.missing_file import missing_file, unreadable_file
from darkroom.worker.cli.chosen_worker import ChosenWorker
from darkroom.worker.cli.generate_subject import MODIFIER_NAME, modifier_of
from darkroom.worker.cli.job_progress import JobProgress
from darkroom.worker.cli.terminal_images import protocol_of
from darkroom.worker.prompts.workflows.media import NoWorkflow, find_workflow
from darkroom.worker.settings.environment import has_colors, terminal_variables

MAX_PATH_LENGTH: Final = 250  # a longer text is a prompt
ASSIGNMENT: Final = re.compile(r"(?P<name>[^=\s][^=]*)=(?P<value>.*)", re.DOTALL)
USUAL_MESSAGE: Final = "Processing complete."
FORM_PLACES: Final = re.compile(r"^input\.(?:modifications|overrides|inputs)\.|^input\.")


@dataclass(frozen=True, slots=True)
class Work:
    """Arguments of the command. `parameters` are of Text2Image, those that were given."""

    subject: str
    assignments: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stored: str = ""
    count: int = 1
    priority: int = 0


def run(work: Work, worker: ChosenWorker, key: str, output: Path, *, is_json: bool, is_quiet: bool) -> None:
    """Submit the jobs, show their progress and save their files. Raises typer.Exit with the command's exit code."""
    console = Console(stderr=True, quiet=is_quiet)
    with Client(worker.url, key, verify=worker.verify) as client:
        try:
            requests = _requests(work, client)
            results = [_result_of(client, request, console) for request in requests]
            saved = [path for result, paths in _numbered(results, output) for path in _save(client, result, paths)]
        except RequestRefused as refused:
            _show_refusal(refused, console, is_json=is_json)
            raise typer.Exit(1) from None
        except JobFailed as failed:
            _say(console, failed.result.message, "red")
            if is_json:
                typer.echo(json.dumps(failed.result.raw))
            raise typer.Exit(1) from None
        except WorkerUnreachable as error:
            _say(console, worker.no_answer(error), "red")
            raise typer.Exit(2) from None
        except OSError as error:
            path = Path(error.filename or work.subject[:MAX_PATH_LENGTH])
            typer.echo(f"{path}: {unreadable_file(path, error)}", err=True)
            raise typer.Exit(1) from None
        except (NoWorkflow, ValueError) as error:
            typer.echo(f"{work.subject[:MAX_PATH_LENGTH]}: {error}" if work.subject else str(error), err=True)
            raise typer.Exit(1) from None
    if is_json:
        shown = [_without_data(result.raw) for result in results]
        typer.echo(json.dumps({"results": shown, "files": [str(path) for path in saved]}))
    else:
        for path in saved:
            typer.echo(path)


def _requests(work: Work, client: Client) -> list[Request]:
    """Return the requests of a command line. Raises NoWorkflow, OSError, ValueError, and the client's errors."""
    values, made = dict(map(_assigned, work.assignments)), []
    for index in range(work.count):
        request = _request(work, values, client)
        made.append(_with_next_seed(request, index))
    return made


def _request(work: Work, values: Mapping[str, Any], client: Client) -> Request:
    more: dict[str, Any] = {"priority": work.priority, "has_data": True}
    unused = sorted(name for name, value in work.parameters.items() if value not in (None, ""))
    if work.stored:
        if work.subject:
            raise NoWorkflow("a prompt and --workflow; expected one of them")
        _refuse_unused(unused)
        inputs = {name: value for name, value in values.items() if "." not in name and not name.startswith("#")}
        overrides = {name: value for name, value in values.items() if name not in inputs}
        return Request(stored=work.stored, inputs=inputs, overrides=overrides, **more)
    path = Path(work.subject)
    if len(work.subject) <= MAX_PATH_LENGTH and "\n" not in work.subject and path.is_file():
        _refuse_unused(unused)
        return Request(workflow=find_workflow(path.read_bytes()), overrides=values, **more)
    is_name = bool(MODIFIER_NAME.fullmatch(work.subject))
    modifiers = [str(entry.get("name")) for entry in client.modifiers()] if is_name else []
    stored = _stored_names(client) if is_name and work.subject not in modifiers else []
    modifier = modifier_of(work.subject, values.keys(), modifiers, stored)
    prompt = {} if modifier == work.subject else {"prompt": work.subject}
    return Request(modifier=modifier, modifications={**prompt, **work.parameters, **values}, **more)


def _stored_names(client: Client) -> list[str]:
    """Return the names of the stored workflows; none of a gateway, which stores none."""
    try:
        return [str(entry.get("name")) for entry in client.workflows()]
    except RequestRefused as refused:
        if refused.status != 404:
            raise
        return []


def _refuse_unused(names: Sequence[str]) -> None:
    if names:
        raise NoWorkflow(f"is a workflow, which takes no {', '.join(names)}; expected NAME=VALUE")


def _assigned(text: str) -> tuple[str, Any]:
    """Return name and value of `NAME=VALUE`: JSON, `@FILE` for a file's content, else text. Raises ValueError."""
    found = ASSIGNMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text}: not understood; expected NAME=VALUE")
    value = found["value"]
    if value.startswith("@"):
        path = Path(value[1:]).expanduser()
        if not path.is_file():
            raise ValueError(f"{found['name']}={value}: {missing_file(path)}")
        return found["name"], path
    try:
        return found["name"], json.loads(value)
    except ValueError:
        return found["name"], value


def _with_next_seed(request: Request, index: int) -> Request:
    """Return the request for the image of this index: a seed that was given counts up."""
    if index == 0 or not isinstance(seed := request.modifications.get("seed"), int):
        return request
    return Request(
        modifier=request.modifier,
        modifications={**request.modifications, "seed": seed + index},
        priority=request.priority,
        has_data=request.has_data,
    )


def _result_of(client: Client, request: Request, console: Console) -> Result:
    """Return the result of a request; show its progress until it arrives."""
    with JobProgress(console, protocol_of(terminal_variables()) if has_colors() else None) as progress:
        asked = replace(request, more={**request.more, "previews": True}) if progress.wants_previews else request
        result = client.generate(asked, progress.show)
    for message in _remarks(result):
        _say(console, message, "yellow")
    return result


def _remarks(result: Result) -> list[str]:
    """Return the remarks of a completed result: the message beyond the usual one, the warnings."""
    message = result.message.removeprefix(USUAL_MESSAGE).strip()
    return [*filter(None, [message]), *(str(warning.get("message")) for warning in result.warnings)]


def _numbered(results: Sequence[Result], output: Path) -> list[tuple[Result, list[Path]]]:
    """Return each result with the paths of its files: the first is `output`, the others have a number."""
    named, number = [], 0
    for result in results:
        paths = []
        for _ in result.files:
            number += 1
            paths.append(output if number == 1 else output.with_stem(f"{output.stem}_{number}"))
        named.append((result, paths))
    return named


def _save(client: Client, result: Result, paths: Sequence[Path]) -> list[Path]:
    return [client.save(item, path) for item, path in zip(result.files, paths, strict=True)]


def _show_refusal(refused: RequestRefused, console: Console, *, is_json: bool) -> None:
    for line in _refusal_lines(refused):
        _say(console, line, "red")
    if is_json:
        typer.echo(json.dumps(refused.body))


def _refusal_lines(refused: RequestRefused) -> list[str]:
    """Return each problem once, with its place; the message of a refusal without problems."""
    return [_placed(problem) for problem in refused.problems] or [refused.message]


def _placed(problem: Problem) -> str:
    place = FORM_PLACES.sub("", problem.field or "") or (f"node {problem.node_id}" if problem.node_id else "")
    return problem.message if not place or problem.message.startswith(place) else f"{place}: {problem.message}"


def _say(console: Console, text: str, colour: str) -> None:
    """Print a text as one paragraph: a terminal breaks the lines, a file gets them whole."""
    console.print(f"[{colour}]{escape(text)}[/]", soft_wrap=True, highlight=False)


def _without_data(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without the files that are saved."""
    outputs = [{key: value for key, value in item.items() if key != "data"} for item in result.get("output", ())]
    return {**result, "output": outputs}
