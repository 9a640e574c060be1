"""The `darkroom` command line as a user types it, in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner, Result

from darkroom.host.distribution import DISTRIBUTION
from darkroom.worker.cli.main import app
from darkroom.worker.errors import SettingsInvalid
from tests.engine.server.certificate import write_certificate
from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import running_front


async def darkroom(*arguments: str, **environment: str) -> tuple[int, str, str]:
    return await ended(command_line(*arguments), **environment)


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from darkroom.worker.cli.main import main; main()", *arguments]


async def ended(command: list[str], **environment: str) -> tuple[int, str, str]:
    process = await started(command, **environment)
    stdout, stderr = await process.communicate()
    return process.returncode or 0, stdout.decode(), stderr.decode()


async def started(command: list[str], **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_every_command_is_listed() -> None:
    code, stdout, _ = await darkroom("--help")
    assert code == 0
    for name in ("serve", "generate", "jobs", "benchmark", "models", "tuning", "nodes", "engine"):
        assert name in stdout


async def test_the_worker_module_with_arguments_is_the_same_command_line(tmp_path: Path) -> None:
    (tmp_path / "custom_nodes").mkdir()
    (tmp_path / "custom_nodes" / "one.py").write_text("")
    module = [sys.executable, "-m", "darkroom.worker"]
    code, stdout, stderr = await ended([*module, "nodes", "list", "--base-directory", str(tmp_path)])
    assert (code, stdout.split("\t")[0]) == (0, "one"), stderr
    code, _, stderr = await ended([*module, "nothing-of-the-kind"])
    assert code == 2
    assert "Usage: darkroom" in stderr


async def test_generate_says_why_a_request_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # which is not asked: the worker is on this machine
    (tmp_path / "engine").mkdir()
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        # the fake engine has none of Text2Image's nodes
        code, _, stderr = await darkroom("generate", "a fox", "--url", front.url, "-o", str(tmp_path / "fox.png"))
    assert code == 1
    assert "KSampler" in stderr


async def test_generate_takes_the_workflow_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    saved, broken = tmp_path / "page.json", tmp_path / "broken.png"
    saved.write_text(json.dumps({"nodes": [{"id": 1, "type": "Draw", "widgets_values": ["hello", 8]}], "links": []}))
    broken.write_bytes(b"no image")
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        drawn = await invoked("generate", str(saved), "--url", front.url, "-o", str(tmp_path / "out.png"))
        refused = await invoked("generate", str(broken), "--url", front.url)
        unused = await invoked("generate", str(saved), "--seed", "5", "--url", front.url)
    assert drawn.exit_code == 0 and (tmp_path / "out.png").is_file(), drawn.output
    assert refused.exit_code == 1 and "carries no workflow" in refused.output
    assert unused.exit_code == 1 and "takes no seed" in unused.output


async def test_generate_says_when_nobody_answers(tmp_path: Path) -> None:
    code, _, stderr = await darkroom("generate", "a fox", "--url", "http://127.0.0.1:9")
    assert code == 2
    assert "does not answer" in stderr


async def invoked(*arguments: str, **environment: str) -> Result:
    """The command within this process, which needs no second to start."""
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)


async def test_a_worker_with_a_certificate_that_nobody_signed_is_spoken_to(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    key, certificate = write_certificate(tmp_path, "203.0.113.5")  # a machine's public address
    tls: dict[str, Any] = {"USE_SSL": "true", "SSL_CERTFILE": str(certificate), "SSL_KEYFILE": str(key)}
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine, **tls) as front:
        local = {**tls, "WORKER_PORT": str(urlsplit(front.url).port)}
        last = await invoked("benchmark", "--last", "--json", **local)
        assert (last.exit_code, json.loads(last.stdout)["verdict"]) == (0, "skipped"), last.output
        for arguments, environment in (((), local), (("--url", front.url, "--insecure"), {})):
            drawn = await invoked("generate", "a fox", *arguments, **environment)
            assert (drawn.exit_code, "KSampler" in drawn.output) == (1, True), drawn.output  # the fake engine has none
        unknown = await invoked("generate", "a fox", "--url", front.url)
        assert (unknown.exit_code, "--insecure" in unknown.output) == (2, True), unknown.output


async def test_a_setting_that_does_not_parse_is_named(tmp_path: Path) -> None:
    code, _, stderr = await darkroom("benchmark", "--last", WORKER_PORT="eighty")
    assert (code, "WORKER_PORT" in stderr, "Traceback" in stderr) == (2, True, False)
    missing = await invoked("generate", "a fox", USE_SSL="true", SSL_CERTFILE=str(tmp_path / "none.crt"))
    assert isinstance(missing.exception, SettingsInvalid) and "SSL_CERTFILE" in str(missing.exception)


async def test_the_version_is_that_of_the_distribution() -> None:
    shown = await invoked("--version")
    assert (shown.exit_code, shown.output) == (0, f"darkroom {metadata.version(DISTRIBUTION)}\n")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["version"] == metadata.version(DISTRIBUTION)


async def test_lists_that_are_empty_say_so(tmp_path: Path) -> None:
    base = ("--base-directory", str(tmp_path))
    listed, verified = await invoked("models", "list", *base), await invoked("models", "verify", *base)
    for shown in (listed, verified):
        assert (shown.exit_code, shown.stderr) == (0, f"No model files below {tmp_path}/models\n")
    assert "darkroom-emoji.safetensors  (built in)" in listed.stdout
    code, _, stderr = await darkroom("nodes", "list", *base)
    assert (code, stderr) == (0, f"no custom nodes in {tmp_path}/custom_nodes\n")


async def test_verified_models_are_counted(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "cut.safetensors").write_bytes(b"x")
    verified = await invoked("models", "verify", "--base-directory", str(tmp_path))
    assert (verified.exit_code, verified.stderr) == (4, "1 checked, 1 broken\n")


async def test_a_pack_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    code, stdout, stderr = await darkroom("nodes", "install", str(tmp_path / "missing"))
    assert (code, stdout) == (1, "") and "no such folder" in stderr


async def test_the_key_of_a_worker_comes_from_a_variable_too(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    keys: dict[str, Any] = {"api_keys": "hush-hush", "trust_loopback": False}
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine, **keys) as front:
        refused = await invoked("generate", "a fox", "--url", front.url)
        taken = await invoked("generate", "a fox", "--url", front.url, DARKROOM_API_KEY="hush-hush")
    assert "API key" in refused.output and "KSampler" in taken.output, (refused.output, taken.output)


async def test_internal_commands_are_not_shown() -> None:
    _, stdout, _ = await darkroom("nodes", "--help")
    assert "trial" not in stdout and "install" in stdout


def last_line(shown: Result) -> str:
    """Return the line that the command printed last: the log of a front in the same process comes before it."""
    return shown.stdout.splitlines()[-1]


async def test_generate_takes_overrides_modifiers_and_stored_workflows(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    saved, out = tmp_path / "workflow.json", tmp_path / "out.png"
    saved.write_text(json.dumps(draw()))
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        async with httpx.AsyncClient(base_url=front.url, trust_env=False) as http:
            stored = {"workflow_json": draw(), "inputs": {"word": "1.text"}}
            assert (await http.put("/workflows/poster", json=stored)).status_code == 201
        at = ("--url", front.url, "-o", str(out))
        changed = await invoked("generate", str(saved), "1.text=fox", "#size=2", "-n", "2", "--json", *at)
        assert changed.exit_code == 0, changed.output
        shown = json.loads(last_line(changed))
        assert shown["files"] == [str(out), str(tmp_path / "out_2.png")]
        assert (out.read_text(), (tmp_path / "out_2.png").read_text()) == ("foxfox", "foxfox")
        assert shown["results"][0]["parameters"]["overrides"] == {"1.text": "fox", "1.size": 2}
        kept = await invoked("generate", "-w", "poster", "word=a dog", "1.size=1", "-q", *at)
        assert (kept.exit_code, out.read_text()) == (0, "a dog"), kept.output
        wrong = await invoked("generate", str(saved), "1.txt=x", *at)
        assert wrong.exit_code == 1 and "1.txt" in wrong.output
        modifier = await invoked("generate", "Inpaint", "prmpt=x", *at)
        assert modifier.exit_code == 1 and "Inpaint has no such field" in modifier.output
        for arguments in (("x", "y"), ()):
            refused = await invoked("generate", *arguments, *at)
            assert refused.exit_code in (1, 2) and "Traceback" not in refused.output


async def test_generate_refuses_what_is_written_wrong_and_draws_nothing(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    saved, out = tmp_path / "workflow.json", tmp_path / "out.png"
    saved.write_text(json.dumps(draw()))
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        async with httpx.AsyncClient(base_url=front.url, trust_env=False) as http:
            assert (await http.put("/workflows/poster", json={"workflow_json": draw()})).status_code == 201
        for arguments, meant in (
            (("Text2Imag", "prompt=x"), "`Text2Image`"),
            (("text2image",), "`Text2Image`"),
            ((str(tmp_path / "workflwo.json"),), "workflow.json"),
            (("poster",), "--workflow poster"),
            (("Foo", "prompt=x"), "Text2Image, Image2Image"),
            (("prompt=x",), "Text2Image prompt=x"),
            ((str(saved), f"1.text=@{tmp_path}/workflow.jsn"), "workflow.json"),
        ):
            wrong = await invoked("generate", *arguments, "--url", front.url, "-o", str(out))
            assert wrong.exit_code == 1 and meant in wrong.output, wrong.output
        assert not out.exists()
        assert "No jobs" in (await invoked("jobs", "ls", "--url", front.url)).output


async def test_generate_names_each_problem_once_and_shows_what_a_result_says(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    saved, out = tmp_path / "workflow.json", tmp_path / "out.png"
    demo = draw()
    demo["1"]["inputs"]["text"] = "darkroom-emoji.safetensors"  # where a loader would name its checkpoint
    saved.write_text(json.dumps(demo))
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        at = ("--url", front.url, "-o", str(out))
        drawn = await invoked("generate", str(saved), *at)
        code, _, refused = await darkroom("generate", "Inpaint", "prmpt=x", *at)
    assert drawn.exit_code == 0 and "darkroom models fetch sd15" in drawn.stderr and "emoji" in drawn.stderr
    lines = refused.splitlines()
    assert code == 1 and len(set(lines)) == len(lines) > 1 and "" not in lines, refused
    assert "prmpt: Inpaint has no such field; did you mean `prompt`?" in lines
    assert "and 1 more" not in refused


async def test_jobs_are_listed_watched_and_cancelled(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        body = {"input": {"workflow_json": wait(), "request_id": "long"}}
        await front.http.post("/generate", json=body)
        await front.until("long", "generating")
        at = ("--url", front.url)
        listed = await invoked("jobs", "ls", *at)
        assert (listed.exit_code, last_line(listed).split()[:2]) == (0, ["long", "generating"]), listed.output
        watching = await started(command_line("jobs", "watch", "long", *at))  # the runner serves one at a time
        assert watching.stdout is not None
        assert (await watching.stdout.readline()).split()[0] == b"generating"
        assert last_line(await invoked("jobs", "cancel", "long", *at)) == "long  cancelled"
        watched, _ = await watching.communicate()
        assert (watching.returncode, watched.splitlines()[-1].split()[0]) == (1, b"cancelled")
        late = await invoked("jobs", "watch", "long", *at)
        assert (late.exit_code, last_line(late).split()[0]) == (1, "cancelled")
        assert (await invoked("jobs", "cancel", "none", *at)).exit_code == 1
        assert last_line(await invoked("jobs", "ls", *at)).split()[:2] == ["long", "cancelled"]
        assert "No jobs" in (await invoked("jobs", "ls", "--state", "completed", *at)).output
        wrong = await invoked("jobs", "ls", "--state", "done", *at)
        assert wrong.exit_code == 1 and "completed" in wrong.output
