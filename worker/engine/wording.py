"""One way to say what is wrong with a prompt, whichever engine found it. Pure.

Our engine's check decides what is wrong, in ComfyUI's words; the front's own check, which is all there is before an
engine that is not ours, finds most of the same and says it so that a program can act on it. So a caller reads the same
either way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from worker.errors import Problem


def in_our_words(of_engine: Sequence[Problem], of_front: Sequence[Problem]) -> list[Problem]:
    """What the engine found, in the words of the front's check where that found it too, in the front's order.

    What the front alone finds is left out: the engine knows better.
    """
    engines = _by_node(of_engine)
    of_front = [
        problem for problem in of_front if not any(_says_more(own, problem) for own in engines[problem.node_id])
    ]
    fronts = _by_node(of_front)
    said = [problem for problem in of_front if any(_is_same(other, problem) for other in engines[problem.node_id])]
    others = (problem for problem in of_engine if not any(_is_same(problem, own) for own in fronts[problem.node_id]))
    return [*said, *others]


def _by_node(problems: Sequence[Problem]) -> defaultdict[str | None, list[Problem]]:
    """Of thousands each is compared with those of its own node alone."""
    grouped: defaultdict[str | None, list[Problem]] = defaultdict(list)
    for problem in problems:
        grouped[problem.node_id].append(problem)
    return grouped


def _says_more(of_engine: Problem, of_front: Problem) -> bool:
    """Whether the engine has opened a file of which the front only knows that its list does not name it."""
    is_about_file = of_engine.type == "custom_validation_failed" and "; expected " in of_engine.message
    return is_about_file and of_front.type == "value_not_in_list" and _is_same(of_engine, of_front)


def _is_same(of_engine: Problem, of_front: Problem) -> bool:
    """Of one node. An engine's problem may name no input, when its check of the node broke off there."""
    return of_engine.node_id is None or of_engine.field in (None, of_front.field) or of_front.field is None
