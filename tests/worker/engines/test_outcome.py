"""What the engine's refusals come to."""

from __future__ import annotations

from worker.engines.outcome import problems_of_rejection


def test_an_unknown_class_names_its_node_although_only_the_words_tell_it() -> None:
    error = {"type": "invalid_prompt", "message": "No such class", "details": "Node ID '#6:2'", "extra_info": {}}
    (problem,) = problems_of_rejection({"error": error, "node_errors": {}})
    assert problem.node_id == "6:2"
    assert problem.field is None
