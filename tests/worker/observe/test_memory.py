"""The kernel's files, written by hand: control groups of version 1 and 2, with limits and without."""

from __future__ import annotations

from pathlib import Path

from darkroom.worker.observe.memory import MachineMemory

KIB = 1024


def write(root: Path, files: dict[str, str]) -> MachineMemory:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return MachineMemory(root)


MACHINE = {"proc/meminfo": "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  600 kB\n"}


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    memory = write(tmp_path, MACHINE)
    assert memory.total_bytes() == 1000 * KIB and memory.available_bytes() == 600 * KIB


def test_version_2_counts_the_innermost_and_the_outer_groups_and_page_cache_as_free(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/outer/inner"
    memory = write(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "0::/outer/inner\n",
            f"{group}/memory.max": "max\n",
            "sys/fs/cgroup/outer/memory.max": str(500 * KIB),
            "sys/fs/cgroup/outer/memory.current": str(400 * KIB),
            "sys/fs/cgroup/outer/memory.stat": f"anon 1\ninactive_file {150 * KIB}\n",
        },
    )
    assert memory.total_bytes() == 500 * KIB and memory.available_bytes() == 250 * KIB


def test_version_1_has_other_names_and_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/abc"
    memory = write(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
            f"{group}/memory.limit_in_bytes": str(300 * KIB),
            f"{group}/memory.usage_in_bytes": str(290 * KIB),
            f"{group}/memory.stat": f"inactive_file 7\ntotal_inactive_file {40 * KIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert memory.total_bytes() == 300 * KIB and memory.available_bytes() == 50 * KIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "10", "sys/fs/cgroup/memory.current": "20"}
    assert write(tmp_path, {**MACHINE, **files}).available_bytes() == 0


def test_a_kernel_that_reports_nothing_is_no_error(tmp_path: Path) -> None:
    memory = MachineMemory(tmp_path)
    assert memory.total_bytes() is None and memory.available_bytes() is None
    assert memory.process_bytes(1) is None and memory.num_oom_kills() == 0


def test_a_process_has_what_no_file_could_give_back(tmp_path: Path) -> None:
    memory = write(
        tmp_path, {"proc/7/status": "Name: engine\nVmRSS: 90 kB\nRssAnon: 40 kB\nRssFile: 45 kB\nRssShmem: 5 kB\n"}
    )
    assert memory.process_bytes(7) == 45 * KIB


def test_kills_for_memory_are_counted(tmp_path: Path) -> None:
    memory = write(
        tmp_path,
        {
            "proc/vmstat": "nr_free_pages 1\noom_kill 3\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.events": "oom 2\noom_kill 2\n",
        },
    )
    assert memory.num_oom_kills() == 5
