"""Downloads against a real server: whole, in parallel, resumed, refused, and never visible before they are right."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.models.download.part_file import BLOCK_BYTES
from darkroom.worker.models.download.transfer import RUN_BYTES, TransferLimits
from darkroom.worker.models.errors import (
    DiskFull,
    DiskUnwritable,
    DownloadBroke,
    ModelBroken,
    SourceFailed,
    SourceMissing,
    SourceRefused,
    SourceUnreachable,
)
from darkroom.worker.models.files import checksum_path, find_problem, list_models
from darkroom.worker.models.lock import read_lock
from tests.worker.models.downloading import access_to, downloader_at, entry_of
from tests.worker.models.model_server import ModelServer, checkpoint, model_server

HUB = "hf://someone/small/small.safetensors"
HUB_PATH = "/someone/small/resolve/main/small.safetensors"
SMALL = checkpoint(3000)
LARGE = checkpoint(3 * BLOCK_BYTES + 500_000, fill=7)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        running.files = {HUB_PATH: SMALL, "/a/small.safetensors": SMALL, "/b/small.safetensors": LARGE}
        yield running


async def fetched(tmp_path: Path, server: ModelServer, *sources: str, access: Any = None, **fields: Any) -> Path:
    async with downloader_at(tmp_path / "models", access or access_to(server)) as downloader:
        return await downloader.fetch(entry_of(*sources, **fields))


async def test_a_file_of_the_hub_is_fetched_checked_and_locked(server: ModelServer, tmp_path: Path) -> None:
    path = await fetched(tmp_path, server, HUB)
    assert path == tmp_path / "models" / "checkpoints" / "small.safetensors" and path.read_bytes() == SMALL
    assert checksum_path(path).read_text().startswith(server.sha256(HUB_PATH)) and find_problem(path) is None
    locked = read_lock(tmp_path / "models.lock.toml")["checkpoints/small.safetensors"]
    assert (locked.sha256, locked.size_bytes) == (server.sha256(HUB_PATH), len(SMALL))
    assert locked.source == f"{HUB}@main"
    left = [item for item in (tmp_path / "models" / ".downloads").rglob("*") if item.is_file()]
    assert [item.suffix for item in left] == [".lock"]


async def test_a_file_that_is_there_is_not_asked_for(server: ModelServer, tmp_path: Path) -> None:
    await fetched(tmp_path, server, HUB)
    server.heads.clear()
    await fetched(tmp_path, server, HUB)
    assert server.heads == []


async def test_every_byte_of_a_file_comes_once_over_all_connections(server: ModelServer, tmp_path: Path) -> None:
    path = await fetched(tmp_path, server, f"{server.url}/b/small.safetensors")
    assert path.read_bytes() == LARGE and server.sent_bytes("/b/small.safetensors") == len(LARGE)


async def test_a_connection_that_breaks_loses_less_than_a_block(server: ModelServer, tmp_path: Path) -> None:
    server.drop_after = {1: BLOCK_BYTES + 200_000, 2: 300_000}
    path = await fetched(tmp_path, server, f"{server.url}/b/small.safetensors")
    assert path.read_bytes() == LARGE
    assert server.sent_bytes("/b/small.safetensors") - len(LARGE) < 2 * BLOCK_BYTES
    assert len(server.asked) == 3 and server.asked[1][1] == BLOCK_BYTES


async def test_a_server_that_falls_silent_is_asked_again(server: ModelServer, tmp_path: Path) -> None:
    server.stall_after = {1: BLOCK_BYTES}
    access = access_to(server, timeout_seconds=0.5)
    path = await fetched(tmp_path, server, f"{server.url}/b/small.safetensors", access=access)
    assert path.read_bytes() == LARGE and server.asked[-1][1] == BLOCK_BYTES


async def test_statuses_that_pass_are_waited_for(server: ModelServer, tmp_path: Path) -> None:
    server.statuses = [503, 429, 500]
    assert (await fetched(tmp_path, server, HUB)).read_bytes() == SMALL


async def test_a_server_without_ranges_sends_the_whole_file(server: ModelServer, tmp_path: Path) -> None:
    server.has_ranges = False
    path = await fetched(tmp_path, server, f"{server.url}/b/small.safetensors")
    assert path.read_bytes() == LARGE and server.num_answers == 1


async def test_a_download_that_was_ended_goes_on_where_it_stopped(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    async with downloader_at(tmp_path / "models", access_to(server)) as downloader:
        server.hold.set()
        server.drop_after = dict.fromkeys(range(1, 5), BLOCK_BYTES + 1)
        server.drop_after[2] = server.drop_after[3] = server.drop_after[4] = 1
        with pytest.raises(DownloadBroke, match="resumed next time"):
            await downloader.fetch(entry_of(f"{server.url}/b/small.safetensors"))
    server.asked.clear()
    path = await fetched(tmp_path, server, f"{server.url}/b/small.safetensors")
    assert path.read_bytes() == LARGE and server.asked == [("/b/small.safetensors", BLOCK_BYTES)]


async def test_another_source_goes_on_where_the_hash_is_known(server: ModelServer, tmp_path: Path) -> None:
    server.files["/c/small.safetensors"] = LARGE
    server.drop_after = {1: BLOCK_BYTES + 1, **dict.fromkeys(range(2, 5), 1)}
    digest = hashlib.sha256(LARGE).hexdigest()
    sources = [f"{server.url}/b/small.safetensors", f"{server.url}/c/small.safetensors"]
    path = await fetched(tmp_path, server, *sources, sha256=digest)
    assert path.read_bytes() == LARGE and server.asked[-1] == ("/c/small.safetensors", BLOCK_BYTES)


async def test_the_next_source_is_read_where_one_fails(server: ModelServer, tmp_path: Path) -> None:
    sources = ["http://127.0.0.1:9/x", f"{server.url}/nothing", HUB]
    assert (await fetched(tmp_path, server, *sources)).read_bytes() == SMALL


async def test_a_wrong_hash_never_becomes_visible(server: ModelServer, tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match=r"wrong content; got SHA-256 .*, expected 0000"):
        await fetched(tmp_path, server, f"{server.url}/a/small.safetensors", sha256="0" * 64)
    assert list_models(tmp_path / "models") == []
    assert not list((tmp_path / "models" / ".downloads").rglob("*.part"))


async def test_what_the_hub_publishes_is_compared_before_bytes_come(server: ModelServer, tmp_path: Path) -> None:
    for fields in ({"sha256": "0" * 64}, {"size_bytes": 5}):
        with pytest.raises(ModelBroken, match="another file at the source"):
            await fetched(tmp_path, server, HUB, **fields)
    assert not (tmp_path / "models" / "checkpoints").exists()


async def test_a_hub_that_lies_about_its_hash_is_found_out(server: ModelServer, tmp_path: Path) -> None:
    server.published_sha256 = "1" * 64
    with pytest.raises(ModelBroken, match="wrong content"):
        await fetched(tmp_path, server, HUB)
    assert list_models(tmp_path / "models") == []


@pytest.mark.parametrize("content", [b"<html>please log in</html>", SMALL[:-1], SMALL + b"x"])
async def test_a_page_or_a_cut_file_is_refused(server: ModelServer, tmp_path: Path, content: bytes) -> None:
    server.files["/a/small.safetensors"] = content
    with pytest.raises(ModelBroken, match=r"not a safetensors file|its header announces"):
        await fetched(tmp_path, server, f"{server.url}/a/small.safetensors")
    assert list_models(tmp_path / "models") == []


async def test_a_file_without_a_length_is_refused(server: ModelServer, tmp_path: Path) -> None:
    server.has_length = server.has_ranges = False
    with pytest.raises(ModelBroken, match="no length; expected size_bytes"):
        await fetched(tmp_path, server, f"{server.url}/a/small.safetensors")
    path = await fetched(tmp_path, server, f"{server.url}/a/small.safetensors", size_bytes=len(SMALL))
    assert path.read_bytes() == SMALL


async def test_a_gated_repository_says_what_to_do(server: ModelServer, tmp_path: Path) -> None:
    server.token, server.gate = "right", "GatedRepo"
    with pytest.raises(SourceRefused, match=r"gated repository; accept its licence at .*/small and set HF_TOKEN"):
        await fetched(tmp_path, server, HUB)
    access = access_to(server, token="right")
    assert (await fetched(tmp_path, server, HUB, access=access)).read_bytes() == SMALL


async def test_a_token_is_not_sent_to_where_the_hub_redirects(server: ModelServer, tmp_path: Path) -> None:
    server.token = "right"
    with model_server(files={"/cdn.safetensors": SMALL}) as cdn:
        server.redirect = f"{cdn.url}/cdn.safetensors"
        del server.files["/a/small.safetensors"]
        access = access_to(server, token="right")
        await fetched(tmp_path, server, f"{server.url}/a/small.safetensors", access=access)
        assert server.heads[0]["Authorization"] == "Bearer right"
        assert all("Authorization" not in head for head in cdn.heads)


async def test_a_file_of_civitai_has_the_published_hash(server: ModelServer, tmp_path: Path) -> None:
    server.files["/api/download/models/12"] = SMALL
    path = await fetched(tmp_path, server, "civitai://12", access=access_to(server, token="key"))
    assert path.read_bytes() == SMALL and all(head["Authorization"] == "Bearer key" for head in server.heads[:2])
    path.unlink()
    (tmp_path / "models.lock.toml").unlink()
    server.published_sha256 = "2" * 64
    with pytest.raises(ModelBroken, match="wrong content"):
        await fetched(tmp_path, server, "civitai://12")


async def test_civitai_without_an_account_says_what_to_do(server: ModelServer, tmp_path: Path) -> None:
    server.files["/api/download/models/12"], server.token = SMALL, "right"
    with pytest.raises(SourceRefused, match="set CIVITAI_TOKEN"):
        await fetched(tmp_path, server, "civitai://12")


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("hf://someone/small/nothing.safetensors", SourceMissing, "the repository has no such file"),
        ("{url}/nothing.safetensors", SourceMissing, "no such file; the source answered 404"),
        ("http://127.0.0.1:9/small.safetensors", SourceUnreachable, "cannot be reached"),
        ("/nowhere/small.safetensors", SourceMissing, "No such file or directory"),
        ("s3://bucket/small.safetensors", SourceRefused, "S3_ACCESS_KEY_ID"),
    ],
)
async def test_a_source_without_the_file_is_named(
    server: ModelServer, tmp_path: Path, source: str, error: type[SourceFailed], words: str
) -> None:
    with pytest.raises(error, match=words):
        await fetched(tmp_path, server, source.format(url=server.url))


async def test_private_addresses_are_refused_for_requests_and_redirects(server: ModelServer, tmp_path: Path) -> None:
    async with downloader_at(tmp_path / "models", access_to(server)) as downloader:
        with pytest.raises(SourceRefused, match="not on the public internet"):
            await downloader.fetch(entry_of(f"{server.url}/a/small.safetensors"), is_operators=False)
        with pytest.raises(SourceRefused, match="a request may not name it"):
            await downloader.fetch(entry_of("/etc/passwd"), is_operators=False)
        server.redirect = "http://169.254.169.254/latest"
        with pytest.raises(SourceRefused, match="not on the public internet"):
            await downloader.fetch(entry_of(f"{server.url}/a/small.safetensors"))


async def test_a_file_of_this_machine_is_copied(tmp_path: Path, server: ModelServer) -> None:
    (tmp_path / "volume.safetensors").write_bytes(LARGE)
    path = await fetched(tmp_path, server, str(tmp_path / "volume.safetensors"))
    assert path.read_bytes() == LARGE


async def test_a_full_disk_is_named_before_a_byte_is_written(server: ModelServer, tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []
    limits = {"min_free_bytes": shutil.disk_usage(tmp_path).total}  # whatever other tests free meanwhile
    async with downloader_at(
        tmp_path / "models", access_to(server), make_room=lambda *given: asked.append(given), **limits
    ) as downloader:
        with pytest.raises(DiskFull, match=r"no room on the disk; \d+ bytes are to be fetched"):
            await downloader.fetch(entry_of(f"{server.url}/b/small.safetensors"))
    assert asked[0][0] == len(LARGE) and asked[0][1] > 0
    assert not list((tmp_path / "models" / ".downloads").rglob("*.part"))


async def test_a_models_folder_that_cannot_be_written_is_named(server: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(DiskUnwritable, match="the models folder cannot be written: "):
        await fetched(tmp_path, server, HUB)


async def test_ten_that_wait_get_one_download(server: ModelServer, tmp_path: Path) -> None:
    async with downloader_at(tmp_path / "models", access_to(server)) as downloader:
        paths = await asyncio.gather(*(downloader.fetch(entry_of(HUB)) for _ in range(10)))
    assert len(set(paths)) == 1 and server.num_answers == 1


async def test_one_that_leaves_does_not_end_the_download_of_others(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    async with downloader_at(tmp_path / "models", access_to(server)) as downloader:
        entry = entry_of(f"{server.url}/b/small.safetensors")
        first, second = (asyncio.create_task(downloader.fetch(entry)) for _ in range(2))
        await asyncio.to_thread(server.was_asked.wait, 60)
        first.cancel()
        await asyncio.wait([first])
        server.hold.set()
        assert (await second).read_bytes() == LARGE


async def test_what_a_job_waits_for_comes_before_the_rest(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    names = ["a", "b", "c", "d"]
    server.files |= {f"/{name}.safetensors": SMALL for name in names}
    async with downloader_at(tmp_path / "models", access_to(server), num_at_once=1) as downloader:
        entries = [entry_of(f"{server.url}/{name}.safetensors", name=f"{name}.safetensors") for name in names]
        tasks = [asyncio.create_task(downloader.fetch(entries[0]))]
        await asyncio.to_thread(server.was_asked.wait, 60)
        waits = [(entries[1], (9,)), (entries[2], (5,)), (entries[3], (7,)), (entries[1], (1,))]
        tasks += [asyncio.create_task(downloader.fetch(entry, priority=priority)) for entry, priority in waits]
        await asyncio.sleep(0.05)
        server.hold.set()
        await asyncio.gather(*tasks)
    assert [path[1] for path, _ in server.asked] == ["a", "b", "c", "d"]


async def test_progress_is_reported_to_every_waiter(server: ModelServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    async with downloader_at(tmp_path / "models", access_to(server)) as downloader:
        await downloader.fetch(
            entry_of(f"{server.url}/b/small.safetensors"),
            on_progress=lambda progress: seen.append((progress.done_bytes, progress.total_bytes)),
        )
    assert seen[0] == (0, len(LARGE)) and seen[-1] == (len(LARGE), len(LARGE)) and len(seen) == 5


async def test_a_second_process_waits_and_finds_the_file(server: ModelServer, tmp_path: Path) -> None:
    server.hold = threading.Event()
    entry = entry_of(f"{server.url}/b/small.safetensors")
    access = access_to(server)
    async with downloader_at(tmp_path / "models", access) as one, downloader_at(tmp_path / "models", access) as two:
        tasks = [asyncio.create_task(one.fetch(entry)), asyncio.create_task(two.fetch(entry))]
        await asyncio.to_thread(server.was_asked.wait, 60)
        await asyncio.sleep(0.05)
        server.hold.set()
        await asyncio.gather(*tasks)
    assert server.num_answers == 1


def test_runs_are_whole_blocks() -> None:
    assert RUN_BYTES % BLOCK_BYTES == 0 and TransferLimits().num_connections > 1
