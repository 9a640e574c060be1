"""Dedicated thread for one blocking call that may hang, outside the thread pool; the exit does not wait for it.

`asyncio.to_thread` has six places on a machine with two cores. Six names whose name server no longer replies would
block everything else that the front does on threads, and then the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Given = ParamSpec("Given")


async def run_in_dedicated_thread(
    function: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs
) -> Result:
    """Run `function` in a thread of its own and return or raise its outcome.

    When cancelled, the call goes on and its outcome is dropped.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Result] = loop.create_future()

    def resolve(result: Result | None, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)  # type: ignore[arg-type]  # without an error there is a result

    def call() -> None:
        result, raised = None, None
        try:
            result = function(*arguments, **named)
        except BaseException as error:  # noqa: BLE001 - the thread: the awaiting task gets it
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(resolve, result, raised)

    threading.Thread(target=call, name=function.__name__, daemon=True).start()
    return await ended
