"""InfiniteTalk among a MODEL's options: functions of Wan's blocks, and a wrapper of the sampling run.

`B` batch, `T` tokens, `D` hidden size, `n` tokens of a latent frame, `f` latent frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from darkroom.engine.diffusion.latent_window import WINDOW, LatentWindow
from darkroom.engine.diffusion.wrappers import APPLY_MODEL, copy_options
from darkroom.engine.families.wan.infinite_talk import speaker_places
from darkroom.engine.families.wan.transformer import GRID
from darkroom.engine.models.patching.module_patcher import ModulePatcher

PLACES = "speaker_places"  # transformer option between the functions of one block
KEY = "infinite_talk"


class SpeakersPatch:
    """An `attn1_patch` that finds which of two speakers each token belongs to. `masks` are [2, n]."""

    def __init__(self, masks: torch.Tensor) -> None:
        self._masks = masks

    def __call__(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Leave the places of tokens between the speakers for the block's other function."""
        self._masks = self._masks.to(inputs["q"].device)  # once: later blocks and steps find them there
        inputs["transformer_options"][PLACES] = speaker_places(inputs["q"], inputs["k"], self._masks)
        attended: torch.Tensor = inputs["x"]
        return attended

    def __deepcopy__(self, memo: object) -> SpeakersPatch:
        """Return itself: clones of a MODEL share the masks."""
        return self


class SpeechPatch:
    """An `attn2_patch` with a network of its own that adds speech. `windows` are [S, F, 5, L, A], float32."""

    def __init__(self, talk: ModulePatcher, windows: torch.Tensor, scale: float) -> None:
        self._talk, self._windows, self._scale = talk, windows, scale
        self._speech: torch.Tensor | None = None  # [f, N, token_dim]

    def __call__(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the tokens [B, T, D] behind cross-attention with speech added.

        Raises ValueError for a video that is shorter than the speech.
        """
        x: torch.Tensor = inputs["x"]
        options = inputs["transformer_options"]
        speech = self._of_window(self._tokens(x), options.get(WINDOW))
        count = speech.shape[0] * options[GRID][1] * options[GRID][2]
        if x.shape[1] < count:
            raise ValueError(
                f"latent_image: it is shorter than the audio of WanInfiniteTalkToVideo; got {options[GRID][0]} latent "
                f"frames, expected {speech.shape[0]}"
            )
        places: torch.Tensor | None = options.pop(PLACES, None)
        video = x[:, :count]
        places = None if places is None else places[:, :count]
        added = self._talk.model.added(options["block_index"], video, speech, places)
        return torch.cat([video + added * self._scale, x[:, count:]], dim=1)

    def __deepcopy__(self, memo: object) -> SpeechPatch:
        """Return itself: clones of a MODEL share the network."""
        return self

    def to(self, target: object) -> SpeechPatch:
        """Forget the tokens of speech on another device."""
        if not isinstance(target, torch.dtype):
            self._speech = None
        return self

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device."""
        return [self._talk]

    def _tokens(self, x: torch.Tensor) -> torch.Tensor:
        if self._speech is None:
            self._speech = self._talk.model.speech_tokens(self._windows.to(x))
        return self._speech

    def _of_window(self, speech: torch.Tensor, window: LatentWindow | None) -> torch.Tensor:
        """Return the speech of the latent frames of a context window; all of it without one."""
        if window is None:
            return speech
        last = speech.shape[0] - 1
        return torch.stack([speech[min(place, last)] for place in window.places])


def talking_run(earlier: torch.Tensor, *, goes_on: bool) -> Callable[..., Any]:
    """Return a wrapper of a sampling run that gives each step the first latent frames [1, C, f, h, w] without noise.

    With `goes_on` they stand in the result too.
    """

    def run(executor: Any, *args: Any, **kwargs: Any) -> Any:
        guider = executor.class_obj
        options = guider.model_options
        known = guider.model_patcher.model.process_latent_in(earlier)

        def with_known(apply: Any, x: torch.Tensor, *inner: Any, **more: Any) -> Any:
            nonlocal known
            known = known.to(x.device)  # once: later steps find it there
            given = known[:, :, : x.shape[2]].to(x).expand(x.shape[0], -1, -1, -1, -1)
            return apply(torch.cat([given, x[:, :, given.shape[2] :]], dim=2), *inner, **more)

        guider.model_options = copy_options(options)
        wrappers = guider.model_options["transformer_options"].setdefault("wrappers", {}).setdefault(APPLY_MODEL, {})
        wrappers[KEY] = [with_known]
        try:
            result = executor(*args, **kwargs)
        finally:
            guider.model_options = options
        if not goes_on:
            return result
        given = earlier.to(result).expand(result.shape[0], -1, -1, -1, -1)
        return torch.cat([given, result[:, :, given.shape[2] :]], dim=2)

    return run
