"""CLIP: a text encoder with its tokenizer. Clones share the weights; each has its own last layer and options."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.options import OptionDict
from darkroom.engine.models.network_value import NetworkValue
from darkroom.engine.models.patching.hooks import HookGroup
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.weight_handle import Network, WeightHandle
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.chunk_tokens import Chunks

Tokens = Any  # what `tokenize` gives, or a pack's own form of it
Entries = list[list[Any]]  # CONDITIONING: pairs of tokens [B, T, D] and a dictionary


def _options(encoded: Encoded) -> dict[str, object]:
    """Return the options of a conditioning on the CPU: the pooled output (None without one) and further ones."""
    pooled = None if encoded.pooled is None else encoded.pooled.to("cpu")
    further = {
        name: item.to("cpu") if isinstance(item, torch.Tensor) else item for name, item in encoded.options.items()
    }
    return {"pooled_output": pooled, **further}


class TextEncoderPatcher(ModulePatcher):
    """The patcher of a CLIP: hooks patch its weights and add no options of sampling."""

    is_clip = True


class Clip(NetworkValue):
    """CLIP with ComfyUI's members. `patcher` carries weight patches and device, as a MODEL does."""

    patcher_class = TextEncoderPatcher

    def __init__(self, weights: WeightHandle, tokenizer: Any) -> None:
        super().__init__(weights)
        self.tokenizer = tokenizer
        self.layer_idx: int | None = None
        self.tokenizer_options: dict[str, Any] = {}
        self.use_clip_schedule = False
        self.apply_hooks_to_conds: Any = None

    @property
    def cond_stage_model(self) -> Network:
        """The network itself (`engine/text/clip_encoding.py::TextEncoderSet`)."""
        return self.patcher.model

    def clone(self) -> Clip:
        other = self.__class__.__new__(self.__class__)
        other.patcher = self.patcher.clone()
        other.tokenizer = self.tokenizer
        other.layer_idx = self.layer_idx
        other.tokenizer_options = dict(self.tokenizer_options)
        other.use_clip_schedule = self.use_clip_schedule
        other.apply_hooks_to_conds = self.apply_hooks_to_conds
        return other

    def add_patches(
        self, patches: Any, strength_patch: float = 1.0, strength_model: float = 1.0, source: Hashable = None
    ) -> list[Any]:
        return self.patcher.add_patches(patches, strength_patch, strength_model, source)

    def load_model(self, tokens: object = None) -> ModulePatcher:
        """Load the weights to their device and return the patcher."""
        self.patcher.load()
        return self.patcher

    def load_sd(self, sd: Mapping[str, torch.Tensor], full_model: bool = False) -> Any:
        """Load weights by name into the text encoder, or into the whole set; return the names that do not fit."""
        if full_model:
            return self.cond_stage_model.load_state_dict(dict(sd), strict=False)
        return self.cond_stage_model.load_sd(sd)

    def state_dict_for_saving(self) -> dict[str, torch.Tensor]:
        """Return all weights by name, with this clone's patches."""
        return {**self.patcher.model_state_dict_for_saving(), **self.tokenizer.state_dict()}

    def get_key_patches(self) -> dict[str, list[object]]:
        return self.patcher.get_key_patches()

    def set_tokenizer_option(self, option_name: str, value: object) -> None:
        self.tokenizer_options[option_name] = value

    def clip_layer(self, layer_idx: int | None) -> None:
        """Select the layer whose output is the conditioning: -1 for the last, -2 for the one before it, and so on."""
        self.layer_idx = layer_idx

    def tokenize(self, text: str, return_word_ids: bool = False, **kwargs: Any) -> Chunks:
        """Return `{"l": [[(token, weight), ...77], ...]}`, chunks by the slot of their encoder."""
        options = {**self.tokenizer_options, **kwargs.pop("tokenizer_options", {})}
        chunks: Chunks = self.tokenizer.tokenize_with_weights(
            text, return_word_ids, tokenizer_options=options, **kwargs
        )
        return chunks

    @torch.no_grad()
    def encode_from_tokens(self, tokens: Tokens, return_pooled: bool | str = False, return_dict: bool = False) -> Any:
        """Encode tokens as `[1, T, D]`, float32 on the CPU; with the pooled output `[1, D]`, or as a dictionary.

        `return_pooled="unprojected"` gives the pooled output before the text projection.
        """
        with self.patcher.in_use(working_bytes=self.cond_stage_model.working_bytes(tokens)) as encoder:
            self.patcher.apply_hooks(self.patcher.forced_hooks)
            encoded: Encoded = encoder.encode_weighted(
                tokens, layer_idx=self.layer_idx, project_pooled=return_pooled != "unprojected"
            )
        cond = encoded.cond.to("cpu")
        options = _options(encoded)
        if return_dict:
            return self.add_hooks_to_dict({"cond": cond, **options})
        return (cond, options["pooled_output"]) if return_pooled else cond

    def encode_from_tokens_scheduled(
        self, tokens: Tokens, unprojected: bool = False, add_dict: OptionDict | None = None, show_pbar: bool = True
    ) -> Entries:
        """Return CONDITIONING of the tokens with the entries of `add_dict`.

        There is one entry, or one for each range of hook strengths.
        """
        if self.patcher.forced_hooks is not None and self.use_clip_schedule:
            return self._encode_by_schedule(tokens, self.patcher.forced_hooks, unprojected, add_dict or {})
        options = self.encode_from_tokens(
            tokens, return_pooled="unprojected" if unprojected else True, return_dict=True
        )
        cond = options.pop("cond")
        return [[cond, {**options, **(add_dict or {})}]]

    @torch.no_grad()
    def _encode_by_schedule(self, tokens: Tokens, hooks: HookGroup, unprojected: bool, add_dict: OptionDict) -> Entries:
        """Return one entry per percent range of constant hook strengths, within the range in `add_dict`."""
        entries: Entries = []
        hooks.reset()
        with self.patcher.in_use(working_bytes=self.cond_stage_model.working_bytes(tokens)) as encoder:
            for (start, end), keyframes in hooks.get_hooks_for_clip_schedule():
                if end < add_dict.get("start_percent", 0.0) or start > add_dict.get("end_percent", 1.0):
                    continue
                for hook, keyframe in keyframes:
                    hook.hook_keyframe.set_current(keyframe)
                self.patcher.patch_hooks(hooks)
                encoded: Encoded = encoder.encode_weighted(
                    tokens, layer_idx=self.layer_idx, project_pooled=not unprojected
                )
                options = {**_options(encoded), "clip_start_percent": start, "clip_end_percent": end}
                entries.append([encoded.cond.to("cpu"), self.add_hooks_to_dict({**options, **add_dict})])
        hooks.reset()
        return entries

    @torch.no_grad()
    def written(self, tokens: Tokens, draw: Callable[[torch.Tensor], int], *, most: int) -> Iterator[int]:
        """Yield at most so many tokens that follow the given ones, up to one that ends a text, which is the last.

        `draw` chooses a token by the scores [1, V]. Raises ValueError for an encoder that writes none.
        """
        slot, chunks = next(iter(tokens.items()))
        with self.patcher.in_use() as network:
            encoder = network.encoders().get(slot)
            if not getattr(getattr(encoder, "encoding", None), "writes_text", False):
                names = ", ".join(repr(item.encoding.key) for item in network.encoders().values())
                raise ValueError(
                    f"clip: this text encoder writes no text; got {names}, expected a language model that predicts "
                    "tokens with the table of its embedding, such as Qwen3-VL 4B"
                )
            self.patcher.apply_hooks(self.patcher.forced_hooks)
            following = encoder.written([token for token, *_ in chunks[0]])
            scores = next(following)
            for _ in range(most):
                token = draw(scores)
                yield token
                if token in encoder.end_tokens:
                    return
                scores = following.send(token)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens, without marks unless `skip_special_tokens` is False."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens)
        return text

    def encode(self, text: str) -> torch.Tensor:
        cond: torch.Tensor = self.encode_from_tokens(self.tokenize(text))
        return cond

    def add_hooks_to_dict(self, pooled_dict: dict[str, object]) -> dict[str, object]:
        if self.apply_hooks_to_conds:
            pooled_dict["hooks"] = self.apply_hooks_to_conds
        return pooled_dict
