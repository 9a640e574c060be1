"""The built-in node classes, which are found in their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.nodes import library
from darkroom.engine.nodes.built_in import built_in_nodes

NODES = '''"""Node classes in a module that is in no list."""

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import IMAGE


@node("ImageUnlisted", category="image")
def image_unlisted(context: NodeContext, *, image: IMAGE) -> IMAGE:
    return image


NODES = (image_unlisted,)
'''


def test_every_name_is_there_once() -> None:
    names = [item.class_type for item in built_in_nodes()]
    assert len(names) > 400
    assert len(names) == len(set(names))


def test_a_module_of_the_library_is_found_without_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unlisted.py").write_text(NODES)
    monkeypatch.setattr(library, "__path__", [*library.__path__, str(tmp_path)])
    assert "ImageUnlisted" in [item.class_type for item in built_in_nodes()]
