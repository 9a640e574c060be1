"""Files come in within their limits, from a real HTTP server and from inline data."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from darkroom.worker.errors import DiskLow, InputRejected, http_status
from darkroom.worker.guard.safe_address import AddressGuard, AddressRefused
from darkroom.worker.inputs.fetch import MAX_REDIRECTS, InputFetcher
from darkroom.worker.inputs.folder import InputFolder
from darkroom.worker.inputs.references import Reference
from darkroom.worker.inputs.refusals import DownloadFailed, InputBroken, InputTooLarge
from darkroom.worker.inputs.s3_source import S3Source
from darkroom.worker.media.kinds import Media
from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.s3.stores import S3Stores
from darkroom.worker.settings.outputs import InputLimits, S3Config
from tests.worker.running_front import until
from tests.worker.shared_media_processes import media_processes


def image(form: str = "PNG", size: tuple[int, int] = (40, 30)) -> bytes:
    held = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(held, form)
    return held.getvalue()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class Site(BaseHTTPRequestHandler):
    """Serves the pages of `server.pages`: path -> (status, headers, body); `/slow` never ends."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if path == "/slow":
            self.send_response(200)
            self.end_headers()
            self.server.stop.wait(10)  # type: ignore[attr-defined]
            return
        status, headers, body = self.server.pages.get(path, (404, {}, b""))  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def site() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.pages, server.asked, server.stop = {}, [], threading.Event()  # type: ignore[attr-defined]
    server.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.stop.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def fetcher(
    folder: Path, *, max_bytes: int = 1_000_000, seconds: float = 5.0, guarded: bool = False, min_free: int = 0
) -> InputFetcher:
    guard = AddressGuard([] if guarded else ["127.0.0.1"])
    limits = InputLimits(max_bytes=max_bytes, timeout_seconds=seconds)
    no_store = S3Config(connect_timeout_seconds=2.0, connect_attempts=1, presign_seconds=600, key_template="{filename}")
    return InputFetcher(
        guard,
        InputFolder(folder),
        limits,
        S3Source(S3Stores(guard), no_store, limits),
        min_free,
        None,
        media_processes(),
    )


def asking(value: str, media: Media = "image") -> Reference:
    source = "url" if value.startswith("http") else "data" if value.startswith("data:") else "base64"
    return Reference("7", "image", "LoadImage", source, media, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "extension"), [("PNG", "png"), ("JPEG", "jpg"), ("WEBP", "webp"), ("TIFF", "tiff"), ("BMP", "bmp")]
)
async def test_a_download_is_named_by_its_content_and_its_kind(
    site: Any, tmp_path: Path, form: str, extension: str
) -> None:
    data = image(form)
    site.pages["/x.exe"] = (200, {"Content-Type": "text/html"}, data)
    fetched = await fetcher(tmp_path).fetch(asking(f"{site.url}/x.exe"), "job")
    assert fetched.file_name == f"{hashlib.sha256(data).hexdigest()}.{extension}"
    assert fetched.path.read_bytes() == data and fetched.size_bytes == len(data)


async def test_the_same_content_is_one_file_however_it_comes(site: Any, tmp_path: Path) -> None:
    data = image()
    encoded = base64.b64encode(data).decode()
    site.pages["/a"] = site.pages["/b"] = (200, {}, data)
    source = fetcher(tmp_path)
    values = [
        f"{site.url}/a",
        f"{site.url}/b",
        f"data:image/png;base64,{encoded}",
        encoded,
        base64.urlsafe_b64encode(data).decode().rstrip("="),
    ]
    names = {(await source.fetch(asking(value), "job")).file_name for value in values}
    assert len(names) == 1 and names_in(tmp_path) == list(names)


async def test_redirects_are_followed_within_their_limit(site: Any, tmp_path: Path) -> None:
    for number in range(MAX_REDIRECTS):
        site.pages[f"/{number + 1}"] = (302, {"Location": f"/{number + 2}"}, b"")
    site.pages["/0"] = (302, {"Location": "/1"}, b"")
    site.pages[f"/{MAX_REDIRECTS + 1}"] = (200, {}, image())
    assert (await fetcher(tmp_path).fetch(asking(f"{site.url}/1"), "job")).size_bytes
    with pytest.raises(DownloadFailed, match="too many redirects"):
        await fetcher(tmp_path).fetch(asking(f"{site.url}/0"), "job")


async def test_a_refusal_names_node_field_and_url_without_its_secrets(site: Any, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed) as caught:
        await fetcher(tmp_path).fetch(asking(f"{site.url}/gone.png?X-Signature=secret"), "job")
    said = caught.value.as_json()
    assert (said["node_id"], said["field"], said["http_status"]) == ("7", "image", 404)
    assert said["url"] == f"{site.url}/gone.png" and "secret" not in str(said)
    assert http_status(type(caught.value)) == 422


async def test_private_addresses_are_refused_and_never_asked(site: Any, tmp_path: Path) -> None:
    with pytest.raises(AddressRefused) as caught:
        await fetcher(tmp_path, guarded=True).fetch(asking(f"{site.url}/a"), "job")
    assert site.asked == [] and caught.value.fields["node_id"] == "7"


