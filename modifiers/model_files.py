"""Parameters that say which files a modifier's model is made of, and how its network draws.

They change the loaders of a workflow after its other parameters are in their places, so that they serve every modifier
that loads a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from darkroom.modifiers.modifier import LEFT_OUT, Choices, Guidance, Modifier, Name, OfFamily, no_boolean

Shift = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), BeforeValidator(no_boolean)]
TEXT_LOADERS = ("CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader", "QuadrupleCLIPLoader")  # by the number of files
TYPED_LOADERS = TEXT_LOADERS[:2]
MODEL, CLIP, VAE = range(3)  # outputs of the loader of a checkpoint
TEXT_NODE, VAE_NODE, SHIFT_NODE, GUIDANCE_NODE = "text_encoders", "vae", "shift", "guidance"
PROMPT_NODE = "6"  # of every workflow that has a prompt
GGUF_ENDING = ".gguf"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class ModelFileFields(Modifier):
    """Files of a model in place of a checkpoint, or of parts of one."""

    unet_name: Annotated[
        Name | None,
        Field(
            description="A file of the diffusion_models folder, in place of a checkpoint; with `clip_names` and "
            "`vae_name`."
        ),
    ] = None
    clip_names: Annotated[
        Annotated[list[Name], Field(min_length=1, max_length=len(TEXT_LOADERS))] | None,
        BeforeValidator(_as_list, json_schema_input_type=Name | list[Name] | None),
        Field(
            description="Files of the text_encoders folder, one to four as the family needs; in place of the "
            "checkpoint's.",
            validate_default=True,
        ),
    ] = None
    vae_name: Annotated[
        Name | None,
        Field(description="A file of the vae folder, in place of the checkpoint's VAE.", validate_default=True),
    ] = None
    clip_type: Annotated[
        Name | None,
        OfFamily("text_type"),
        Field(description="The type of CLIPLoader or DualCLIPLoader for `clip_names`.", validate_default=True),
    ] = LEFT_OUT

    clip_loader: Annotated[
        Literal["LTXAVTextEncoderLoader"] | None,
        OfFamily("text_loader"),
        Field(description="The node that loads one file of `clip_names` together with the checkpoint (LTX-2)."),
    ] = LEFT_OUT

    @field_validator("clip_names", "vae_name")
    @classmethod
    def _beside_the_network(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("unet_name") is not None:
            raise PydanticCustomError("missing_beside", "is required with `unet_name`")
        return value

    @field_validator("clip_type")
    @classmethod
    def _has_type(cls, value: Any, info: ValidationInfo) -> Any:
        files = info.data.get("clip_names")
        if value is None and files is not None and len(files) <= len(TYPED_LOADERS):
            raise PydanticCustomError(
                "missing_beside",
                "is required with `clip_names` where the engine does not know the family of the model's file",
            )
        return value

    @model_validator(mode="after")
    def _has_projection(self) -> Self:
        is_alone = self.clip_names is not None and len(self.clip_names) == 1
        if is_alone and self.unet_name is not None and self.clip_loader is not None:
            raise PydanticCustomError(
                "clip_names",
                "must be two files with `unet_name`, the text encoder and its projection, which a checkpoint of this "
                "family has",
            )
        return self

    def make(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().make(workflow)
        loader = loader_in(prompt)
        if loader is None:
            return prompt
        if self.clip_names is not None:
            prompt[TEXT_NODE] = self._text_loader(self.clip_names, prompt[loader]["inputs"].get("ckpt_name"))
            _relink(prompt, (loader, CLIP), TEXT_NODE)
        if self.vae_name is not None:
            prompt[VAE_NODE] = _node("VAELoader", "VAE", vae_name=self.vae_name)
            _relink(prompt, (loader, VAE), VAE_NODE)
        if self.unet_name is not None:
            prompt[loader] = _network_loader(self.unet_name)
        return prompt

    def _text_loader(self, files: Sequence[str], checkpoint: str | None) -> dict[str, Any]:
        if len(files) == 1 and self.clip_loader is not None:
            inputs = {"text_encoder": files[0], "ckpt_name": checkpoint, "device": "default"}
            return _node(self.clip_loader, "Text encoder", **inputs)
        name = TEXT_LOADERS[len(files) - 1]
        inputs = {f"clip_name{index}": file for index, file in enumerate(files, start=1)}
        if len(files) == 1:
            inputs = {"clip_name": files[0]}
        if name in TYPED_LOADERS:
            inputs["type"] = str(self.clip_type)
        is_gguf = any(file.lower().endswith(GGUF_ENDING) for file in files)
        return _node(f"{name}GGUF" if is_gguf else name, "Text encoders", **inputs)

    @classmethod
    def choice_fields(cls, workflow: Mapping[str, Any], choices: Choices) -> dict[str, Sequence[str]]:
        found = super().choice_fields(workflow, choices)
        for field, loader in (("unet_name", "UNETLoader"), ("vae_name", "VAELoader")):
            offered = choices(loader, field)
            if offered is not None:
                packed = choices("UnetLoaderGGUF", field) if field == "unet_name" else None
                found[field] = [*offered, *(packed or ())]
        return found

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        if input_name in ("unet_name", "ckpt_name"):
            return input_name
        if node_id == VAE_NODE:
            return "vae_name"
        if node_id == TEXT_NODE:
            return "clip_type" if input_name == "type" else "clip_names"
        return super().field_at(node_id, input_name)


class NetworkFields(ModelFileFields):
    """Settings that only some families' networks have."""

    shift: Annotated[
        Shift | None,
        OfFamily("shift"),
        Field(description="Shift of the noise levels, for networks that are flows."),
    ] = LEFT_OUT
    guidance: Annotated[
        Guidance | None,
        OfFamily("guidance"),
        Field(description="The guidance that the network itself is given (Flux.1)."),
    ] = LEFT_OUT
    shift_by: Annotated[
        Literal["ModelSamplingAuraFlow", "ModelSamplingSD3"] | None,
        OfFamily("shift_by"),
        Field(description="The node that shifts the noise levels of the family."),
    ] = LEFT_OUT
    prompt_node: ClassVar[str] = PROMPT_NODE

    @model_validator(mode="after")
    def _can_shift(self) -> Self:
        if self.shift is not None and self.shift_by is None:
            raise PydanticCustomError(
                "shift",
                "must be left out: the noise levels of this family are not shifted so, or the family is unknown",
            )
        return self

    def make(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().make(workflow)
        loader = loader_in(prompt)
        if loader is None:
            return prompt
        if self.shift is not None and self.shift_by is not None:
            prompt[SHIFT_NODE] = _node(self.shift_by, "Shift of the noise levels", shift=self.shift)
            _relink(prompt, (loader, MODEL), SHIFT_NODE)
            prompt[SHIFT_NODE]["inputs"]["model"] = [loader, MODEL]
        if self.guidance is not None:
            prompt[GUIDANCE_NODE] = _node("FluxGuidance", "Guidance", guidance=self.guidance)
            _relink(prompt, (self.prompt_node, 0), GUIDANCE_NODE)
            prompt[GUIDANCE_NODE]["inputs"]["conditioning"] = [self.prompt_node, 0]
        return prompt

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        return input_name if node_id in (SHIFT_NODE, GUIDANCE_NODE) else super().field_at(node_id, input_name)


def loader_in(prompt: Mapping[str, Any]) -> str | None:
    """Return the node that loads the network, or None for a prompt that samples nothing."""
    loads = (name for name, node in prompt.items() if {"ckpt_name", "unet_name"} & node["inputs"].keys())
    return next(loads, None)


def reads_text_of_checkpoint(prompt: Mapping[str, Any]) -> bool:
    """Return True for a prompt with a node that is linked to the text encoders of its checkpoint."""
    link = [loader_in(prompt), CLIP]
    return any(value == link for node in prompt.values() for value in node["inputs"].values())


def _network_loader(file: str) -> dict[str, Any]:
    if file.lower().endswith(GGUF_ENDING):
        return _node("UnetLoaderGGUF", "Network", unet_name=file)
    return _node("UNETLoader", "Network", unet_name=file, weight_dtype="default")


def _node(class_type: str, title: str, **inputs: object) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs, "_meta": {"title": title}}


def _relink(prompt: Mapping[str, Any], output: tuple[str, int], node_id: str) -> None:
    """Link every input that an output feeds to the first output of another node."""
    for node in prompt.values():
        for name, value in node["inputs"].items():
            if value == list(output):
                node["inputs"][name] = [node_id, 0]
