"""Weights of brackets against a plain recursive reading, and of texts that a quadratic reader would not end with."""

from __future__ import annotations

import random

import pytest

from darkroom.engine.text.prompt_weights import MAX_DEPTH, PromptTooDeep, nesting_problem, parse_weights

PIECES = ("(", ")", "((", "))", ":", ":1.2", ".5", "1", "a", " b", "\\(", "\\)", ":x")


def read_plainly(text: str, weight: float) -> list[tuple[str, float]]:
    """The same by recursion, a level at a time."""
    parts: list[tuple[str, float]] = []
    for part in cut(text):
        if len(part) < 2 or part[0] != "(" or part[-1] != ")":
            parts.append((part, weight))
            continue
        inner, inner_weight = part[1:-1], weight * 1.1
        before, colon, after = inner.rpartition(":")
        if colon and before:
            try:
                inner, inner_weight = before, float(after)
            except ValueError:
                inner = part[1:-1]
        parts += read_plainly(inner, inner_weight)
    return parts


def cut(text: str) -> list[str]:
    parts, current, depth = [], "", 0
    for letter in text:
        if letter == "(" and depth == 0 and current:
            parts.append(current)
            current = ""
        current += letter
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and depth == 0:
            parts.append(current)
            current = ""
    return [*parts, current] if current else parts


def test_any_brackets_read_as_a_plain_reader_reads_them() -> None:
    draw = random.Random(11)
    for _ in range(20_000):
        text = "".join(draw.choice(PIECES) for _ in range(draw.randrange(14)))
        hidden = text.replace("\\)", "\0\1").replace("\\(", "\0\2")
        expected = [
            (part.replace("\0\1", ")").replace("\0\2", "("), weight) for part, weight in read_plainly(hidden, 1.0)
        ]
        assert parse_weights(text) == expected, text


def test_brackets_nested_too_deeply_are_named() -> None:
    deep = "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH
    assert parse_weights(deep)[0][0] == "a" and nesting_problem(deep) is None
    with pytest.raises(PromptTooDeep, match="nested more than 900 deep"):
        parse_weights(f"({deep})")
    assert "expected at most 900" in (nesting_problem(f"({deep})") or "")


@pytest.mark.parametrize(
    "text",
    ["(" * 200_000, ")" * 200_000, "()" * 100_000, "(" * 100_000 + "a)", "((a)" * 50_000 + ")", "(a:1)" * 50_000],
)
def test_many_brackets_that_are_not_nested_are_read(text: str) -> None:
    parts = "".join(part for part, _ in parse_weights(text))
    assert parts.count("a") == text.count("a") and len(parts) <= len(text)
