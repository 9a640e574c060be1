"""The node that passes one of several values on, chosen by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Matched, Out
from darkroom.engine.nodes.page_widgets import PageWidget
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.widgets import OpenCombo

MAX_BRANCHES = 32


@dataclass(frozen=True, slots=True)
class Branched(Matched):
    """A link that is followed only when its branch is chosen."""

    def options(self) -> ValueDict:
        return {"template": {"template_id": self.template, "allowed_types": ",".join(self.allowed)}, "lazy": True}


BRANCH_NAMES = PageWidget("ARRAY")  # those that the user of the page gave the connected inputs, in their order
BRANCH = Branched("COMFY_MATCHTYPE_V3", template="branch")


def _name_of(branch: object, names: object, inputs: Sequence[str]) -> str | None:
    """Return the input of a branch by the name that its user gave it, or by its own; None without one."""
    given = list(names) if isinstance(names, (list, tuple)) else []
    if branch in given and given.index(branch) < len(inputs):
        return inputs[given.index(branch)]
    return str(branch) if branch in inputs else None


def _wanted(
    branch: object = None, branch_names: object = None, autogrow: Mapping[str, tuple[object, str]] | None = None
) -> Sequence[str]:
    """Return the dotted name of the chosen input while it has no value. Values come with their dotted names."""
    grown = autogrow or {}
    name = _name_of(branch, branch_names, list(grown))
    if name is None:
        return ()
    value, dotted = grown[name]
    return (dotted,) if value is None else ()


@node("BranchNode", display_name="Branch", category="utilities/logic", python_module="comfy_extras.nodes_logic",
      needs=_wanted, comfyui_version="0.46.0")  # fmt: skip
def branch_node(
    context: NodeContext,
    *,
    autogrow: Annotated[
        Mapping[str, object], Growing(item=Field("branch", BRANCH), prefix="branch", min=1, max=MAX_BRANCHES)
    ],
    branch: Annotated[str, OpenCombo()],
    branch_names: Annotated[object, BRANCH_NAMES],
) -> Annotated[object, BRANCH, Out("output")]:
    """Pass the value of one branch on; what the others need is not computed.

    Raises ValueError for a name that no connected branch has.
    """
    name = _name_of(branch, branch_names, list(autogrow))
    if name is None:
        offered = branch_names if isinstance(branch_names, (list, tuple)) and branch_names else list(autogrow)
        raise ValueError(f"branch: not connected; got {str(branch)[:100]!r}, expected one of {str(offered)[:500]}")
    return (autogrow[name],)


NODES = (branch_node,)
