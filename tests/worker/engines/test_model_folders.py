"""A missing model's problem says where it was looked for."""

from __future__ import annotations

from darkroom.worker.engines.model_folders import is_missing_model, parse_folders, parse_kinds, with_folders
from darkroom.worker.errors import Problem

FOLDERS = parse_folders(
    [
        {"name": "checkpoints", "folders": ["/a/models/checkpoints", "/b"]},
        {"name": "upscale_models", "folders": ["/a/up"]},
        5,
    ]
)


def missing(class_type: str = "CheckpointLoaderSimple", field: str = "ckpt_name") -> Problem:
    return Problem(
        "Value 'x' not in list",
        field=field,
        node_id="1",
        class_type=class_type,
        type="value_not_in_list",
        extra={"received": "x"},
    )


def test_a_missing_model_names_the_folders_it_was_looked_for_in() -> None:
    kinds = parse_kinds([{"node_id": "1", "input_name": "odd", "folder": "checkpoints", "name": "x"}])
    (found,) = with_folders([missing("Odd", "odd")], kinds, FOLDERS)
    assert found.message == "Value 'x' not in list; searched in models/checkpoints, b"
    assert found.extra == {"received": "x", "searched": ["models/checkpoints", "b"]}


def test_of_an_engine_that_does_not_tell_comfyuis_own_inputs_are_known() -> None:
    found = with_folders([missing(), missing("UpscaleModelLoader", "model_name")], {}, FOLDERS)
    assert [problem.message.partition("searched in ")[2] for problem in found] == ["models/checkpoints, b", "up"]
    assert not is_missing_model(missing("Other", "sampler_name"), {})


def test_other_problems_and_engines_without_folders_stay_as_they_are() -> None:
    other = Problem("too small", field="ckpt_name", node_id="1", type="value_smaller_than_min")
    assert with_folders([other, missing()], {}, parse_folders({"no": "list"})) == [other, missing()]
    assert with_folders([other], {}, FOLDERS) == [other]
