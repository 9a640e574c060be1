"""A pack written for the schemas of ComfyUI 0.30.0, beside what ComfyUI 0.30.0 gives for it (`later_schemas.json`).

The recording is that engine's `/object_info` of the pack's classes, and the outputs of `PROMPT` in its history.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.engine.events import NodeStarted
from tests.contract.graph.declared import node
from tests.engine.comfy.loading import loaded, write_pack

RECORDED = Path(__file__).with_name("later_schemas.json")
CLASSES = ("LaterNested", "LaterLists", "LaterMatch", "LaterWidgets", "LaterOpen", "LaterShow", "LaterLoud")
PACK = """
import json
from comfy_api.latest import IO, ComfyExtension, io

SEEN = {}


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    return value


class LaterNested(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        group = io.Autogrow.TemplatePrefix(io.String.Input("word", optional=True), prefix="word", min=0, max=4)
        return io.Schema(
            node_id="LaterNested", display_name="Nested inputs", category="later", description="Nested.",
            search_aliases=["inner"], essentials_category="Basic",
            inputs=[
                io.DynamicCombo.Input("way", tooltip="how", options=[
                    io.DynamicCombo.Option("plain", []),
                    io.DynamicCombo.Option("sized", [
                        io.Int.Input("width", default=64, min=1, max=512, lazy=True),
                        io.Float.Input("scale", default=1.0, step=0.5, optional=True),
                    ]),
                    io.DynamicCombo.Option("deep", [
                        io.DynamicCombo.Input("inner", options=[
                            io.DynamicCombo.Option("one", [io.Boolean.Input("flag", default=True, label_on="on")]),
                        ]),
                        io.Autogrow.Input("words", template=group),
                    ]),
                ]),
                io.Autogrow.Input("numbers", template=io.Autogrow.TemplateNames(
                    io.MultiType.Input(io.Int.Input("number", default=3), [io.Float, io.Boolean]), ["a", "b", "c"],
                    min=1)),
                io.DynamicCombo.Input("more", optional=True, options=[io.DynamicCombo.Option("only", [])]),
            ],
            outputs=[io.String.Output("told"), io.Int.Output(display_name="COUNT", tooltip="how many")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, way, **others):
        SEEN["check", way["way"]] = plain({"way": way, **others})
        return True

    @classmethod
    def fingerprint_inputs(cls, way, **others):
        SEEN["fingerprint", way["way"]] = plain({"way": way, **others})
        return 1

    @classmethod
    def check_lazy_status(cls, way, numbers, **others):
        if "width" in way:  # without a lazy input it need not be asked
            SEEN["lazy", way["way"][0]] = plain({"way": way, "numbers": numbers, **others})
        return ["way.width"] if "width" in way and way["width"] == (None, "way.width") else []

    @classmethod
    def execute(cls, way, numbers, **others):
        seen = {kind: told for (kind, choice), told in SEEN.items() if choice == way["way"]}
        seen |= {"call": plain({"way": way, "numbers": numbers, **others}), "id": cls.hidden.unique_id}
        return io.NodeOutput(json.dumps(seen, sort_keys=True), len(numbers))


class LaterLists(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LaterLists", category="later", is_input_list=True, not_idempotent=True, is_experimental=True,
            inputs=[
                io.DynamicCombo.Input("way", options=[io.DynamicCombo.Option("sized", [io.Int.Input("width")])]),
                io.Autogrow.Input("texts", template=io.Autogrow.TemplatePrefix(io.String.Input("t"), "t", min=1)),
            ],
            outputs=[io.String.Output(is_output_list=True)],
        )

    @classmethod
    def validate_inputs(cls, **inputs):
        SEEN["list_check", None] = plain(inputs)
        return True

    @classmethod
    def execute(cls, way, texts):
        return io.NodeOutput([json.dumps([SEEN["list_check", None], plain(way), plain(texts)])] * 2)


class LaterMatch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        kind = io.MatchType.Template("kind", [io.String, io.Int])
        free = io.MatchType.Template("free")
        return io.Schema(
            node_id="LaterMatch", category="later", is_dev_only=True,
            inputs=[
                io.MatchType.Input("first", template=kind, lazy=True), io.MatchType.Input("second", template=kind),
                io.MatchType.Input("any", template=free, optional=True), io.Boolean.Input("swap", default=False),
            ],
            outputs=[io.MatchType.Output(kind, display_name="chosen"), io.MatchType.Output(template=free, id="rest")],
        )

    @classmethod
    def check_lazy_status(cls, swap, first=None, **others):
        return [] if swap or first is not None else ["first"]

    @classmethod
    def execute(cls, first, second, swap, any=None):
        return io.NodeOutput(second if swap else first, any)


class LaterWidgets(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LaterWidgets", display_name="Widgets", category="later", has_intermediate_output=True,
            is_deprecated=True,
            inputs=[
                io.Combo.Input("pick", options=["x", "y"], default="y", advanced=True,
                               control_after_generate=io.ControlAfterGenerate.fixed),
                io.MultiCombo.Input("picks", options=["x", "y"], default=["x"], placeholder="none", chip=True),
                io.Float.Input("slide", default=0.5, min=0.0, max=1.0, display_mode=io.NumberDisplay.gradient_slider,
                               gradient_stops=[{"offset": 0.0, "color": [0, 0, 0]}], extra_dict={"note": 1}),
                io.String.Input("text", multiline=True, dynamic_prompts=True, force_input=True),
                io.Color.Input("color"),
                io.Colors.Input("colors"),
                io.BoundingBox.Input("box", component="crop"),
                io.BoundingBoxes.Input("boxes", optional=True),
                io.Curve.Input("curve", optional=True),
                io.Range.Input("range", optional=True, value_min=0.0, value_max=255.0, display="levels"),
                io.ImageCompare.Input("compare", optional=True),
                io.Image.Input("image", optional=True, raw_link=True),
                io.Custom("MINE").Input("mine", optional=True),
                io.MultiType.Input("several", [io.Mask, io.Image], optional=True, tooltip="either"),
            ],
            outputs=[io.Combo.Output("picked"), io.Custom("MINE").Output()],
            price_badge=io.PriceBadge("1 + 1", io.PriceBadgeDepends(widgets=["pick"])),
        )

    @classmethod
    def execute(cls, pick, picks, slide, text, color, colors, box, **others):
        return io.NodeOutput(json.dumps(plain([pick, picks, slide, text, color, colors, box, others])), None)


class LaterOpen(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LaterOpen", category="later", accept_all_inputs=True, inputs=[io.Int.Input("known", default=1)],
            outputs=[io.AnyType.Output(display_name="all")], is_api_node=True,
        )

    @classmethod
    def execute(cls, known, **others):
        return io.NodeOutput(json.dumps(plain({"known": known, **others}), sort_keys=True))


class LaterShow(IO.ComfyNode):
    @classmethod
    def define_schema(cls):
        return IO.Schema(
            node_id="LaterShow", category="later", inputs=[IO.AnyType.Input("value")], outputs=[], is_output_node=True
        )

    @classmethod
    def execute(cls, value):
        return IO.NodeOutput(ui={"text": [str(value)]})


class LaterLoud(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LaterLoud", category="later",
            inputs=[io.DynamicCombo.Input("way", options=[io.DynamicCombo.Option("at", [io.Int.Input("level")])])],
            outputs=[io.Int.Output()],
        )

    @classmethod
    def validate_inputs(cls, **inputs):
        return True if inputs["way"]["level"] < 11 else "too loud"

    @classmethod
    def execute(cls, way):
        return io.NodeOutput(way["level"])


class Extension(ComfyExtension):
    async def get_node_list(self):
        return [LaterNested, LaterLists, LaterMatch, LaterWidgets, LaterOpen, LaterShow, LaterLoud]


async def comfy_entrypoint():
    return Extension()
"""
PROMPT: dict[str, Any] = {
    "1": node("PrimitiveInt", value=7),
    "2": node("PrimitiveString", value="text"),
    "3": node("LaterNested", way="sized", **{"way.width": ["1", 0], "numbers.a": 2, "numbers.c": ["1", 0]}),
    "4": node("LaterShow", value=["3", 0]),
    "5": node(
        "LaterNested",
        way="deep",
        more="only",
        **{"way.inner": "one", "way.inner.flag": False, "way.words.word1": ["2", 0], "numbers.a": ["3", 1]},
    ),
    "6": node("LaterShow", value=["5", 0]),
    "7": node("LaterNested", way="plain", **{"numbers.a": 1.5, "numbers.b": ["5", 1]}),
    "8": node("LaterShow", value=["7", 0]),
    "9": node("LaterLists", way="sized", **{"way.width": 5, "texts.t0": ["2", 0], "texts.t3": "given"}),
    "10": node("LaterShow", value=["9", 0]),
    "11": node("LaterMatch", first=["1", 0], second=["2", 0], swap=True, any=["9", 0]),
    "12": node("LaterShow", value=["11", 0]),
    "13": node(
        "LaterWidgets",
        pick="x",
        picks={"__value__": ["y"]},
        slide=1,
        text=["2", 0],
        color="#00ff00",
        colors={"__value__": ["#000000"]},
        box={"x": 1},
        image=["14", 0],
    ),
    "14": node("EmptyImage", width=16, height=16, batch_size=1, color=0),
    "17": node("LaterShow", value=["13", 0]),
    "15": node("LaterOpen", known=2, later=3, linked=["2", 0]),
    "16": node("LaterShow", value=["15", 0]),
}


def test_a_pack_of_later_schemas_is_described_and_runs_as_in_comfyui(tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    write_pack(tmp_path, "later.py", PACK)
    with loaded(tmp_path) as made:
        assert made.reports["later"].error is None
        info = {name: json.loads(json.dumps(made.engine.object_info(name)[name])) for name in CLASSES}
        for name, told in recorded["object_info"].items():  # a node without a display name is shown by its class's
            assert info[name] == told | {"display_name": told["display_name"] or name}, name
        result = made.run(PROMPT)
        assert result.status == "success", made.events[-1]
        assert {name: ui["text"] for name, ui in result.outputs.items()} == recorded["outputs"]


def test_a_check_gets_its_inputs_nested(tmp_path: Path) -> None:
    write_pack(tmp_path, "later.py", PACK)
    with loaded(tmp_path) as made:
        prompt = {"1": node("LaterLoud", way="at", **{"way.level": 11}), "2": node("LaterShow", value=["1", 0])}
        with pytest.raises(PromptRejected) as refused:
            made.run(prompt)
        details = [problem.details for problem in refused.value.node_problems["1"].problems]
        assert details == ["way - too loud", "way.level - too loud"]
        prompt["1"]["inputs"]["way.level"] = 10
        assert made.run(prompt).outputs["2"]["text"] == ["10"]


def test_a_lazy_input_of_a_choice_is_computed_only_when_asked_for(tmp_path: Path) -> None:
    body = """
    from comfy_api.latest import ComfyExtension, io

    class Idle(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            option = io.DynamicCombo.Option("by", [io.Float.Input("size", lazy=True)])
            return io.Schema("Idle", inputs=[io.DynamicCombo.Input("way", [option]), io.Boolean.Input("asks")],
                             outputs=[io.AnyType.Output()])

        @classmethod
        def check_lazy_status(cls, way, asks):
            value, key = way["size"]
            return [key] if asks and value is None else []

        @classmethod
        def execute(cls, way, asks):
            return io.NodeOutput(way["size"])

    class Extension(ComfyExtension):
        async def get_node_list(self):
            return [Idle]

    comfy_entrypoint = Extension
    """
    write_pack(tmp_path, "idle.py", body)
    with loaded(tmp_path) as made:
        for asks, expected in ((False, "None"), (True, "4")):
            prompt = {
                "1": node("PrimitiveFloat", value=4),
                "2": node("Idle", way="by", asks=asks, **{"way.size": ["1", 0]}),
                "3": node("Show", value=["2", 0]),
            }
            assert made.run(prompt).outputs["3"]["value"][0].startswith(expected)
            ran = [event.node.node_id for event in made.events if isinstance(event, NodeStarted)]
            assert ("1" in ran) is asks
