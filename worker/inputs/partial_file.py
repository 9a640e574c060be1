"""Writing of a download to disk: in blocks off the event loop, with its digest and a limit on its size."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from darkroom.worker.inputs.refusals import InputTooLarge

BLOCK_BYTES = 4 * 1024 * 1024  # hashed and written at a time


async def write_partial(
    chunks: AsyncIterator[bytes],
    partial: Path,
    *,
    max_bytes: int,
    shown: str,
    check_room: Callable[[], None],
) -> tuple[str, int]:
    """Write chunks to a new file; return its SHA-256 and size.

    `check_room` is called after every block, as a server need not announce the length. Raises InputTooLarge, and the
    errors of `check_room`.
    """
    digest, size_bytes, held = hashlib.sha256(), 0, bytearray()
    with await asyncio.to_thread(partial.open, "xb") as file:

        def write(block: bytes | bytearray) -> None:
            digest.update(block)
            file.write(block)
            check_room()

        async for chunk in chunks:
            size_bytes += len(chunk)
            if size_bytes > max_bytes:
                raise too_large(shown, max_bytes)
            held += chunk
            if len(held) >= BLOCK_BYTES:
                block, held = held, bytearray()
                await asyncio.to_thread(write, block)
        await asyncio.to_thread(write, held)
    return digest.hexdigest(), size_bytes


def too_large(shown: str, max_bytes: int) -> InputTooLarge:
    """Return the error for a file over the limit. `shown` is its address without secrets."""
    return InputTooLarge(f"{shown} is over {max_bytes} bytes", limit_bytes=max_bytes)
