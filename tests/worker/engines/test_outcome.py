"""Outcomes of the engine's refusals."""

from __future__ import annotations

from darkroom.worker.engines.outcome import problems_of_rejection, read_outcome


def test_an_unknown_class_names_its_node_although_only_the_words_tell_it() -> None:
    error = {"type": "invalid_prompt", "message": "No such class", "details": "Node ID '#6:2'", "extra_info": {}}
    (problem,) = problems_of_rejection({"error": error, "node_errors": {}})
    assert problem.node_id == "6:2"
    assert problem.field is None


def test_what_the_engine_left_out_are_warnings_without_folders() -> None:
    message = {"prompt_id": "1", "node_id": "4", "node_type": "CLIPTextEncode", "type": "embedding_left_out"}
    told = [["execution_start", {}], ["node_warning", {**message, "message": "/models/embeddings/a.pt is unreadable"}]]
    for status in ("success", "error"):
        outcome = read_outcome({"outputs": {}, "status": {"status_str": status, "messages": told}}, ["/models"])
        (warning,) = outcome.warnings
        assert (warning["node_id"], warning["class_type"]) == ("4", "CLIPTextEncode")
        assert warning["type"] == "embedding_left_out" and "/models" not in warning["message"]
