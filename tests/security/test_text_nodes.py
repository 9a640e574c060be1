"""Text nodes before hostile patterns and texts: bounded in time and memory, and the rest of the process goes on."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from darkroom.engine.nodes.library.basic import patterns, strings
from darkroom.engine.nodes.library.basic.patterns import CallerPattern, PatternTimedOut, PatternTooLarge, TextTooLong

context: Any = None
PLAIN = {"case_insensitive": False, "multiline": False, "dotall": False}
LIMIT = 1000


@pytest.fixture
def small_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_TEXT_CHARACTERS", LIMIT)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(a|a)*$", "a" * 60 + "!"),
        (r"(x+x+)+y", "x" * 50_000),
        (r"a.*b.*c.*d.*e", "a" * 50_000),
        (r"(?i)((a+)+)+[^a]b", "aA" * 200),
    ],
)
def test_a_pattern_that_never_ends_is_stopped_and_named(pattern: str, text: str) -> None:
    with pytest.raises(PatternTimedOut, match=r"regular expression: took longer than 0\.3 s"):
        list(CallerPattern(pattern, 0, seconds=0.3).matches(text))


def test_many_short_matches_together_have_the_same_limit() -> None:
    now = iter(float(second) for second in range(100))
    with pytest.raises(PatternTimedOut):
        list(CallerPattern("a", 0, seconds=5.0, clock_seconds=lambda: next(now)).matches("a" * 50))


def test_other_threads_run_while_a_pattern_is_matched() -> None:
    """The engine's server answers meanwhile: `re` would hold the interpreter until the end.

    A longer match follows where a loaded machine gave this thread too few turns during one.
    """
    assert any(_turns_during(seconds) > 5 for seconds in (1.0, 4.0, 16.0))


def _turns_during(seconds: float) -> int:
    matching = threading.Thread(target=_match_for, args=(seconds,))
    matching.start()
    turns = 0
    while matching.is_alive():
        time.sleep(0.01)
        turns += 1
    return turns


def _match_for(seconds: float) -> None:
    with pytest.raises(PatternTimedOut):
        list(CallerPattern(r"(a|a)*$", 0, seconds=seconds).matches("a" * 60 + "!"))


def test_every_node_with_a_pattern_has_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hurried(CallerPattern):
        def __init__(self, pattern: str, flags: int) -> None:
            super().__init__(pattern, flags, seconds=0.2)

    monkeypatch.setattr(strings, "CallerPattern", Hurried)
    hostile: dict[str, Any] = {"string": "a" * 60 + "!", "regex_pattern": "(a|a)*$", **PLAIN}
    with pytest.raises(PatternTimedOut):
        strings.regex_match(context, **hostile)
    with pytest.raises(PatternTimedOut):
        strings.regex_replace(context, replace="", **hostile)
    for mode in ("First Match", "All Matches", "First Group", "All Groups"):
        with pytest.raises(PatternTimedOut):
            strings.regex_extract(context, mode=mode, group_index=1, **hostile)


def test_a_pattern_that_runs_out_of_memory_is_no_lack_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack of the machine's would have the engine let go of its models, and the front run the job again."""
    pattern = CallerPattern("a", 0)

    class Exhausted:
        def finditer(self, text: str, timeout: float) -> None:
            raise MemoryError

    monkeypatch.setattr(pattern, "_compiled", Exhausted())
    with pytest.raises(PatternTooLarge, match="too much memory"):
        list(pattern.matches("a"))


def test_a_long_pattern_is_refused_before_it_is_read() -> None:
    with pytest.raises(TextTooLong, match="regular expression: too long; expected at most 10000 characters"):
        CallerPattern("a" * 10_001, 0)


@pytest.mark.usefixtures("small_texts")
def test_no_node_makes_a_text_over_the_limit() -> None:
    half, whole = "x" * (LIMIT // 2), "x" * LIMIT
    assert strings.string_concatenate(context, string_a=half, string_b=half, delimiter="") == whole
    with pytest.raises(TextTooLong, match=f"too long; expected at most {LIMIT} characters"):
        strings.string_concatenate(context, string_a=half, string_b=half, delimiter=",")
    assert strings.string_replace(context, string="ab" * 250, find="ab", replace="x" * 4) == whole
    for string, find in (("ab" * 250, "ab"), ("a" * 199, "")):
        with pytest.raises(TextTooLong):
            strings.string_replace(context, string=string, find=find, replace="x" * 5)
    with pytest.raises(TextTooLong):
        strings.case_converter(context, string="ŉ" * LIMIT, mode="UPPERCASE")


@pytest.mark.usefixtures("small_texts")
@pytest.mark.parametrize(("pattern", "template"), [("", "x" * 20), ("(x)", r"\1" * 20), ("(x+)", r"\g<0>" * 20)])
def test_a_replacement_does_not_grow_over_the_limit(pattern: str, template: str) -> None:
    with pytest.raises(TextTooLong):
        strings.regex_replace(context, string="x" * 100, regex_pattern=pattern, replace=template, **PLAIN)


@pytest.mark.usefixtures("small_texts")
def test_overlapping_matches_do_not_grow_over_the_limit() -> None:
    """A lookahead finds the rest of the text at every character: the square of its length."""
    with pytest.raises(TextTooLong):
        strings.regex_extract(
            context, string="x" * 100, regex_pattern="(?=(.*))", mode="All Matches", group_index=1, **PLAIN
        )
