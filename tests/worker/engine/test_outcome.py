"""What the engine's refusals come to."""

from __future__ import annotations

from worker.engine.outcome import problems_of_rejection, with_choices

OBJECT_INFO = {
    "KSampler": {"input": {"required": {"sampler_name": [["euler", "heun"]]}, "hidden": {"id": "UNIQUE_ID"}}}
}


def test_an_unknown_class_names_its_node_although_only_the_words_tell_it() -> None:
    error = {"type": "invalid_prompt", "message": "No such class", "details": "Node ID '#6:2'", "extra_info": {}}
    (problem,) = problems_of_rejection({"error": error, "node_errors": {}})
    assert problem.node_id == "6:2"
    assert problem.field is None


def test_choices_that_were_too_many_for_the_error_come_from_the_declaration() -> None:
    error = {"type": "value_not_in_list", "message": "", "extra_info": {"input_name": "sampler_name"}}
    problems = problems_of_rejection({"node_errors": {"3": {"class_type": "KSampler", "errors": [error]}}})
    (problem,) = with_choices(problems, OBJECT_INFO)
    assert problem.allowed == ["euler", "heun"]


def test_a_class_that_is_declared_nowhere_leaves_the_choices_out() -> None:
    error = {"type": "value_not_in_list", "message": "", "extra_info": {"input_name": "x"}}
    problems = problems_of_rejection({"node_errors": {"3": {"class_type": "Other", "errors": [error]}}})
    assert with_choices(problems, OBJECT_INFO)[0].allowed is None
