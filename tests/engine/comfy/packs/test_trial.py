"""Trials of packs, and what is remembered of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from darkroom.engine.comfy.packs.pack_memory import PackMemory, fingerprint
from darkroom.engine.comfy.packs.trial import try_pack, wait_or_end
from darkroom.host.processor import process_seconds
from tests.engine.comfy.loading import write_pack


def test_an_import_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, "slow", "import time\ntime.sleep(600)")
    assert try_pack(pack, tmp_path, seconds=0.5).error == "its import takes longer than 0.5 s"


def test_an_import_that_waits_ends_although_it_computes_nothing_and_with_what_it_started(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    pack = write_pack(tmp_path, "waits", f"""
        import pathlib, subprocess, time
        pathlib.Path({str(noted)!r}).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
    """)  # fmt: skip
    command = [sys.executable, "-S", str(pack / "__init__.py")]
    child = subprocess.Popen(command, start_new_session=True)
    assert wait_or_end(child, 0.5) == -signal.SIGKILL
    assert process_seconds(int(noted.read_text())) is None or _is_ended(int(noted.read_text()))


def test_an_import_that_computes_may_take_longer_by_the_clock(tmp_path: Path) -> None:
    source = "import time\nfor _ in range(12):\n    time.sleep(0.1)\n    sum(range(500_000))\n"
    pack = write_pack(tmp_path, "shares", source)
    child = subprocess.Popen([sys.executable, "-S", str(pack / "__init__.py")], start_new_session=True)
    assert wait_or_end(child, 1.0) == 0


def _is_ended(pid: int) -> bool:
    return " Z " in Path(f"/proc/{pid}/stat").read_text()  # killed, and nobody has asked for its exit code yet


def test_a_packs_fingerprint_changes_with_its_code_only(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, "one", "x = 1")
    before = fingerprint(pack)
    (pack / "log.txt").write_text("written at run time")
    assert fingerprint(pack) == before
    (pack / "more.py").write_text("y = 1")
    assert fingerprint(pack) != before


def test_good_content_is_remembered_across_starts(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    memory = PackMemory(tmp_path / "state" / "custom_nodes.json")
    assert not memory.is_good(pack, "a")
    memory.begin(pack, "a")
    memory.end(pack, "a", is_good=True)
    again = PackMemory(tmp_path / "state" / "custom_nodes.json")
    assert again.is_good(pack, "a")
    assert not again.is_good(pack, "b")


def test_a_pack_that_an_engine_died_of_is_tried_again_once_and_then_left_out(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    path = tmp_path / "custom_nodes.json"
    PackMemory(path).begin(pack, "a")  # and the engine dies
    second = PackMemory(path)
    assert not second.is_good(pack, "a")
    assert not second.killed(pack, "a")
    second.begin(pack, "a")  # and dies again
    third = PackMemory(path)
    assert third.killed(pack, "a")
    assert not third.killed(pack, "changed")


def test_an_unreadable_or_unwritable_memory_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "custom_nodes.json"
    path.write_text("{not json")
    memory = PackMemory(path)
    assert not memory.is_good(tmp_path, "a")
    (tmp_path / "file").write_text("")
    PackMemory(tmp_path / "file" / "below.json").end(tmp_path, "a", is_good=True)
