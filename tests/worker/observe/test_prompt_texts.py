"""Texts of prompts are found in log records and hidden."""

from __future__ import annotations

from darkroom.worker.observe.prompt_texts import PROMPTS_KEPT, PromptTexts, texts_of


def prompt(**inputs: object) -> dict[str, object]:
    return {"1": {"class_type": "Draw", "inputs": inputs}}


def test_file_names_numbers_links_and_very_short_texts_stay_visible() -> None:
    given = prompt(a="model v1.safetensors", b="model.safetensors", c="512", d=["1", 0], e="ab", f=7, g="two\nlines")
    assert set(texts_of(given)) == {"model v1.safetensors", "two", "lines"}


def test_whole_texts_are_hidden_and_parts_of_words_are_not() -> None:
    texts = PromptTexts()
    texts.hold("one", prompt(text="cat", other="cat on a mat"))
    assert texts.hide("concatenate 'cat' and cat on a mat.") == "concatenate '[prompt]' and [prompt]."


def test_a_prompt_is_remembered_while_it_runs_and_a_while_after_its_end() -> None:
    texts = PromptTexts()
    texts.hold("long", prompt(text="a long job"))
    for number in range(PROMPTS_KEPT + 1):
        texts.hold(str(number), prompt(text=f"text number {number} here"))
        texts.release(str(number))
    assert texts.hide("text number 0 here, a long job") == "text number 0 here, [prompt]"
    assert texts.hide("text number 1 here") == "[prompt]"


def test_a_long_line_and_many_texts_cost_little() -> None:
    texts = PromptTexts()
    texts.hold("one", {str(n): {"inputs": {"text": f"{'x' * 50}{n}"}} for n in range(5000)})
    assert len(texts.hide("x" * 20_000)) == 20_000
