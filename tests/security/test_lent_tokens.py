"""The operator's tokens go to sources that the operator names, never to what a request names, by whatever spelling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from darkroom.worker.guard.plain_paths import plain_path
from darkroom.worker.inputs.download_headers import find_prefix_problem, headers_for
from darkroom.worker.models.download.credentials import BearerToken, Credentials
from darkroom.worker.models.errors import SourceRefused
from darkroom.worker.models.sources import parse_source
from tests.worker.models.downloading import access_to, downloader_at, entry_of
from tests.worker.models.model_server import ModelServer, checkpoint, model_server

TOKEN = "planted-hub-token"
SOURCES = {
    "hf://operator/private/small.safetensors": "/operator/private/resolve/main/small.safetensors",
    "civitai://7": "/api/download/models/7",
    "{url}/small.safetensors": "/small.safetensors",
}
CLIMBING = (
    "/mine/../other/x",
    "/mine/%2e%2e/other/x",
    "/mine/%2E./other/x",
    "/mine/%252e%252e/other/x",
    "/mine/..%2fother/x",
    "/mine/%2e%2e%2fother/x",
    "/mine/..%5cother/x",
    "/mine\\..\\other/x",
    "/mine/./x",
    "/mine//x",
    "//mine/x",
    "/mine/..;a=b/other/x",
    "/mine/x%00",
    "/mine/%25252525252e./x",
)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        running.files = dict.fromkeys(SOURCES.values(), checkpoint())
        yield running


def authorised(server: ModelServer) -> list[str]:
    return [head["Authorization"] for head in server.heads if "Authorization" in head]


@pytest.mark.parametrize("source", SOURCES)
async def test_a_source_of_a_request_is_read_without_any_token(
    server: ModelServer, tmp_path: Path, source: str
) -> None:
    own = BearerToken(f"{server.url}/", SecretStr("planted-model-token"))
    access = access_to(server, token=TOKEN, tokens=(own,), private_hosts=("127.0.0.1",))
    entry = entry_of(source.format(url=server.url))
    async with downloader_at(tmp_path / "models", access) as downloader:
        await downloader.fetch(entry, is_operators=False)
        assert server.heads and authorised(server) == []
    async with downloader_at(tmp_path / "other", access) as downloader:
        await downloader.fetch(entry, is_operators=True)
        assert authorised(server) != []


async def test_a_gated_file_that_a_request_names_is_refused_with_what_the_operator_may_do(
    server: ModelServer, tmp_path: Path
) -> None:
    server.token, server.gate = TOKEN, "GatedRepo"
    async with downloader_at(tmp_path / "models", access_to(server, token=TOKEN)) as downloader:
        with pytest.raises(SourceRefused, match="manifest"):
            await downloader.fetch(entry_of("hf://operator/private/small.safetensors"), is_operators=False)
        assert await downloader.fetch(entry_of("hf://operator/private/small.safetensors"))


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/../api/resolve/main/whoami/x.safetensors",
        "https://huggingface.co/%2e%2e/api/resolve/main/whoami/x.safetensors",
        "https://huggingface.co/a/../resolve/main/x.safetensors",
        "https://huggingface.co/a/b/resolve/../x.safetensors",
        "https://huggingface.co/a/b/resolve/%2e%2e/x.safetensors",
        "https://huggingface.co/a/b/resolve/main/..%2f..%2fx.safetensors",
        "https://huggingface.co/a/b/resolve/main/%252e%252e/x.safetensors",
        "https://HuggingFace.co:443/a/b/resolve/main/..\\x.safetensors",
        "hf://../api/whoami/x.safetensors",
        "hf://a/../x.safetensors",
        "hf://a/b/c.safetensors@../..",
        "hf://a/b/c/../../x.safetensors",
        "https://host/mine/../x.safetensors",
    ],
)
def test_an_address_that_leaves_its_folder_is_no_source(address: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_source(address)


@pytest.mark.parametrize("path", CLIMBING)
def test_a_path_that_a_server_may_read_as_another_gets_no_token_and_no_header(path: str) -> None:
    assert plain_path(path) is None
    token = Credentials((BearerToken("https://host/mine/", SecretStr("t")),))
    assert token.headers_for(f"https://host{path}") == {}
    assert headers_for(f"https://host{path}", {"https://host/mine/": {"X-Key": "k"}}) == {}
    if path.startswith("/mine/"):
        assert find_prefix_problem(f"https://host{path}") is not None


@pytest.mark.parametrize(
    ("address", "is_lent"),
    [
        ("https://host/mine/x", True),
        ("https://HOST:443/mine/a%20b/x", True),
        ("HTTPS://host/m%69ne/x", True),
        ("https://host/mine", True),
        ("https://host/mineral/x", False),
        ("http://host/mine/x", False),
        ("https://host:444/mine/x", False),
        ("https://host.evil/mine/x", False),
        ("https://host@evil/mine/x", False),
        ("https://evil/https://host/mine/x", False),
    ],
)
def test_the_path_is_compared_as_servers_read_it(address: str, is_lent: bool) -> None:
    token = Credentials((BearerToken("https://host/mine/", SecretStr("t")),))
    assert token.has_for(address) is is_lent
