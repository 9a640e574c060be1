"""The first argument of `darkroom generate`: what is drawn, and what is a mistake that names what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.worker.cli.generate_subject import SubjectUnclear, looks_like_path, modifier_of

MODIFIERS = ("Text2Image", "Image2Image", "Inpaint", "ControlNet", "Upscale", "Text2Video", "RawWorkflow")


@pytest.mark.parametrize(
    "prompt",
    ["cat", "painting", "image", "edited", "a red apple", "lighthouse", "Text to image", "a cat/dog hybrid", "1girl",
     "draw 2.5 apples", "an e.g. of art", "a sign that says x=y", "Mona Lisa", "Котики", "猫"],
)  # fmt: skip
def test_words_are_a_prompt(prompt: str) -> None:
    assert modifier_of(prompt, (), MODIFIERS) == "Text2Image"


def test_several_words_may_have_parameters_after_them() -> None:
    assert modifier_of("a red apple", ("steps", "seed"), MODIFIERS) == "Text2Image"


@pytest.mark.parametrize("name", MODIFIERS)
def test_a_modifier_is_itself_and_with_one_letter_wrong_it_is_named(name: str) -> None:
    assert modifier_of(name, ("prompt",), MODIFIERS) == name
    mistakes = [name[:-1], name[1:], name + "s", name.lower(), name.upper(), name[0] + name[2] + name[1] + name[3:]]
    for mistake in (word for word in mistakes if word not in MODIFIERS):
        for values in ((), ("prompt",)):
            with pytest.raises(SubjectUnclear, match=f"did you mean `{name}`"):
                modifier_of(mistake, values, MODIFIERS)


@pytest.mark.parametrize("word", ["Foo", "foo", "poster", "Banner7"])
def test_a_word_that_is_no_modifier_takes_no_parameters(word: str) -> None:
    with pytest.raises(SubjectUnclear, match="expected one of Text2Image, Image2Image"):
        modifier_of(word, ("steps",), MODIFIERS)


def test_a_stored_workflow_is_named_with_its_option() -> None:
    for word in ("poster", "Poster", "postr"):
        with pytest.raises(SubjectUnclear, match="--workflow poster"):
            modifier_of(word, (), MODIFIERS, ("poster",))


@pytest.mark.parametrize("suffix", [".json", ".PNG", ".webp", ".safetensors", ".mp4"])
@pytest.mark.parametrize("folder", ["", "./", "sub/", "~/", "/tmp/nothing/"])
def test_what_is_written_as_a_file_is_never_drawn(suffix: str, folder: str) -> None:
    with pytest.raises(SubjectUnclear, match="no such file.*prompt="):
        modifier_of(f"{folder}nothing{suffix}", (), MODIFIERS)


def test_the_nearest_file_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text("{}")
    with pytest.raises(SubjectUnclear, match=r"did you mean '.*/flow\.json'"):
        modifier_of(str(tmp_path / "flwo.json"), (), MODIFIERS)
    with pytest.raises(SubjectUnclear, match=r"the folder .*/nowhere does not exist"):
        modifier_of(str(tmp_path / "nowhere" / "flow.json"), (), MODIFIERS)
    with pytest.raises(SubjectUnclear, match=r"is a folder; expected a file"):
        modifier_of(str(tmp_path), (), MODIFIERS)


def test_parameters_without_anything_before_them_and_two_prompts_are_refused() -> None:
    with pytest.raises(
        SubjectUnclear, match="expected a modifier first, such as `darkroom generate Text2Image prompt=x`"
    ):
        modifier_of("prompt=x", (), MODIFIERS)
    with pytest.raises(SubjectUnclear, match="expected one of them"):
        modifier_of("a red apple", ("prompt",), MODIFIERS)


@given(st.lists(st.from_regex(r"[a-z]{1,12}", fullmatch=True), min_size=2, max_size=8).map(" ".join))
def test_plain_words_are_never_refused(prompt: str) -> None:
    assert not looks_like_path(prompt)
    assert modifier_of(prompt, (), MODIFIERS) == "Text2Image"


def test_a_word_with_a_misspelt_ending_is_a_file_that_is_not_there() -> None:
    for name in ("flow.jsn", "flow.jsonn", "photo.pgn", "sound.mp33"):
        with pytest.raises(SubjectUnclear, match="no such file"):
            modifier_of(name, (), MODIFIERS)
    for prompt in ("Dr.", "3.5", "v1.5", "a cat at example.jsn", "hello..."):
        assert not looks_like_path(prompt)
