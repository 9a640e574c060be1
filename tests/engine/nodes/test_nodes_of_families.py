"""Node classes in the folders of model families, which the table of nodes finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine import families as package
from darkroom.engine.families import registry
from darkroom.engine.nodes.built_in import built_in_nodes, nodes_of_families

NODES = '''"""Node classes of a family that is to come."""

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import LATENT


@node("EmptyTessellatedLatent", display_name=None, category="latent")
def empty_tessellated_latent(context: NodeContext) -> LATENT:
    return {}


NODES = (empty_tessellated_latent,)
'''


def test_each_is_among_the_built_in_ones_once() -> None:
    classes = built_in_nodes()
    found = nodes_of_families()
    assert found
    assert all(sum(other is item for other in classes) == 1 for item in found)


def test_a_folder_may_have_nodes_without_being_a_family_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tessellated"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "nodes.py").write_text(NODES)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    assert "EmptyTessellatedLatent" in [item.class_type for item in nodes_of_families()]
    assert not any("tessellated" in name for name in registry.modules_of_families("family"))
