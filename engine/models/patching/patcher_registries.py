"""Registries that custom nodes use: callbacks, wrappers, attachments, additional models and injections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

CALL_ON_CLONE = "on_clone"
CALL_ON_PRE_RUN = "on_pre_run"
CALL_ON_CLEANUP = "on_cleanup"
CALL_ON_LOAD = "on_load_after"
CALL_ON_DETACH = "on_detach_after"
CALL_ON_PREPARE_STATE = "on_prepare_state"
CALL_ON_INJECT_MODEL = "on_inject_model"
CALL_ON_EJECT_MODEL = "on_eject_model"
LORA_METADATA = "lora_metadata"  # the attachment with the metadata of the file of the last LoRA, texts by name

Function = Callable[..., Any]
Registry = dict[str, dict[str | None, list[Function]]]  # type -> key -> functions


class Injection(Protocol):
    """ComfyUI's `PatcherInjection`."""

    @property
    def inject(self) -> Callable[[object], None]: ...

    @property
    def eject(self) -> Callable[[object], None]: ...


class PatcherRegistries(ABC):
    """Mixin of `ModulePatcher`. Names and meaning are ComfyUI's."""

    def set_up_registries(self) -> None:
        self.attachments: dict[str, Any] = {}
        self.additional_models: dict[str, list[PatcherRegistries]] = {}
        self.injections: dict[str, list[Injection]] = {}
        self.callbacks: Registry = {}
        self.wrappers: Registry = {}
        self.is_injected = False
        self.skip_injection = False

    def copy_registries_to(self, other: PatcherRegistries) -> None:
        other.attachments = {
            key: value.on_model_patcher_clone() if hasattr(value, "on_model_patcher_clone") else value
            for key, value in self.attachments.items()
        }
        other.additional_models = {
            key: [model.clone() for model in models] for key, models in self.additional_models.items()
        }
        other.injections = {key: list(injections) for key, injections in self.injections.items()}
        other.callbacks = _copied(self.callbacks)
        other.wrappers = _copied(self.wrappers)

    @abstractmethod
    def clone(self) -> PatcherRegistries: ...

    def add_callback(self, call_type: str, callback: Function) -> None:
        self.add_callback_with_key(call_type, None, callback)

    def add_callback_with_key(self, call_type: str, key: str | None, callback: Function) -> None:
        self.callbacks.setdefault(call_type, {}).setdefault(key, []).append(callback)

    def remove_callbacks_with_key(self, call_type: str, key: str | None) -> None:
        self.callbacks.get(call_type, {}).pop(key, None)

    def get_callbacks(self, call_type: str, key: str | None) -> list[Function]:
        return self.callbacks.get(call_type, {}).get(key, [])

    def get_all_callbacks(self, call_type: str) -> list[Function]:
        return [callback for entries in self.callbacks.get(call_type, {}).values() for callback in entries]

    def add_wrapper(self, wrapper_type: str, wrapper: Function) -> None:
        self.add_wrapper_with_key(wrapper_type, None, wrapper)

    def add_wrapper_with_key(self, wrapper_type: str, key: str | None, wrapper: Function) -> None:
        self.wrappers.setdefault(wrapper_type, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, wrapper_type: str, key: str | None) -> None:
        self.wrappers.get(wrapper_type, {}).pop(key, None)

    def get_wrappers(self, wrapper_type: str, key: str | None) -> list[Function]:
        return self.wrappers.get(wrapper_type, {}).get(key, [])

    def get_all_wrappers(self, wrapper_type: str) -> list[Function]:
        return [wrapper for entries in self.wrappers.get(wrapper_type, {}).values() for wrapper in entries]

    def set_attachments(self, key: str, attachment: object) -> None:
        self.attachments[key] = attachment

    def remove_attachments(self, key: str) -> None:
        self.attachments.pop(key, None)

    def get_attachment(self, key: str) -> object:
        return self.attachments.get(key)

    def set_additional_models(self, key: str, models: list[PatcherRegistries]) -> None:
        """Set models that are loaded to the device whenever this one is."""
        self.additional_models[key] = models

    def remove_additional_models(self, key: str) -> None:
        self.additional_models.pop(key, None)

    def get_additional_models_with_key(self, key: str) -> list[PatcherRegistries]:
        return self.additional_models.get(key, [])

    def get_additional_models(self) -> list[PatcherRegistries]:
        return [model for models in self.additional_models.values() for model in models]

    def get_nested_additional_models(self) -> list[PatcherRegistries]:
        """Return the additional models, theirs, and so on; each once, without this one."""
        found: list[PatcherRegistries] = []
        waiting = self.get_additional_models()
        while waiting:
            model = waiting.pop(0)
            if model is not self and model not in found:
                found.append(model)
                waiting.extend(model.get_additional_models())
        return found

    def set_injections(self, key: str, injections: list[Injection]) -> None:
        """Set changes that are made to the network while this clone is in use."""
        self.injections[key] = injections

    def get_injections(self, key: str) -> list[Injection] | None:
        return self.injections.get(key)

    def remove_injections(self, key: str) -> None:
        self.injections.pop(key, None)

    def inject_model(self) -> None:
        """Make the changes of the injections, unless they are made already."""
        if self.is_injected or self.skip_injection:
            return
        for injections in self.injections.values():
            for injection in injections:
                injection.inject(self)
                self.is_injected = True
        if self.is_injected:
            self._call(CALL_ON_INJECT_MODEL)

    def eject_model(self) -> None:
        """Undo the changes of the injections."""
        if not self.is_injected:
            return
        for injections in self.injections.values():
            for injection in injections:
                injection.eject(self)
        self.is_injected = False
        self._call(CALL_ON_EJECT_MODEL)

    @contextmanager
    def use_ejected(self, skip_and_inject_on_exit_only: bool = False) -> Iterator[None]:
        """Undo the injections while the context is open.

        With `skip_and_inject_on_exit_only` nothing can be injected meanwhile, and they are made at its end in any case.
        """
        was_injected, skipped = self.is_injected, self.skip_injection
        self.eject_model()
        self.skip_injection = skipped or skip_and_inject_on_exit_only
        try:
            yield
        finally:
            self.skip_injection = skipped
            if skip_and_inject_on_exit_only or (was_injected and not self.skip_injection):
                self.inject_model()

    def pre_run(self) -> None:
        self._call(CALL_ON_PRE_RUN)

    def prepare_state(self, timestep: object) -> None:
        self._call(CALL_ON_PREPARE_STATE, timestep)

    def cleanup(self) -> None:
        self._call(CALL_ON_CLEANUP)

    def _call(self, call_type: str, *arguments: object) -> None:
        for callback in self.get_all_callbacks(call_type):
            callback(self, *arguments)


def _copied(registry: Mapping[str, Mapping[str | None, Sequence[Function]]]) -> Registry:
    return {kind: {key: list(items) for key, items in by_key.items()} for kind, by_key in registry.items()}
