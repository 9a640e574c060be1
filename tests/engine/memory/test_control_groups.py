"""What the groups around a process allow it, as both versions of the kernel's interface write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.memory.control_groups import allowed_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
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
def test_the_least_share_of_any_group_counts(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    assert allowed_cores(write(tmp_path, files)) == cores
