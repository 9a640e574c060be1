"""Links to outputs, fetched in parts as players do: types, ranges, sizes, whether the file has changed."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import FakeEngine, draw
from tests.worker.running_front import running_front

STARTS = {
    b"\0\0\0\x18ftypisom": "video/mp4",
    b"\x1a\x45\xdf\xa3\x8f\x42\x82\x84webm": "video/webm",
    b"fLaC": "audio/flac",
    b"ID3": "audio/mpeg",
}


async def test_a_player_gets_the_type_and_the_parts_that_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        result = (await front.sync(draw("some", 64), request_id="clip")).json()
        url = result["output"][0]["url"]
        (stored,) = (tmp_path / "state" / "jobs" / "clip").rglob("*.png")
        for start, media_type in STARTS.items():
            content = start + bytes(range(200))
            stored.write_bytes(content)
            whole = await front.http.get(url)
            assert (whole.content, whole.headers["content-type"]) == (content, media_type)
            assert whole.headers["accept-ranges"] == "bytes"
            part = await front.http.get(url, headers={"Range": "bytes=10-19"})
            assert (part.status_code, part.content, part.headers["content-type"]) == (206, content[10:20], media_type)
            assert part.headers["content-range"] == f"bytes 10-19/{len(content)}"
            end = await front.http.get(url, headers={"Range": "bytes=-7", "If-Range": whole.headers["etag"]})
            assert (end.status_code, end.content) == (206, content[-7:])
            other = await front.http.get(url, headers={"Range": "bytes=-7", "If-Range": '"another"'})
            assert (other.status_code, other.content) == (200, content)
            behind = await front.http.get(url, headers={"Range": f"bytes={len(content)}-"})
            assert behind.status_code == 416
            head = await front.http.head(url)
            assert (head.headers["content-length"], head.content) == (str(len(content)), b"")
