"""Size of a result in RAM, as far as can be seen without knowing its types.

Tensors on the CPU count by their storage, once each, arrays and bytes by their length; objects that have
`get_ram_usage()` are asked (models, or whatever a custom node passes on). Everything else counts as nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def size_bytes(value: object) -> int:
    """Return the bytes that would be freed if nothing else referred to what `value` holds."""
    total = 0
    seen: set[int] = set()
    storages: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if item is None or isinstance(item, (bool, int, float, str)) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif hasattr(item, "untyped_storage"):
            total += _tensor_bytes(item, storages)
        elif isinstance(item, (bytes, bytearray, memoryview)):
            total += len(item)
        else:
            total += _reported_bytes(item)
    return total


def _tensor_bytes(tensor: Any, storages: set[int]) -> int:
    if not tensor.is_cpu or tensor.is_sparse:
        return 0
    storage = tensor.untyped_storage()
    if storage.data_ptr() in storages:
        return 0
    storages.add(storage.data_ptr())
    return int(storage.nbytes())


def _reported_bytes(item: object) -> int:
    report = getattr(item, "get_ram_usage", None)
    if not callable(report):
        size = getattr(item, "nbytes", 0)
        return size if isinstance(size, int) else 0
    try:
        return max(0, int(report()))
    except Exception as error:  # noqa: BLE001 - the value's own report
        log.warning("%s cannot tell its size: %s", type(item).__name__, error)
        return 0
