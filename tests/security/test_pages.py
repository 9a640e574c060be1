"""Pages bear the headers that keep a browser from being used against their visitor; no reply has a banner."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.openapi.utils import get_openapi

from darkroom.worker.api.page_headers import file_headers
from darkroom.worker.json import finite as finite_json
from darkroom.worker.json.finite import FiniteJSONResponse
from tests.fakes import FakeEngine, draw
from tests.worker.receiver import running_receiver
from tests.worker.running_front import RunningFront, running_front

DIRECTIVES = ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "connect-src 'self'")


@pytest.mark.parametrize("path", ["/", "/admin"])
async def test_our_pages_run_no_script_within_them(front: RunningFront, path: str) -> None:
    page = await front.http.get(path)
    policy = page.headers["content-security-policy"]
    assert all(directive in policy for directive in (*DIRECTIVES, "script-src 'self'; ", "style-src 'self'; "))
    assert not re.search(r"<style|<script>|<script [^>]*>[^<]|\sstyle=|\son[a-z]+=|javascript:", page.text)
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', page.text):
        part = await front.http.get(f"/{name}")
        assert part.status_code == 200 and part.headers["x-content-type-options"] == "nosniff"
        assert part.headers["content-type"].partition(";")[0] in ("text/javascript", "text/css", "image/svg+xml")
    assert page.headers["x-frame-options"] == "DENY" and page.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", ["index.html", "..%2fown_pages.py", "none.js", "%2e%2e%2f%2e%2e%2fapp.py"])
async def test_no_other_file_is_a_part_of_the_pages(front: RunningFront, name: str) -> None:
    assert (await front.http.get(f"/page/{name}")).status_code == 404


async def test_the_page_of_swagger_allows_its_own_scripts_and_no_others(front: RunningFront) -> None:
    page = await front.http.get("/docs")
    policy = page.headers["content-security-policy"]
    assert all(directive in policy for directive in DIRECTIVES)
    (scripts,) = (part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in scripts
    inline = [text for text in re.findall(r"<script(?: [^>]*)?>(.*?)</script>", page.text, re.DOTALL) if text.strip()]
    assert inline
    for text in inline:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in scripts
    assert not re.search(r"\son[a-z]+=|javascript:", page.text)
    assert page.headers["x-frame-options"] == "DENY" and page.headers["referrer-policy"] == "no-referrer"


async def test_every_reply_forbids_guessing_its_type_and_none_has_a_banner(front: RunningFront) -> None:
    paths = ("/", "/docs", "/docs/swagger-ui.css", "/openapi.json", "/live", "/health", "/nothing", "/metrics")
    for path in paths:
        reply = await front.http.get(path)
        assert reply.headers["x-content-type-options"] == "nosniff", path
        assert not {"server", "x-powered-by", "strict-transport-security"} & set(reply.headers), path
    (output,) = (await front.sync(draw())).json()["output"]
    reply = await front.http.get(output["url"])
    assert reply.headers["content-security-policy"].startswith("sandbox")


@pytest.mark.parametrize("media_type", ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "image/png"])
def test_files_that_may_have_scripts_are_given_no_origin(media_type: str) -> None:
    headers = file_headers(media_type)
    assert headers["Content-Security-Policy"].startswith("sandbox;")
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("media_type", ["video/mp4", "video/webm", "audio/flac"])
def test_files_that_a_tab_plays_may_load_themselves_and_nothing_else(media_type: str) -> None:
    headers = file_headers(media_type)
    assert headers["Content-Security-Policy"] == "default-src 'none'; media-src 'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"


async def test_the_document_is_made_once_for_all_and_known_by_its_tag(
    front: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*arguments: Any, **named: Any) -> dict[str, Any]:
        made.append(1)
        return get_openapi(*arguments, **named)

    monkeypatch.setattr("darkroom.worker.api.documentation.get_openapi", counted)
    first = await front.http.get("/openapi.json")
    again = await front.http.get("/openapi.json")
    assert first.json()["paths"] and first.content == again.content and len(made) == 1
    tag = first.headers["etag"]
    known = await front.http.get("/openapi.json", headers={"If-None-Match": f'"other", W/{tag}'})
    assert (known.status_code, known.content) == (304, b"")
    assert (await front.http.get("/openapi.json", headers={"If-None-Match": '"other"'})).status_code == 200
    front.front.services.engines.pool.any_client.facts.forget_object_info()
    assert (await front.http.get("/openapi.json")).headers["etag"] == tag
    assert len(made) == 1, "the engine has what it had"


async def test_what_an_engine_says_of_infinity_reaches_nobody(tmp_path: Path, engine: FakeEngine) -> None:
    async with (
        running_receiver() as receiver,
        running_front(tmp_path, engine, allowed_private_hosts="127.0.0.1", include_comfyui_response=True) as front,
    ):
        engine.extra_outputs = {"9": {"number": [math.inf, math.nan, 1.5]}}
        hook = {"url": receiver.url, "extra_params": {"a": 1e300}}
        reply = await front.sync(draw(), request_id="odd", webhook=hook)
        assert reply.status_code == 200 and "Infinity" not in reply.text and "NaN" not in reply.text
        assert [None, None, 1.5] in _lists_in(reply.json()["comfyui_response"])
        assert (await front.http.get("/result/odd")).status_code == 200
        stream = await front.http.get("/stream/odd")
        assert "Infinity" not in stream.text


def _lists_in(value: Any) -> list[Any]:
    found = [value] if isinstance(value, list) else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found + [inner for item in items for inner in _lists_in(item)]


def test_json_for_others_has_no_number_that_is_none() -> None:
    value = {"a": [1.5, math.inf, {"b": -math.inf}], "c": math.nan, "d": "Infinity"}
    told = {"a": [1.5, None, {"b": None}], "c": None, "d": "Infinity"}
    assert json.loads(finite_json.dumps(value)) == told
    assert json.loads(bytes(FiniteJSONResponse(value).body)) == told
    assert finite_json.dumps({"a": 1}) == json.dumps({"a": 1})
