"""Functions that a test calls in a process of their own."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]


def doubled(given: Arrays) -> dict[str, NDArray[np.generic]]:
    return {"doubled": given["values"].astype(np.float64) * 2}


def refusing(given: Arrays) -> dict[str, NDArray[np.generic]]:
    raise ValueError(f"values: got {len(given['values'])}, expected fewer")


def endless(given: Arrays) -> dict[str, NDArray[np.generic]]:
    time.sleep(600)
    return {}


def never_yielding(given: Arrays) -> dict[str, NDArray[np.generic]]:
    """Name this process in a file, and compute without ever letting another thread of Python run."""
    path = Path(str(given["path"]))
    path.with_suffix(".part").write_text(str(os.getpid()))
    path.with_suffix(".part").rename(path)
    ctypes.PyDLL(None).sleep(600)
    return {}


def limits(given: Arrays) -> dict[str, NDArray[np.generic]]:
    kinds = {"memory": resource.RLIMIT_DATA, "processor": resource.RLIMIT_CPU, "core": resource.RLIMIT_CORE}
    return {name: np.array(resource.getrlimit(kind)) for name, kind in kinds.items()}


def greedy(given: Arrays) -> dict[str, NDArray[np.generic]]:
    return {"ones": np.ones(1 << 31, np.int8)}


def failing(given: Arrays) -> dict[str, NDArray[np.generic]]:
    raise RuntimeError("the driver is lost")
