"""Built-in nodes as classes in ComfyUI's form, for packs that call or subclass them.

`nodes.KSampler().sample(model, seed, ...)` works while a node of the pack runs: the call takes part in that node's run
(its progress, its files, its interruption). Where a pack puts a method of its own into such a class, prompts run that.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from darkroom.contract.graph.spec import NodeRules, ValueDict
from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.known_names import KnownNames, NodeMethod
from darkroom.engine.nodes.base import NodeClass, NodeEnvironment, Returned
from darkroom.engine.nodes.catalogue import object_info
from darkroom.engine.nodes.legacy_node import ClassNode
from darkroom.engine.nodes.running_call import running_context

SECTIONS = ("required", "optional", "hidden")
SCALERS = frozenset({"ImageScale", "ImageScaleBy", "LatentUpscale", "LatentUpscaleBy"})
CHOICE_LISTS = {"upscale_method": "upscale_methods", "crop": "crop_methods"}  # input to the scalers' class attribute


class BuiltInClass(ABCMeta):
    """Metaclass of built-in node classes. It is abstract, so that packs can also derive from an abstract class."""

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any], **options: Any) -> BuiltInClass:
        """Make a class. One with a schema of its own declares and calls itself by that, not as the node it extends."""
        is_own = "define_schema" in members and any(isinstance(base, BuiltInClass) for base in bases)
        return super().__new__(mcs, name, bases, {**_schema_members(), **members} if is_own else members, **options)

    def __setattr__(cls, name: str, value: object) -> None:
        """Set an attribute. From then on prompts run the node through the class, so that the change takes effect."""
        super().__setattr__(name, value)
        host = HOST.get()
        class_type = next((key for key, made in host.classes.items() if made is cls), None)
        if class_type is not None and host.engine.catalogue.get(class_type) is host.built_in[class_type]:
            host.engine.catalogue.add(PatchedNode(host.built_in[class_type], cls, host.engine.environment))


def _schema_members() -> dict[str, Any]:
    """Return the members that a node by schema has from its base; `define_schema` and `execute` are its own.

    The base is that of packs, whose modules are read anew for each engine that serves them; a pack with a schema has
    imported it.
    """
    base = sys.modules["comfy_api.latest"].io.ComfyNode
    return {name: value for name, value in vars(base).items() if name.isupper() or name in ("_own", "hidden")}


class PatchedNode(ClassNode):
    """A built-in node that runs through its class. Checks and fingerprints that the class lacks are the node's own."""

    def __init__(self, built_in: NodeClass, kind: type, environment: NodeEnvironment) -> None:
        spec = built_in.spec(environment)
        super().__init__(
            built_in.class_type, kind, display_name=spec.display_name or "", python_module=spec.python_module
        )
        self.built_in = built_in

    def rules(self, environment: NodeEnvironment) -> NodeRules:
        own, built_in = super().rules(environment), self.built_in.rules(environment)
        return replace(
            own, has_fingerprint=own.has_fingerprint or built_in.has_fingerprint, check=own.check or built_in.check
        )

    def fingerprint_of(self, environment: NodeEnvironment, inputs: Mapping[str, object]) -> object:
        if hasattr(self.kind, "IS_CHANGED"):
            return super().fingerprint_of(environment, inputs)
        return self.built_in.fingerprint_of(environment, inputs)

    def missing_inputs(self, instance: object, inputs: Mapping[str, object]) -> object:
        is_own = hasattr(self.kind, "check_lazy_status")
        return super().missing_inputs(instance, inputs) if is_own else self.built_in.missing_inputs(None, inputs)


def class_of(node: NodeClass, method: NodeMethod | None) -> type:
    """Return a node as a class in ComfyUI's form: the pack's own, or one that calls the built-in function."""
    if isinstance(node, PatchedNode):
        node = node.built_in
    if isinstance(node, ClassNode):
        kind: type = node.kind
        return kind
    made = HOST.get().classes  # one class a node, however it is reached
    found = made.get(node.class_type)
    if found is None:
        found = made[node.class_type] = _make(node, method)
    return found


def by_python_name(catalogue: Mapping[str, NodeClass], known: KnownNames, module: str, name: str) -> type | None:
    """Return the class of the built-in node that ComfyUI has under that name in that module, or None."""
    for class_type in known.class_types.get((module, name), ()):
        if class_type in catalogue:
            return class_of(catalogue[class_type], known.nodes[class_type])
    return None


def _make(node: NodeClass, method: NodeMethod | None) -> type:
    name = (method and method.method) or "execute"
    environment = HOST.get().engine.environment
    spec = node.spec(environment)
    order = tuple(method.parameters) if method and method.parameters else tuple(item.name for item in spec.inputs)

    def call(self: Any, *args: Any, **inputs: Any) -> Any:
        return run_inside(node, environment, {**dict(zip(order, args, strict=False)), **inputs})

    call.__name__ = name
    members: dict[str, Any] = {
        "__doc__": spec.description or None,
        "__module__": method.module if method else "nodes",
        "INPUT_TYPES": classmethod(lambda cls: input_types(node, environment)),
        "RETURN_TYPES": tuple(output.type for output in spec.outputs),
        "RETURN_NAMES": tuple(output.name for output in spec.outputs),
        "OUTPUT_IS_LIST": tuple(output.is_list for output in spec.outputs),
        "FUNCTION": name,
        "CATEGORY": spec.category,
        "OUTPUT_NODE": spec.is_output,
        "INPUT_IS_LIST": spec.input_is_list,
        "DESCRIPTION": spec.description,
        name: call,
    }
    if node.class_type in SCALERS:  # packs offer the same choices in nodes of their own
        declared = input_types(node, environment)["required"]
        members |= {CHOICE_LISTS[key]: list(declared[key][0]) for key in CHOICE_LISTS if key in declared}
    if name == "execute":
        # ComfyUI's newer nodes are called on the class
        members |= dict.fromkeys(("execute", *(method.aliases if method else ())), classmethod(call))
    return BuiltInClass(method.class_name if method else node.class_type, (), members)


def input_types(node: NodeClass, environment: NodeEnvironment) -> ValueDict:
    """Return ComfyUI's `INPUT_TYPES()` of a node."""
    shown = object_info(node.spec(environment))["input"]
    return {
        section: {key: value if isinstance(value, str) else tuple(value) for key, value in shown[section].items()}
        for section in SECTIONS
        if section in shown
    }


def run_inside(node: NodeClass, environment: NodeEnvironment, inputs: Mapping[str, Any]) -> Any:
    """Call a built-in node within the running one; return a tuple, or a dict with `ui`, as in ComfyUI."""
    context = running_context()
    if context is None:
        raise RuntimeError(f"{node.class_type} can be called only while a node runs")
    spec = node.spec(environment)
    takes = {item.name for item in spec.inputs}
    given = {key: value for key, value in inputs.items() if key in takes}
    given = {**{item.name: None for item in spec.section("hidden")}, **given}
    returned: Returned = node.returned(node.call(node.instance(), context, given))
    if returned.ui is None and returned.expand is None:
        return returned.result if returned.result is not None else ()
    shown: dict[str, Any] = {"ui": dict(returned.ui or {})}
    if returned.result is not None:
        shown["result"] = returned.result
    if returned.expand is not None:
        shown["expand"] = dict(returned.expand)
    return shown