async def test_a_redirect_to_a_private_address_is_refused(site: Any, tmp_path: Path) -> None:
    for target in ("http://169.254.169.254/latest", "http://10.0.0.1/", "file:///etc/passwd"):
        site.pages["/to"] = (302, {"Location": target}, b"")
        with pytest.raises(InputRejected):
            await fetcher(tmp_path).fetch(asking(f"{site.url}/to"), "job")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_file_over_the_limit_is_dropped(site: Any, tmp_path: Path, declared: bool) -> None:
    data = image(size=(200, 200))
    site.pages["/big"] = (200, {"Content-Length": str(len(data))} if declared else {}, data)
    with pytest.raises(InputTooLarge) as caught:
        await fetcher(tmp_path, max_bytes=1000).fetch(asking(f"{site.url}/big"), "job")
    assert caught.value.fields["limit_bytes"] == 1000 and names_in(tmp_path) == []


async def test_a_server_that_dawdles_is_left(site: Any, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed):
        await fetcher(tmp_path, seconds=0.2).fetch(asking(f"{site.url}/slow"), "job")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>not found</html>", image()[:30], image("JPEG")[:150], b"\x89PNG\r\n\x1a\n" + b"x" * 50, b"RIFF"],
)
async def test_what_does_not_open_as_an_image_is_refused(site: Any, tmp_path: Path, body: bytes) -> None:
    site.pages["/x"] = (200, {}, body)
    with pytest.raises(InputBroken) as caught:
        await fetcher(tmp_path).fetch(asking(f"{site.url}/x"), "job")
    assert caught.value.fields["node_id"] == "7" and names_in(tmp_path) == []


@pytest.mark.parametrize("value", ["data:image/png;base64,%%%", "data:image/png", "data:,hello", "A" * 65])
async def test_inline_data_that_does_not_decode_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputBroken):
        await fetcher(tmp_path).fetch(asking(value), "job")


async def test_a_latent_is_taken_where_a_latent_is_wanted(site: Any, tmp_path: Path) -> None:
    header = b'{"latent_tensor":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    site.pages["/l"] = (200, {}, len(header).to_bytes(8, "little") + header + bytes(4))
    assert (await fetcher(tmp_path).fetch(asking(f"{site.url}/l", "latent"), "job")).file_name.endswith(".latent")
    with pytest.raises(InputBroken):
        await fetcher(tmp_path).fetch(asking(f"{site.url}/l"), "job")


async def test_a_host_that_refuses_the_connection_is_a_callers_error(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="cannot be reached"):
        await fetcher(tmp_path).fetch(asking("http://127.0.0.1:9/x.png"), "job")


async def test_many_who_ask_for_one_address_at_once_share_one_download(site: Any, tmp_path: Path) -> None:
    site.pages["/a"] = (200, {}, image())
    source = fetcher(tmp_path)
    fetched = await asyncio.gather(*(source.fetch(asking(f"{site.url}/a"), f"job-{n}") for n in range(20)))
    assert site.asked == ["/a"] and len({item.file_name for item in fetched}) == 1


async def test_one_who_gives_up_leaves_the_others_their_download(site: Any, tmp_path: Path) -> None:
    site.pages["/a"] = (200, {}, image())
    source = fetcher(tmp_path)
    first, second = (asyncio.create_task(source.fetch(asking(f"{site.url}/a"), job)) for job in ("one", "two"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).path.is_file() and first.cancelled()


async def test_a_shared_refusal_names_the_node_of_each_who_asked(site: Any, tmp_path: Path) -> None:
    source = fetcher(tmp_path)
    asked = [Reference(node, "image", "LoadImage", "url", "image", f"{site.url}/gone") for node in ("1", "2")]
    refused = await asyncio.gather(*(source.fetch(item, "job") for item in asked), return_exceptions=True)
    assert [getattr(item, "fields", {})["node_id"] for item in refused] == ["1", "2"] and site.asked == ["/gone"]


async def test_a_file_for_which_the_disk_has_no_room_is_the_callers_to_send_later(site: Any, tmp_path: Path) -> None:
    data = image()
    site.pages["/a"] = (200, {"Content-Length": str(len(data))}, data)
    with pytest.raises(DiskLow) as caught:
        await fetcher(tmp_path, min_free=2**62).fetch(asking(f"{site.url}/a"), "job")
    assert caught.value.fields["node_id"] == "7" and http_status(DiskLow) == 503 and names_in(tmp_path) == []


async def test_a_download_of_unknown_size_stops_at_the_floor_of_the_disk_and_not_at_its_end(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("darkroom.worker.inputs.partial_file.BLOCK_BYTES", 64 * 1024)
    free = iter([2**40, 2**40, 10, 2**40])  # another program fills the disk meanwhile
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=next(free)))
    site.pages["/a"] = (200, {}, bytes(900_000))
    with pytest.raises(DiskLow) as caught:
        await fetcher(tmp_path, min_free=1000).fetch(asking(f"{site.url}/a"), "job")
    assert caught.value.fields["node_id"] == "7" and names_in(tmp_path) == []
    assert next(free) == 2**40  # nothing was written after that


async def test_files_that_wait_for_their_check_hold_up_nothing_else(tmp_path: Path) -> None:
    """Strangers' slow images take the processes; the threads of the front are there for others."""
    processes = MediaProcesses(num_processes=1)
    waiting = fetcher(tmp_path / "inputs")
    waiting._media_processes = processes
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    contents = [asking(base64.b64encode(image()).decode()) for _ in range(4)]

    async def all_wait() -> bool:
        return sum(thread.name == "_keep" for thread in threading.enumerate()) >= len(contents)

    processes._slots.acquire()
    try:
        fetches = [asyncio.create_task(waiting.fetch(content, "job")) for content in contents]
        await until(all_wait)
        async with asyncio.timeout(60):
            await asyncio.to_thread(int)
    finally:
        processes._slots.release()
    assert len({fetched.path for fetched in await asyncio.gather(*fetches)}) == len(fetches)
    await waiting.close()
    processes.close()
