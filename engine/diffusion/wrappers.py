"""Functions that custom nodes put around a step of sampling, and the option dictionaries that carry them.

ComfyUI's model options are nested dictionaries: `{"transformer_options": {"patches": {...}, "wrappers": {kind: {key:
[function, ...]}}, ...}, "sampler_cfg_function": ..., ...}`. They stay dictionaries here because custom nodes read and
write them under those names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from darkroom.engine.diffusion.options import OptionDict, Options

OUTER_SAMPLE = "outer_sample"
PREPARE_SAMPLING = "prepare_sampling"
SAMPLER_SAMPLE = "sampler_sample"
PREDICT_NOISE = "predict_noise"
CALC_COND_BATCH = "calc_cond_batch"
APPLY_MODEL = "apply_model"
DIFFUSION_MODEL = "diffusion_model"


Function = Callable[..., Any]  # of a pack: it knows its parameters


class WrapperExecutor:
    """First argument of a wrapper: calling it calls the next inner one.

    `class_obj` is the object whose method is wrapped, or None.
    """

    def __init__(
        self,
        original: Callable[..., object],
        class_obj: object,
        wrappers: Sequence[Callable[..., object]],
        idx: int = 0,
    ) -> None:
        self.original = original
        self.class_obj = class_obj
        self.wrappers = list(wrappers)
        self.idx = idx
        self.is_last = idx == len(self.wrappers)

    @classmethod
    def new_executor(
        cls, original: Callable[..., object], wrappers: Sequence[Callable[..., object]], idx: int = 0
    ) -> WrapperExecutor:
        return cls(original, None, wrappers, idx)

    @classmethod
    def new_class_executor(
        cls, original: Callable[..., object], class_obj: object, wrappers: Sequence[Callable[..., object]], idx: int = 0
    ) -> WrapperExecutor:
        return cls(original, class_obj, wrappers, idx)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return WrapperExecutor(self.original, self.class_obj, self.wrappers, self.idx + 1).execute(*args, **kwargs)

    def execute(self, *args: object, **kwargs: object) -> object:
        if self.is_last:
            return self.original(*args, **kwargs)
        return self.wrappers[self.idx](self, *args, **kwargs)


def wrappers_of(kind: str, transformer_options: Options) -> list[Function]:
    """Return the wrappers of one kind, in the order in which their keys were added."""
    by_key: Mapping[str, Sequence[Callable[..., Any]]] = transformer_options.get("wrappers", {}).get(kind, {})
    return [wrapper for wrappers in by_key.values() for wrapper in wrappers]


def callbacks_of(kind: str, transformer_options: Options) -> list[Function]:
    by_key: Mapping[str, Sequence[Callable[..., Any]]] = transformer_options.get("callbacks", {}).get(kind, {})
    return [callback for callbacks in by_key.values() for callback in callbacks]


def wrapped(kind: str, options: Options, function: Function, owner: object = None) -> Function:
    """Wrap `function` in the wrappers of that kind; return `function` itself where there are none."""
    wrappers = wrappers_of(kind, options)
    if not wrappers:
        return function
    return WrapperExecutor(function, owner, wrappers).execute


def copy_options(options: Options) -> OptionDict:
    """Copy nested dictionaries and lists, so that changes leave the original alone. Values are shared."""
    copied: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, dict):
            copied[key] = copy_options(value)
        elif isinstance(value, list):
            copied[key] = list(value)
        else:
            copied[key] = value
    return copied


def with_option_for_run(name: str, make: Callable[[Callable[[], float]], object]) -> Callable[..., object]:
    """Return an `OUTER_SAMPLE` wrapper by which the transformer options have an object while the run lasts.

    `make` makes it for each run, of a function that returns the bytes that are free on the model's device; None is for
    a run without one. Conditions with hooks are left alone: those change the weights from step to step.
    """

    def run(executor: Any, *args: object, **kwargs: object) -> object:
        guider = executor.class_obj
        has_hooks = any(condition.get("hooks") is not None for side in guider.conds.values() for condition in side)
        made = None if has_hooks else make(guider.model_patcher.free_bytes)
        if made is None:
            return executor(*args, **kwargs)
        options = guider.model_options
        guider.model_options = copy_options(options)
        guider.model_options["transformer_options"][name] = made
        try:
            return executor(*args, **kwargs)
        finally:
            guider.model_options = options

    return run


def merge_options(first: Options, second: Options) -> OptionDict:
    """Merge nested options: dictionaries merge, lists join (first's entries first), other values are second's."""
    merged = copy_options(first)
    for key, value in second.items():
        if isinstance(value, dict):
            merged[key] = merge_options(merged.get(key, {}), value)
        elif isinstance(value, list):
            merged[key] = [*merged.get(key, []), *value]
        else:
            merged[key] = value
    return merged
