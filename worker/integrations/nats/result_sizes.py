"""Sizes of results in a NATS bucket, without the results: the server sends subjects and headers alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy

LISTED_FOR_EACH: Final = 8
"""Results of the bucket for each that is asked for, up to which all of them are listed in one reply."""

MAX_LISTED: Final = 50_000  # results in one reply, which the server divides into pages above 100,000
ASKED_AT_ONCE: Final = 20
REPLY_SECONDS: Final = 5.0
SIZE_HEADER: Final = "Nats-Msg-Size"

Answer = TypeVar("Answer")


class ResultSizes:
    """Reader of the sizes of results in one bucket."""

    def __init__(self, stream: JetStreamContext, bucket: str) -> None:
        self._stream = stream
        self._name = f"KV_{bucket}"
        self._subjects = f"$KV.{bucket}."

    async def of(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the bytes of those of the results that are there, by their keys."""
        if not keys:
            return {}
        there = await self._there(keys)
        sizes = await _all(self._size, there)
        return {key: size for key, size in zip(there, sizes, strict=True) if size is not None}

    async def _there(self, keys: Sequence[str]) -> list[str]:
        """Return those of the keys that have a result: from one list of all where that is short, else one by one."""
        num_results = (await self._stream.stream_info(self._name)).state.messages
        if not num_results:
            return []
        if num_results <= min(MAX_LISTED, LISTED_FOR_EACH * len(keys)):
            listed = await self._listed(">")
            return [key for key in keys if self._subjects + key in listed]
        found = await _all(self._listed, keys)
        return [key for key, listed in zip(keys, found, strict=True) if listed]

    async def _listed(self, key: str) -> Mapping[str, int]:
        info = await self._stream.stream_info(self._name, subjects_filter=self._subjects + key)
        return info.state.subjects or {}

    async def _size(self, key: str) -> int | None:
        """Return the size of a result by its header; None for one that has been removed at this moment."""
        reader = await self._stream.subscribe(
            self._subjects + key, stream=self._name, ordered_consumer=True, headers_only=True,
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
        )  # fmt: skip
        try:
            with contextlib.suppress(TimeoutError):
                message = await reader.next_msg(REPLY_SECONDS)
                return int((message.headers or {}).get(SIZE_HEADER, 0))
            return None
        finally:
            await reader.unsubscribe()


async def _all(ask: Callable[[str], Awaitable[Answer]], keys: Sequence[str]) -> list[Answer]:
    """Return the answer for each key; some are asked for at a time."""
    found: list[Answer] = []
    for first in range(0, len(keys), ASKED_AT_ONCE):
        found += await asyncio.gather(*(ask(key) for key in keys[first : first + ASKED_AT_ONCE]))
    return found
