"""Followers: the callers that wait for jobs at this gateway. One reader of the broker's news serves all of them.

So a caller that waits costs no connection and no question to the broker. What the news leave out (a reader that was cut
off, a worker of an earlier version) is found by looks at the results of all followed jobs together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.errors import DatabaseUnreachable
from darkroom.worker.json.values import JsonObject
from darkroom.worker.sources.broker import BrokerUnreachable, News, Producer
from darkroom.worker.storage.job import JobState

NEWS_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
LOOKED_AT_ONCE: Final = 500  # jobs
STORED_LOOKS: Final = 5  # looks at the broker for one at the database: an end comes to the broker first
MAX_EVENTS: Final = 200  # that a caller who reads slowly has before it
AGAIN: Final = Backoff(first_seconds=0.2, longest_seconds=2.0, jitter=0.3)

log = structlog.get_logger("gateway")


@dataclass(eq=False, slots=True)
class Follower:
    """One caller that waits for a job. `is_over` is set once the job has ended somewhere."""

    events: deque[JsonObject] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    is_over: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, event: JsonObject) -> None:
        if is_end(event):
            self.end()
        else:
            self.events.append(event)
            self._changed.set()

    def end(self) -> None:
        self.is_over = True
        self._changed.set()

    async def changed(self) -> None:
        """Wait for events or the end."""
        await self._changed.wait()
        self._changed.clear()


class Followers:
    """Owner of the followers, by the broker's id of their job.

    `on_end` is called with the id of a job that has ended and that nobody follows here. `stored_ends` returns which of
    some jobs have ended according to the database.
    """

    def __init__(
        self,
        producer: Producer,
        on_end: Callable[[str], None],
        stored_ends: Callable[[list[str]], Awaitable[set[str]]],
    ) -> None:
        self._producer = producer
        self._on_end = on_end
        self._stored_ends = stored_ends
        self._by_job: dict[str, set[Follower]] = {}

    @contextlib.contextmanager
    def following(self, name: str) -> Iterator[Follower]:
        """Count a follower of a job, which gets its events from now on."""
        follower = Follower()
        self._by_job.setdefault(name, set()).add(follower)
        try:
            yield follower
        finally:
            left = self._by_job[name]
            left.discard(follower)
            if not left:
                del self._by_job[name]

    async def read_forever(self) -> None:
        """Pass on the broker's news. After a break it goes on with what is new then."""
        position, num_failures = "", 0
        while True:
            try:
                for news in await self._producer.news(position, NEWS_SECONDS):
                    position = news.position
                    self._pass_on(news)
                num_failures = 0
            except BrokerUnreachable as error:
                position, num_failures = "", num_failures + 1
                if num_failures == 1:
                    log.warning("events are not read", reason=str(error))
                await asyncio.sleep(AGAIN.seconds(num_failures))

    async def look_forever(self) -> None:
        """Look for ends of followed jobs that were not in the news."""
        num_looks = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            num_looks += 1
            try:
                await self._look(is_stored=num_looks % STORED_LOOKS == 0)
            except (BrokerUnreachable, DatabaseUnreachable):  # until the next look
                pass
            except Exception:  # noqa: BLE001 - the loop: whoever waits needs the next look
                log.exception("results were not looked at")

    async def _look(self, *, is_stored: bool) -> None:
        names = [name for name, some in self._by_job.items() if not all(one.is_over for one in some)]
        for first in range(0, len(names), LOOKED_AT_ONCE):
            looked = names[first : first + LOOKED_AT_ONCE]
            ended = set(await self._producer.result_sizes(looked))
            if is_stored:
                ended |= await self._stored_ends(looked)
            for name in ended:
                for follower in self._by_job.get(name, ()):
                    follower.end()

    def _pass_on(self, news: News) -> None:
        followers = self._by_job.get(news.job_id)
        if followers is None and not news.job_id:
            return
        event = _event_of(news.event)
        if event is None:
            return
        for follower in followers or ():
            follower.add(event)
        if not followers and is_end(event):
            self._on_end(news.job_id)


def is_end(event: JsonObject) -> bool:
    """Return True for the event of a job that has ended."""
    return JobState(str(event["status"])).is_terminal


def _event_of(content: bytes) -> dict[str, Any] | None:
    """Return an event; None for what is none."""
    try:
        event = json.loads(content)
        is_end(event)
    except (ValueError, KeyError, TypeError):
        return None
    return dict(event)
