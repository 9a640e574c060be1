"""Media are decoded and encoded in processes with limits, which have the job's files and nothing else of the front."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from darkroom.worker.media.process.landlock import landlock_version
from darkroom.worker.media.process.processes import MediaJobFailed, MediaJobRefused, MediaProcesses
from darkroom.worker.outputs.confined_coding import ConfinedCoding
from darkroom.worker.outputs.convert import ConversionFailed

MIB = 1 << 20
LONGEST_START_SECONDS = 120.0  # of a process and its first job, on a machine that has other work
PROGRAM = """
import json, sys
from pathlib import Path
from darkroom.worker.inputs.file_checks import check_input
from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.outputs.confined_coding import ConfinedCoding
from darkroom.worker.outputs.delivered import Processing, delivered_names, process_output
from darkroom.worker.outputs.options import OutputOptions
from darkroom.worker.settings.outputs import InputLimits

folder = Path(sys.argv[1])
coding = ConfinedCoding(MediaProcesses())
check_input(folder / "a.png", "image", InputLimits(), coding.processes)
types = {"a.png": "image/png", "a.jpg": "image/jpeg", "a.flac": "audio/flac", "a.latent": "application/octet-stream"}
records = [{"filename": name, "path": name, "node_id": "1", "media_type": types[name]} for name in types]
for options in (OutputOptions(), OutputOptions(format="webp", thumbnail_size=32)):
    records = records if options.thumbnail_size is None else records[:2]  # the sound has no samples to show
    for record, name in zip(records, delivered_names(records, options)):
        made = process_output(record, name, folder, Processing(options, "none", {}, coding))
        problems = [key for key in made if key.endswith("_error")]
        assert not problems, made
coding.processes.close()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} & {"PIL", "av", "mutagen", "numpy"})))
"""
KILLED_FRONT = """
import sys
from pathlib import Path
from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.outputs.confined_coding import ConfinedCoding
folder = Path(sys.argv[1])
ConfinedCoding(MediaProcesses()).convert(folder / "large.png", folder / "made" / "a.avif", "avif", 100, {})
"""


@pytest.fixture
def others() -> set[int]:
    """The warm processes of other tests."""
    return warm_processes(os.getpid())


@pytest.fixture
def processes() -> Iterator[MediaProcesses]:
    made = MediaProcesses()
    yield made
    made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image, and one that takes seconds and more than 500 MiB to convert."""
    folder = tmp_path_factory.mktemp("images")
    Image.new("RGB", (32, 16), "red").save(folder / "small.png")
    Image.new("RGB", (8192, 8192), "red").save(folder / "large.png", compress_level=1)
    return folder


def convert(processes: MediaProcesses, folder: Path, name: str, target: Path) -> None:
    ConfinedCoding(processes).convert(folder / name, target / "made" / "a.avif", "avif", None, {})


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def warm_processes(front: int) -> set[int]:
    found = set()
    for pid in children_of(front):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if b"darkroom.worker.outputs.media_child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def job_of(front: int, others: set[int]) -> tuple[int, int]:
    """Wait for a warm process of the front, none of `others`, that works; return its id and its job's."""
    until = time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < until:
        for warm in warm_processes(front) - others:
            for job in children_of(warm):
                return warm, job
        time.sleep(0.02)
    raise AssertionError("no job began")


def is_gone(pid: int) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until and Path(f"/proc/{pid}").exists():
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def has_ended(pid: int) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def test_the_front_loads_no_library_of_codecs(tmp_path: Path) -> None:
    image = Image.new("RGB", (64, 48), "red")
    exif = Image.Exif()
    exif[0x0110] = "prompt:{}"
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "a.jpg", exif=exif)
    header = json.dumps({"__metadata__": {"prompt": "{}"}}).encode()
    (tmp_path / "a.latent").write_bytes(len(header).to_bytes(8, "little") + header)
    stream_info = (
        (4096).to_bytes(2, "big") * 2 + bytes(6) + (44100 << 44 | 1 << 41 | 15 << 36).to_bytes(8, "big") + bytes(16)
    )
    (tmp_path / "a.flac").write_bytes(b"fLaC" + b"\x80" + len(stream_info).to_bytes(3, "big") + stream_info)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == []


def test_a_job_that_needs_too_much_memory_fails_alone(folder: Path, tmp_path: Path) -> None:
    processes = MediaProcesses(max_bytes=200 * MIB)
    try:
        with pytest.raises(ConversionFailed, match="cannot be made avif: it needs more memory than 200 MiB"):
            convert(processes, folder, "large.png", tmp_path)
        assert not list((tmp_path / "made").iterdir())
        convert(processes, folder, "small.png", tmp_path)
    finally:
        processes.close()


