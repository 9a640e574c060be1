"""Strategy that an error comes from, as its traceback tells."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import FrameType, FunctionType, MethodType

from torch import nn

from darkroom.engine.tuning.strategy import Strategy

OWN_CALLS = ("unfit", "options", "apply")
CALL_OF_MODULE = nn.Module._call_impl.__code__


def asked_strategy(error: BaseException, strategies: Iterable[Strategy]) -> str | None:
    """Return the name of the strategy that was being asked or applied when the error came, or None."""
    frames = _frames(error)
    asked = (strategy.name for strategy in strategies if any(_is_asked(strategy, frame) for frame in frames))
    return next(asked, None)


def strategy_of_code(error: BaseException, strategies: Iterable[Strategy]) -> str | None:
    """Return the name of the one strategy whose code raised the error, or None where that is not known.

    It is the one whose function a module has in place of its own, unless the error came out of another module that this
    function called, such as a plain layer. Costs nothing until an error is there.
    """
    innermost: list[FrameType] = []
    for frame in reversed(_frames(error)):
        if frame.f_code is CALL_OF_MODULE:
            break
        innermost.append(frame)
    found = {strategy.name for strategy in strategies if any(_is_in_file_of(strategy, frame) for frame in innermost)}
    return found.pop() if len(found) == 1 else None


def _frames(error: BaseException) -> Sequence[FrameType]:
    """Return the frames that an error passed through, the outermost first."""
    frames: list[FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _is_asked(strategy: Strategy, frame: FrameType) -> bool:
    codes = (_code(getattr(type(strategy), name)) for name in OWN_CALLS)
    return frame.f_locals.get("self") is strategy and any(frame.f_code is code for code in codes)


def _code(function: object) -> object:
    function = function.__func__ if isinstance(function, MethodType) else function
    return function.__code__ if isinstance(function, FunctionType) else None


def _is_in_file_of(strategy: Strategy, frame: FrameType) -> bool:
    module = sys.modules.get(type(strategy).__module__)
    return module is not None and frame.f_code.co_filename == module.__file__
