"""Cores that the groups around a process allow it, as both versions of the kernel's interface write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.host.cores import cpu_quota, physical_cores, processor_flags, processor_model, usable_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 0.2),
        (
            {
                "proc/self/cgroup": "0::/pod/worker\n",
                "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/pod/worker/cpu.max": "800000 100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "600000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            6,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/stat": ""}, None),
    ],
)
def test_the_least_share_of_any_group_counts(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(write(tmp_path, files)) == quota


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for processor, core in enumerate((0, 0, 1, 1)):
        folder = f"sys/devices/system/cpu/cpu{processor}/topology"
        write(tmp_path, {f"{folder}/physical_package_id": "0\n", f"{folder}/core_id": f"{core}\n"})
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({0, 1, 7}, tmp_path) == 3  # of one of them nothing is known


@pytest.mark.parametrize("quota", ["20000", "150000"])
def test_less_than_two_processors_worth_of_time_is_one_core(tmp_path: Path, quota: str) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    assert usable_cores(write(tmp_path, files)) == 1


def test_a_processor_has_its_makers_name_where_the_kernel_tells_it(tmp_path: Path) -> None:
    assert (
        processor_model(write(tmp_path / "a", {"proc/cpuinfo": "processor\t: 0\nmodel name\t: EPYC: 9\n"})) == "EPYC: 9"
    )
    assert processor_model(write(tmp_path / "b", {"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\n"})) is None
    assert processor_model(tmp_path / "none") is None


def test_a_processors_instruction_sets_are_those_of_the_first(tmp_path: Path) -> None:
    named = write(tmp_path / "a", {"proc/cpuinfo": "flags\t\t: fma avx2\nprocessor\t: 1\nflags\t\t: fma\n"})
    assert processor_flags(named) == {"fma", "avx2"} and processor_flags(tmp_path / "none") == frozenset()
