"""Declarations without behind them: what tests of the graph layer need of node classes."""

from __future__ import annotations

from typing import Any

from darkroom.contract.graph.spec import InputCheck, InputSpec, NodeRules, NodeSpec, OutputSpec, rules_of


def rules(
    class_type: str,
    inputs: dict[str, Any] | None = None,
    outputs: tuple[Any, ...] = (),
    *,
    optional: dict[str, Any] | None = None,
    hidden: dict[str, str] | None = None,
    is_output: bool = False,
    is_async: bool = False,
    is_idempotent: bool = True,
    check: InputCheck | None = None,
) -> NodeRules:
    """Rules of a class; an input is a type or a pair of type and options."""
    declared = [_input(name, item, "required") for name, item in (inputs or {}).items()]
    declared += [_input(name, item, "optional") for name, item in (optional or {}).items()]
    declared += [InputSpec(name, item, {}, "hidden") for name, item in (hidden or {}).items()]
    spec = NodeSpec(
        class_type,
        tuple(declared),
        tuple(OutputSpec(item, str(item)) for item in outputs),
        class_type,
        "test",
        is_output=is_output,
        is_idempotent=is_idempotent,
    )
    return rules_of(spec, is_async=is_async, check=check)


def _input(name: str, item: Any, section: Any) -> InputSpec:
    kind, options = item if isinstance(item, tuple) else (item, {})
    return InputSpec(name, kind, options, section)


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    """A node of a prompt."""
    return {"class_type": class_type, "inputs": inputs}