def test_a_job_that_takes_too_long_is_ended(
    folder: Path, tmp_path: Path, processes: MediaProcesses, others: set[int]
) -> None:
    convert(processes, folder, "small.png", tmp_path)
    processes.max_seconds = 0.4
    [warm] = warm_processes(os.getpid()) - others
    with pytest.raises(ConversionFailed, match=r"cannot be made avif: it takes more than 0.4 s"):
        convert(processes, folder, "large.png", tmp_path)
    assert has_ended(warm)


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGSEGV, r"crashed \(SIGSEGV\)"), (signal.SIGKILL, "short of memory")]
)
def test_a_job_that_crashes_fails_alone(
    folder: Path, tmp_path: Path, processes: MediaProcesses, others: set[int], number: int, said: str
) -> None:
    def crash() -> None:
        os.kill(job_of(os.getpid(), others)[1], number)

    killer = threading.Thread(target=crash)
    killer.start()
    with pytest.raises(ConversionFailed, match=said):
        convert(processes, folder, "large.png", tmp_path)
    killer.join()
    convert(processes, folder, "small.png", tmp_path)
    assert (tmp_path / "made" / "a.avif").stat().st_size


def test_a_job_has_its_own_files_alone_and_no_secret(
    folder: Path, tmp_path: Path, processes: MediaProcesses, others: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setenv("HF_TOKEN", "planted")
    convert(processes, folder, "small.png", tmp_path)
    [warm] = warm_processes(os.getpid()) - others
    assert b"planted" not in Path(f"/proc/{warm}/environ").read_bytes()
    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    asked = {"source": "", "target": str(tmp_path / "made" / "b"), "longer_side_px": 16}
    for path in (folder / "small.png", Path(f"/proc/{os.getpid()}/environ")):
        with pytest.raises(MediaJobRefused, match="PermissionError"):
            processes.run("make_thumbnail", asked | {"source": str(path)}, writes=[tmp_path / "made"])
    with pytest.raises(MediaJobRefused, match="PermissionError"):
        elsewhere = asked | {"source": str(folder / "small.png"), "target": str(tmp_path / "b")}
        processes.run("make_thumbnail", elsewhere, reads=[folder / "small.png"], writes=[tmp_path / "made"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of others: an engine's user")
def test_a_file_of_the_engines_user_is_read(folder: Path, tmp_path: Path, processes: MediaProcesses) -> None:
    source = tmp_path / "of_another.png"
    source.write_bytes((folder / "small.png").read_bytes())
    source.chmod(0o600)
    os.chown(source, 65_534, 65_534)
    convert(processes, tmp_path, source.name, tmp_path)


def test_a_warm_process_that_has_ended_is_replaced(
    folder: Path, tmp_path: Path, processes: MediaProcesses, others: set[int]
) -> None:
    convert(processes, folder, "small.png", tmp_path)
    [warm] = warm_processes(os.getpid()) - others
    os.kill(warm, signal.SIGKILL)
    assert is_gone(warm)  # no zombie is left
    convert(processes, folder, "small.png", tmp_path)
    assert warm_processes(os.getpid()) - others - {warm}


def test_closing_ends_a_job_that_runs(
    folder: Path, tmp_path: Path, processes: MediaProcesses, others: set[int]
) -> None:
    def close() -> None:
        job_of(os.getpid(), others)
        processes.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(ConversionFailed, match="the worker is stopping"):
        convert(processes, folder, "large.png", tmp_path)
    closer.join()
    assert not warm_processes(os.getpid()) - others


def test_an_unknown_operation_is_the_workers_own_fault(processes: MediaProcesses) -> None:
    with pytest.raises(MediaJobFailed, match="its log has the reason"):
        processes.run("none", {})


def test_processes_end_when_they_are_closed_and_with_the_front(folder: Path, tmp_path: Path, others: set[int]) -> None:
    processes = MediaProcesses()
    convert(processes, folder, "small.png", tmp_path)
    [warm] = warm_processes(os.getpid()) - others
    processes.close()
    assert has_ended(warm)
    with pytest.raises(ConversionFailed, match="the worker is stopping"):
        convert(processes, folder, "small.png", tmp_path)
    (tmp_path / "large.png").hardlink_to(folder / "large.png")
    front = subprocess.Popen([sys.executable, "-c", KILLED_FRONT, str(tmp_path)])
    warm, job = job_of(front.pid, set())
    front.kill()
    front.wait()
    assert has_ended(job) and has_ended(warm)
