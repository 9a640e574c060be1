"""Headers for downloads reach the servers that the request names, and no others."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from darkroom.worker.inputs.download_headers import find_prefix_problem, headers_for
from tests.fakes import FakeEngine, paint
from tests.served import served
from tests.worker.running_front import running_front

KEY = {"Authorization": "Bearer planted"}


@pytest.mark.parametrize(
    ("url", "prefix", "is_sent"),
    [
        ("https://a.example/x/y.png?z=1", "https://a.example/x/", True),
        ("https://a.example:443/x/y.png", "https://A.example/", True),
        ("https://a.example", "https://a.example/", True),
        ("http://a.example/x/y.png", "https://a.example/x/", False),
        ("https://a.example:444/x/y.png", "https://a.example/x/", False),
        ("https://a.example.evil.example/x/", "https://a.example/x/", False),
        ("https://a.example@evil.example/x/", "https://a.example/x/", False),
        ("https://a.example/y.png", "https://a.example/x/", False),
        ("https://[broken", "https://a.example/x/", False),
    ],
)
def test_an_address_gets_the_headers_of_its_own_server(url: str, prefix: str, is_sent: bool) -> None:
    assert headers_for(url, {prefix: KEY}) == (KEY if is_sent else {})


def test_the_longest_beginning_wins() -> None:
    asked = {"https://a.example/x/": {"A": "long"}, "https://a.example/": {"A": "short", "B": "kept"}}
    assert headers_for("https://a.example/x/1", asked) == {"A": "long", "B": "kept"}


@pytest.mark.parametrize(
    "prefix",
    ["a.example/", "ftp://a.example/", "https://a.example", "https://u@a.example/", "https://a/?q", "https://["],
)
def test_other_texts_are_no_beginning_of_an_address(prefix: str) -> None:
    assert find_prefix_problem(prefix) is not None


async def test_refusals_of_a_request_repeat_no_value(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"https://a.example": KEY},
        {"https://a.example/": {"Host": "planted"}},
        {"https://a.example/": {"X": "planted\r\nY: z"}},
        {"https://a.example/": {"X": ["planted"]}},
    ]
    async with FakeEngine(tmp_path) as engine, running_front(tmp_path, engine) as front:
        for headers in wrong:
            response = await front.sync(paint(), download_headers=headers)
            field = response.json()["error"]["problems"][0]["field"]
            assert (response.status_code, field.partition(".h")[0]) == (422, "input.download_headers"), response.text
            assert "planted" not in response.text


async def test_a_key_opens_its_server_stays_there_and_is_erased(tmp_path: Path) -> None:
    seen: list[tuple[str, str | None]] = []
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "PNG")

    async def open_file(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers.get("Authorization")))
        return web.Response(body=content.getvalue())

    other_app = web.Application()
    other_app.router.add_get("/moved.png", open_file)
    async with served(other_app) as other:

        async def locked_file(request: web.Request) -> web.StreamResponse:
            seen.append((request.path, request.headers.get("Authorization")))
            if request.headers.get("Authorization") != KEY["Authorization"]:
                return web.Response(status=403)
            raise web.HTTPFound(f"{other}/moved.png")

        app = web.Application()
        app.router.add_get("/private/a.png", locked_file)
        async with (
            served(app) as url,
            FakeEngine(tmp_path) as engine,
            running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front,
        ):
            address = f"{url}/private/a.png"
            without = await front.sync(paint(image=address))
            assert without.status_code == 422 and "403" in without.text
            result = await front.sync(paint(image=address), download_headers={f"{url}/private/": KEY})
            assert result.json()["status"] == "completed", result.text
            await front.front.services.jobs.store.forget_finished_before(0)  # empties the write-ahead log
            for file in (tmp_path / "state").glob("darkroom.db*"):
                assert b"planted" not in file.read_bytes(), file
    path = "/private/a.png"
    assert seen == [(path, None), (path, KEY["Authorization"]), ("/moved.png", None)]
