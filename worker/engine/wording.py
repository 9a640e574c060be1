"""One way to say what is wrong with a prompt, whichever engine found it. Pure.

Our engine's check decides what is wrong, in ComfyUI's words; the front's own check, which is all there is before an
engine that is not ours, finds most of the same and says it so that a program can act on it. So a caller reads the same
either way.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.errors import Problem


def in_our_words(of_engine: Sequence[Problem], of_front: Sequence[Problem]) -> list[Problem]:
    """What the engine found, in the words of the front's check where that found it too, in the front's order.

    What the front alone finds is left out: the engine knows better.
    """
    said = [problem for problem in of_front if any(_is_same(other, problem) for other in of_engine)]
    return said + [problem for problem in of_engine if not any(_is_same(problem, other) for other in of_front)]


def _is_same(of_engine: Problem, of_front: Problem) -> bool:
    """An engine's problem may name no input, when its check of the node broke off there."""
    if of_engine.node_id != of_front.node_id:
        return False
    return of_engine.node_id is None or of_engine.field in (None, of_front.field) or of_front.field is None
