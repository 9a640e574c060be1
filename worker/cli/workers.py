"""`darkroom workers`: the tokens by which workers ask a gateway for jobs: made, listed, revoked."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import httpx
import typer

from darkroom.worker.cli.chosen_worker import API_KEY_VARIABLE, INSECURE, worker_at
from darkroom.worker.cli.worker_client import worker_client

PATH = "/api/v1/worker-tokens"

commands = typer.Typer(no_args_is_help=True, help="Workers that ask a gateway for jobs.")

Url = Annotated[str, typer.Option(help="where the gateway listens")]
Key = Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="an operator's key")]
Insecure = Annotated[bool, typer.Option("--insecure", help=INSECURE)]


@commands.command("new")
def new(name: str, url: Url = "", api_key: Key = "", insecure: Insecure = False) -> None:
    """Make a token for one worker or several: print it, which is done this once."""
    made = _answer("POST", PATH, url, api_key, is_insecure=insecure, body={"name": name})
    typer.echo(f"WORKER_TOKEN={made['token']}")


@commands.command("ls")
def list_tokens(
    url: Url = "",
    api_key: Key = "",
    insecure: Insecure = False,
    is_json: Annotated[bool, typer.Option("--json", help="print JSON, one object a line")] = False,
) -> None:
    """List the tokens: when each was made, last used, and revoked."""
    for token in _answer("GET", PATH, url, api_key, is_insecure=insecure):
        if is_json:
            typer.echo(json.dumps(token))
            continue
        state = f"revoked {_day(token['revoked_ms'])}" if token["revoked_ms"] else f"seen {_day(token['seen_ms'])}"
        typer.echo(f"{token['name']}  made {_day(token['made_ms'])}  {state}")


@commands.command("revoke")
def revoke(name: str, url: Url = "", api_key: Key = "", insecure: Insecure = False) -> None:
    """Revoke a token: its workers get no more jobs, and what they hold goes to others."""
    typer.echo(_answer("DELETE", f"{PATH}/{name}", url, api_key, is_insecure=insecure)["message"])


def _answer(
    method: str, path: str, url: str, api_key: str, *, is_insecure: bool, body: dict[str, str] | None = None
) -> Any:
    """Return the gateway's answer; a refusal ends the command with exit code 1, no answer with 2."""
    gateway = worker_at(url, is_insecure=is_insecure)
    try:
        with worker_client(api_key=api_key or gateway.own_key, verify=gateway.verify) as http:
            reply = http.request(method, gateway.url + path, json=body)
            answer = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        typer.echo(gateway.no_answer(error), err=True)
        raise typer.Exit(2) from None
    except ValueError:
        typer.echo(f"{gateway.url} is no gateway: {reply.status_code}", err=True)
        raise typer.Exit(2) from None
    if not reply.is_success:
        told = answer.get("error") or {}
        problems = [problem["message"] for problem in told.get("problems") or ()]
        typer.echo("; ".join(problems) or told.get("message") or f"refused: {reply.status_code}", err=True)
        raise typer.Exit(1)
    return answer


def _day(at_ms: int | None) -> str:
    return "never" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000).astimezone():%Y-%m-%d %H:%M}"
