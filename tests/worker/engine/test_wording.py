"""One list of problems out of what front and engine find, none told twice."""

from __future__ import annotations

from worker.engine.foreign_check import find_problems
from worker.engine.wording import in_our_words
from worker.errors import Problem

INFO = {
    "Load": {
        "input": {"required": {"image": [["a.png"], {"image_upload": True}]}},
        "output": ["IMAGE"],
        "output_node": False,
    },
    "Save": {"input": {"required": {"images": ["IMAGE"], "prefix": ["STRING"]}}, "output": [], "output_node": True},
}


def load(image: str) -> dict[str, object]:
    return {"class_type": "Load", "inputs": {"image": image}}


def save(source: str = "1") -> dict[str, object]:
    return {"class_type": "Save", "inputs": {"images": [source, 0], "prefix": "x"}}


def test_what_both_find_is_said_in_the_fronts_words_and_order() -> None:
    of_engine = [
        Problem("Exception when validating node: '99'", node_id="2", type="exception_during_validation"),
        Problem("Value not in list", field="image", node_id="1", type="value_not_in_list"),
    ]
    of_front = [
        Problem("Value 'b' not in list: image", field="image", node_id="1", allowed=["a"]),
        Problem("Linked node '99' does not exist: images", field="images", node_id="2"),
        Problem("The engine does not mind this", field="prefix", node_id="3"),
    ]
    assert in_our_words(of_engine, of_front) == of_front[:2]


def test_what_the_engine_alone_finds_is_kept_as_it_says_it() -> None:
    alone = Problem("Custom validation failed", field="image", node_id="1")
    assert in_our_words([alone], [Problem("Other input", field="prefix", node_id="1")]) == [alone]


def test_only_nodes_that_an_output_needs_are_checked_but_every_class_is() -> None:
    prompt = {"1": load("a.png"), "2": save(), "3": load("gone.png"), "4": {"class_type": "Nothing", "inputs": {}}}
    assert [problem.node_id for problem in find_problems(prompt, INFO).listed] == ["4"]


def test_files_that_a_node_finds_without_listing_them_are_left_to_the_engine() -> None:
    for name in ("sub/b.png", "b.png [output]"):
        assert find_problems({"1": load(name), "2": save()}, INFO).listed == ()
    (problem,) = find_problems({"1": load("b.png"), "2": save()}, INFO).listed
    assert problem.type == "value_not_in_list" and problem.allowed == ["a.png"]
