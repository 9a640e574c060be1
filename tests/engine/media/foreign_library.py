"""Functions that a test calls in a process of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping

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


def greedy(given: Arrays) -> dict[str, NDArray[np.generic]]:
    return {"ones": np.ones(1 << 31, np.int8)}


def failing(given: Arrays) -> dict[str, NDArray[np.generic]]:
    raise RuntimeError("the driver is lost")
