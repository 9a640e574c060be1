"""Memory that is left, read from files as the kernel writes them: control groups of versions 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.host.memory import available_bytes, total_bytes
from darkroom.worker.observe.memory import MachineMemory

GIB = 2**30


def write(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def machine(root: Path, cgroup: str) -> None:
    memory = f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB"
    write(root, {"proc/meminfo": memory, "proc/self/cgroup": cgroup})


VERSION_2 = ("0::/box", "sys/fs/cgroup/box/memory", ".max", ".current", "")
VERSION_1 = ("4:memory:/box\n0::/", "sys/fs/cgroup/memory/box/memory", ".limit_in_bytes", ".usage_in_bytes", "total_")


@pytest.mark.parametrize(("cgroup", "group", "limit", "usage", "prefix"), [VERSION_2, VERSION_1])
def test_file_cache_that_can_be_reclaimed_is_free_also_when_it_was_used_again(
    tmp_path: Path, cgroup: str, group: str, limit: str, usage: str, prefix: str
) -> None:
    """A group full of a checkpoint that was read twice: the front refuses nothing."""
    machine(tmp_path, cgroup)
    stat = f"anon {GIB}\nactive_file 1\n{prefix}inactive_file {GIB}\n{prefix}active_file {5 * GIB}"
    write(tmp_path, {f"{group}{limit}": 8 * GIB, f"{group}{usage}": 8 * GIB, f"{group}.stat": stat})
    assert available_bytes(tmp_path) == 6 * GIB
    assert MachineMemory(tmp_path).available_bytes() == 6 * GIB
    assert total_bytes(tmp_path) == 8 * GIB


@pytest.mark.parametrize(("cgroup", "group", "limit", "usage", "prefix"), [VERSION_2, VERSION_1])
def test_a_full_group_without_file_cache_has_nothing_left(
    tmp_path: Path, cgroup: str, group: str, limit: str, usage: str, prefix: str
) -> None:
    machine(tmp_path, cgroup)
    write(tmp_path, {f"{group}{limit}": GIB, f"{group}{usage}": 2 * GIB, f"{group}.stat": f"anon {2 * GIB}"})
    assert available_bytes(tmp_path) == 0


def test_a_figure_that_is_none_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemAvailable: many kB", "proc/self/cgroup": "0::/"})
    write(tmp_path, {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": 5})
    assert available_bytes(tmp_path) is None and total_bytes(tmp_path) is None
