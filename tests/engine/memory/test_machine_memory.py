"""Memory that is left, read from files as the kernel writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.machine_memory import available_bytes, total_bytes
from darkroom.host.heap import trim_heap

GIB = 2**30


def write(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def machine(root: Path, cgroup: str) -> None:
    memory = f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB"
    write(root, {"proc/meminfo": memory, "proc/self/cgroup": cgroup})


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    machine(tmp_path, "0::/")
    write(tmp_path, {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": 5})
    assert (available_bytes(tmp_path), total_bytes(tmp_path)) == (32 * GIB, 64 * GIB)


def test_a_limit_counts_before_the_machine_and_dropped_page_cache_is_free(tmp_path: Path) -> None:
    machine(tmp_path, "0::/box")
    group = "sys/fs/cgroup/box/memory"
    stat = f"anon {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}"  # active: a checkpoint that was read twice
    write(tmp_path, {f"{group}.max": 8 * GIB, f"{group}.current": 7 * GIB, f"{group}.stat": stat})
    assert (available_bytes(tmp_path), total_bytes(tmp_path)) == (4 * GIB, 8 * GIB)


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    machine(tmp_path, "0::/outer/inner")
    for group, limit in (("outer", 4), ("outer/inner", 16)):
        path = f"sys/fs/cgroup/{group}/memory"
        write(tmp_path, {f"{path}.max": limit * GIB, f"{path}.current": GIB})
    assert available_bytes(tmp_path) == 3 * GIB


def test_version_one_groups_are_read_too(tmp_path: Path) -> None:
    machine(tmp_path, "4:memory:/box\n1:cpu:/box\n0::/")
    group = "sys/fs/cgroup/memory/box/memory"
    write(tmp_path, {f"{group}.limit_in_bytes": 6 * GIB, f"{group}.usage_in_bytes": 2 * GIB})
    write(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712})
    assert available_bytes(tmp_path) == 4 * GIB
    write(tmp_path, {f"{group}.stat": f"active_file 0\ntotal_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}"})
    assert available_bytes(tmp_path) == 5 * GIB


def test_a_kernel_that_reports_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == total_bytes(tmp_path) == 0


def test_this_machine_has_memory() -> None:
    assert 0 < machine_memory.available_bytes() <= machine_memory.total_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_what_many_small_things_took_goes_back_to_the_system() -> None:
    things = [bytes(4000) for _ in range(20_000)]
    last = bytes(4000)  # above them in the heap, which cannot simply shrink therefore
    before = own_bytes()
    del things
    trim_heap()
    assert before - own_bytes() > 40_000_000 and len(last) == 4000


def own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
