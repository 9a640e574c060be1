"""Node declarations and pages small enough to be read, for the tests of the conversion."""

from __future__ import annotations

from typing import Any

from darkroom.contract.graph.facts import FACTS_KEY

Json = dict[str, Any]


def declared(outputs: list[str], module: str = "nodes", optional: Json | None = None, **required: Any) -> Json:
    return {"input": {"required": required, "optional": optional or {}}, "output": outputs, "python_module": module}


PROMPT_TEXT = ["STRING", {"multiline": True, "dynamicPrompts": True}]
CHOSEN = [{"key": "width", "inputs": {"required": {"width": ["INT", {"default": 512}]}}}, {"key": "none", "inputs": {}}]

OBJECT_INFO: Json = {
    "Loader": declared(["MODEL", "CLIP"], name=[["a.safetensors", "b.safetensors"], {}]),
    "Text": declared(["CONDITIONING"], text=PROMPT_TEXT, clip=["CLIP"]),
    "Sampler": declared(
        ["LATENT"],
        model=["MODEL"],
        seed=["INT", {"default": 0}],
        steps=["INT", {"default": 20}],
        cfg=["FLOAT", {"default": 8.0}],
        positive=["CONDITIONING"],
        optional={"denoise": ["FLOAT", {"default": 1.0}]},
    ),
    "Picture": declared(
        ["IMAGE"],
        image=[["x.png"], {"image_upload": True}],
        optional={"channel": [["red", "blue"], {}]},
    ),
    "Model": declared(["MODEL"], model=["MODEL"], strength=["FLOAT", {"default": 1.0}]),
    "Resize": declared(
        ["IMAGE"], image=["IMAGE"], by=["COMFY_DYNAMICCOMBO_V3", {"options": CHOSEN}], crop=["BOOLEAN", {}]
    ),
    "Points": declared(["POINTS"], points=["CURVE", {}]),
    "Save": declared([], filename_prefix=["STRING", {"default": "out"}], images=["IMAGE,LATENT"]),
    "Pack": declared(["MODEL"], "custom_nodes.pack", model=["MODEL"]),
    "Named": declared(["INT"], "custom_nodes.pack", rate=["INT", {"default": 8}], kind=[["a", "b"], {}]),
    "Switch": declared(["*"], switch=["BOOLEAN", {}], on_false=["*", {"lazy": True}], on_true=["*", {"lazy": True}])
    | {FACTS_KEY: {"chosen_by": "switch", "alternatives": {"true": "on_true", "false": "on_false"}}},
    "Options": declared(["STRING", "INT"], choice=["COMBO", {"options": []}])
    | {FACTS_KEY: {"open": ["choice"], "page_values": ["index", "option#"]}},
    "View": declared([], model=["FILE_3D"], view=["LOAD_3D", {}], side=["INT", {"default": 512}]),
    "Forced": declared(["INT"], value=["INT", {"forceInput": True}], other=["INT", {"default": 3}]),
}


def node(node_id: int | str, kind: str, values: Any = (), mode: int = 0, **slots: Any) -> Json:
    """Return a node of a page. `slots` are `inputs` as (name, type, link, widget or None) and `outputs` as types."""
    inputs = [
        {"name": name, "type": of_type, "link": link, **({"widget": {"name": widget}} if widget else {})}
        for name, of_type, link, widget in slots.get("inputs", ())
    ]
    outputs = [{"name": of_type, "type": of_type, "links": []} for of_type in slots.get("outputs", ())]
    return {
        "id": node_id,
        "type": kind,
        "mode": mode,
        "inputs": inputs,
        "outputs": outputs,
        "widgets_values": values if isinstance(values, dict) else list(values),
        "properties": slots.get("properties", {}),
        "title": slots.get("title", kind),
    }


def page(*nodes: Json, links: list[list[Any]] | list[Json] = [], **rest: Any) -> Json:  # noqa: B006 - it is not kept
    return {"version": 0.4, "nodes": list(nodes), "links": links, **rest}


def save(link: int) -> Json:
    return node(9, "Save", ["pic"], inputs=[("images", "IMAGE", link, None)])


def sampler(**changes: Any) -> Json:
    inputs = [("model", "MODEL", 1, None), ("positive", "CONDITIONING", 2, None)]
    given: Json = {"values": [7, "randomize", 20, 8.0, 0.5], "inputs": inputs, "outputs": ["LATENT"]}
    given |= changes
    return node(3, "Sampler", given.pop("values"), given.pop("mode", 0), **given)
