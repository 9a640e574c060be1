"""Memory of large blocks goes back to the system when they are freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path
from darkroom.host.heap import map_large_blocks

if sys.argv[1] == "mapped":
    map_large_blocks()

def held_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 10**6

before = held_mb()
large = bytearray(b"x" * 30_000_000)
del large  # from now on the library would put blocks of this size into its heap
blocks = [(bytearray(b"x" * 1_000_000), bytearray(b"x" * 5000)) for _ in range(50)]
small = [pair[1] for pair in blocks]
del blocks
print(held_mb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's option")
def test_freed_large_blocks_between_small_ones_are_not_kept() -> None:
    def growth_mb(way: str) -> int:
        done = subprocess.run([sys.executable, "-c", SCRIPT, way], check=True, capture_output=True, text=True)
        return int(done.stdout)

    assert growth_mb("mapped") < 10 < growth_mb("plain")
