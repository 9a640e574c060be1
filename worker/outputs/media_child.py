"""The warm process of `worker/media/process/processes.py`: `python -m darkroom.worker.outputs.media_child`.

It reads jobs from standard input, one JSON a line, and forks a process for each, which confines itself before it opens
a file. It has loaded the libraries that they need and reads no file and no reply itself, so it stays clean. It ends
after a while without a job, and when the front's end of the pipe closes, also during a job.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from darkroom.worker.media.kinds import BrokenFile, check_file
from darkroom.worker.media.process.confinement import JobLimits, confine_job, lower_priority
from darkroom.worker.outputs.audio_tags import remove_tags
from darkroom.worker.outputs.convert import ConversionFailed, convert, make_thumbnail, reason
from darkroom.worker.outputs.embedded import rewrite
from darkroom.worker.outputs.strip_metadata import strip_metadata
from darkroom.worker.outputs.svg_metadata import remove_metadata

IDLE_SECONDS = 60.0
MAX_REPLY_BYTES = 1 << 18
PRELOADED = (
    *(f"PIL.{name}ImagePlugin" for name in ("Png", "Jpeg", "WebP", "Avif", "Gif", "Tiff", "Bmp", "Mpo")),
    *("PIL.ImageOps", "PIL.ImageSequence"),
)

Arguments = dict[str, Any]


def _check_file(asked: Arguments) -> dict[str, object]:
    kind = check_file(Path(asked["path"]), asked["media"], asked["max_pixels"])
    return {"extension": kind.extension, "media_type": kind.media_type}


def _convert(asked: Arguments) -> dict[str, object]:
    convert(Path(asked["source"]), Path(asked["target"]), asked["form"], asked["quality"], asked["texts"])
    return {}


def _make_thumbnail(asked: Arguments) -> dict[str, object]:
    made = make_thumbnail(Path(asked["source"]), Path(asked["target"]), asked["longer_side_px"])
    return {"width_px": made.width_px, "height_px": made.height_px}


def _rewrite(asked: Arguments) -> dict[str, object]:
    source, target = Path(asked["source"]), Path(asked["target"])
    return {"is_changed": rewrite(source, target, asked["media_type"], asked["level"], asked["texts"])}


def _remove_tags(asked: Arguments) -> dict[str, object]:
    return {"is_changed": remove_tags(Path(asked["source"]), Path(asked["target"]), asked["media_type"])}


def _strip_metadata(asked: Arguments) -> dict[str, object]:
    return {"is_changed": strip_metadata(Path(asked["source"]), Path(asked["target"]))}


def _remove_svg_metadata(asked: Arguments) -> dict[str, object]:
    return {"is_changed": remove_metadata(Path(asked["source"]), Path(asked["target"]))}


OPERATIONS: Mapping[str, Callable[[Arguments], dict[str, object]]] = {
    "check_file": _check_file,
    "convert": _convert,
    "make_thumbnail": _make_thumbnail,
    "rewrite": _rewrite,
    "remove_tags": _remove_tags,
    "strip_metadata": _strip_metadata,
    "remove_svg_metadata": _remove_svg_metadata,
}


def main() -> int:
    """Serve jobs until the front's end closes or none comes for a while; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the front closes the pipe when it is done
    lower_priority()
    requests = io.FileIO(0, closefd=False)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.disable()
    gc.freeze()  # memory that forked processes share stays shared
    while True:
        readable, _, _ = select.select([requests], [], [], IDLE_SECONDS)
        line = _line(requests) if readable else b""
        if not line:
            return 0
        _write(1, _run(json.loads(line)) + b"\n")


def _line(requests: io.FileIO) -> bytes:
    """Read one job; the front sends the next one only after the reply."""
    pieces = []
    while piece := requests.read(1 << 20):
        pieces.append(piece)
        if piece.endswith(b"\n"):
            return b"".join(pieces)
    return b""


def _run(request: Arguments) -> bytes:
    """Fork a process for a job and return its reply, or how it ended, as JSON."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        _work(request, write_end)
    os.close(write_end)
    received = bytearray()
    while True:
        readable, _, _ = select.select([read_end, 0], [], [])
        piece = os.read(read_end, 1 << 16) if read_end in readable else None
        if piece is None or len(received) > MAX_REPLY_BYTES:  # the front has gone, or the job writes without end
            os.kill(pid, signal.SIGKILL)
        received += piece or b""
        if not piece:
            break
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return json.dumps({"signal": os.WTERMSIG(status)}).encode()
    if received.count(b"\n"):
        return json.dumps({"crashed": "a reply of more than one line"}).encode()
    return bytes(received) or json.dumps({"crashed": f"exit code {os.WEXITSTATUS(status)}"}).encode()


def _work(request: Arguments, write_end: int) -> None:
    """Do a job in the process forked for it, write the reply and end. Does not return."""
    reply: dict[str, object] = {"crashed": "no reply"}
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)  # libraries write what files make them write
        limits = JobLimits(request["max_bytes"], request["cpu_seconds"])
        confine_job(limits, [Path(path) for path in request["reads"]], [Path(path) for path in request["writes"]])
        reply = _reply(request)
    except BaseException:  # noqa: BLE001 - the job's process: the front logs it
        reply = {"crashed": traceback.format_exc()[-2000:]}
    finally:
        try:
            _write(write_end, json.dumps(reply).encode())
        finally:
            os._exit(0)


def _reply(request: Arguments) -> dict[str, object]:
    try:
        return {"result": OPERATIONS[request["operation"]](request["arguments"])}
    except MemoryError:
        return {"is_out_of_memory": True}
    except (ConversionFailed, BrokenFile) as refused:
        return {"refused": str(refused)}
    except (ValueError, OSError, SyntaxError) as error:  # of codecs and parsers
        return {"refused": reason(error)}


def _write(number: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(number, view) :]


if __name__ == "__main__":
    sys.exit(main())
