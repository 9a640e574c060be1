"""Work on large requests in a thread, so that the event loop stays responsive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

LARGE_GRAPH_NODES: Final = 1000  # a thread costs less than examining so many nodes

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


async def off_loop(
    is_large: bool, function: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs
) -> Answer:
    """Call a function, in a thread when `is_large`; a thread for little work would cost more than the work."""
    if not is_large:
        return function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)
