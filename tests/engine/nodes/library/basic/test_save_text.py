"""The node that saves texts: its files, what it shows, what it passes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.nodes.library.basic.patterns import MAX_TEXT_CHARACTERS, TextTooLong
from darkroom.engine.nodes.library.basic.save_text import save_text
from tests.engine.nodes.small_store import node_context, small_store

INDENTS_WITHOUT_END = "[" * 200 + "1," * 100_000 + "1" + "]" * 200


@pytest.mark.parametrize(
    ("kind", "text", "saved"),
    [
        ("txt", "a\nü", "a\nü"),
        ("md", "# a", "# a"),
        ("csv", "a,b\r\n1,2", "a,b\r\n1,2"),
        ("json", '{"a":["ü"]}', '{\n  "a": [\n    "ü"\n  ]\n}'),
        ("json", "no json", "no json"),
        ("json", "[" * 5000, "[" * 5000),
        ("json", INDENTS_WITHOUT_END, INDENTS_WITHOUT_END),
    ],
)
def test_a_text_is_saved_in_its_format(tmp_path: Path, kind: str, text: str, saved: str) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    made = save_text(context, text=text, filename_prefix="notes/a", format=kind)
    context.files.join()
    (shown,) = made.ui["files"]
    assert (tmp_path / shown["subfolder"] / shown["filename"]).read_bytes() == saved.encode()
    assert Path(shown["filename"]).suffix == f".{kind}"
    assert made.ui["text"] == (text,) and made.result == (text,)


def test_what_is_no_text_or_too_long_is_refused(tmp_path: Path) -> None:
    context = node_context(small_store(tmp_path), tmp_path)
    with pytest.raises(TypeError, match="^text: no text"):
        save_text(context, text=["a"])
    with pytest.raises(TextTooLong):
        save_text(context, text="a" * (MAX_TEXT_CHARACTERS + 1))
    assert list(tmp_path.iterdir()) == []
