"""Recorded computations of all networks: which are kept, and what becomes of one that cannot be recorded."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from darkroom.engine.diffusion.options import KNOWN_TIMESTEP, RECORDING_STEP
from darkroom.engine.errors import DeviceLost, OutOfMemory
from darkroom.engine.layers.attention import KERNEL_OPTION
from darkroom.engine.tuning.barred import BarredStrategies, error_in_words
from darkroom.engine.tuning.capture import CaptureFailed, NotNow, Recorder, Recording
from darkroom.engine.tuning.capture_rules import memory_of
from darkroom.engine.tuning.made_tensors import OwnTensors
from darkroom.engine.tuning.strategy import NETWORK_OPTIONS, PROMPTS_OF_ROWS, SamplingUse

MAX_GRAPHS = 8
MEMORY_SHARE = 0.15  # of the memory that is free when a graph is captured
MORE_MEMORY = 1.5  # times as much has to be free as when a device was full in a capture, which is then tried again
MAX_FAILED = 256  # kinds of work that are remembered to have no graph

OF_GRAPHS = ("cuda_graph", "step_graph", "vae_graph")  # strategies that are barred together: a capture has failed

# Options that differ from call to call and change nothing within a network.
HARMLESS_OPTIONS = frozenset({
    "uuids", "cond_or_uncond", "sigmas", "sample_sigmas", "wrappers", "callbacks", "easycache", "original_shape",
    "transformer_index", "block", "block_index", "activations_shape", "total_blocks", "block_type", KERNEL_OPTION,
    PROMPTS_OF_ROWS, KNOWN_TIMESTEP, RECORDING_STEP,
    *NETWORK_OPTIONS,
})  # fmt: skip

log = logging.getLogger(__name__)

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One graph: `inputs` are its static buffers, `out` is overwritten by each replay.

    `held` is other memory that it reads, besides the weights, whose addresses are in its key. `of_run` stands for
    tensors that it reads and strategies have made.
    """

    inputs: Inputs
    out: torch.Tensor
    replay: Callable[[], None]
    held: tuple[torch.Tensor, ...] = ()
    of_run: object = None


@dataclass(frozen=True, slots=True)
class _Failed:
    """Work without a graph: the memory that it needs, infinite where none is enough; whose tensors it would read."""

    num_bytes: float
    of_run: object


class Graphs:
    """Recorded graphs that share the memory of one recorder, least recently used first.

    What the rules of captures refuse is remembered by its key and computed as it is, wherever the weights are; what
    holds too much memory, until there is more of it. After a capture that failed all strategies of graphs are barred,
    in `barred`, and nothing is recorded any more.
    """

    def __init__(
        self, recorder: Recorder, max_graphs: int = MAX_GRAPHS, barred: BarredStrategies | None = None
    ) -> None:
        self._recorder = recorder
        self._max_graphs = max_graphs
        self._barred = BarredStrategies() if barred is None else barred
        self._graphs: OrderedDict[Hashable, Recorded] = OrderedDict()
        self._held_bytes = 0  # of all since there was none: they share memory, which is free once all are forgotten
        self._failed: dict[Hashable, _Failed] = {}
        self._identities: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def obstacle(self) -> str | None:
        """Reason that nothing is recorded any more, or None."""
        return next(filter(None, map(self._barred.reason, OF_GRAPHS)), None)

    def run(
        self, key: Hashable, inputs: Inputs, work: Callable[[Inputs], torch.Tensor], most_bytes: float,
        of_run: object = None, network: nn.Module | None = None, place: Hashable = None,
    ) -> torch.Tensor | None:  # fmt: skip
        """Return the result of `work` for the inputs by its graph; None where there can be none.

        `place` tells where the weights are that the work reads: a graph serves one place.
        `of_run` stands for tensors that strategies have made and the graph reads: with an `OwnTensors` the graph is
        forgotten when these are dropped, with another value the caller calls `forget_run`. Memory that the work reads
        is kept with the graph, but for that of the `network`, whose addresses are part of the key.
        Raises `DeviceLost` where a capture has failed and cannot be undone.
        """
        if network is not None:
            key = (self._identities.setdefault(network, object()), key)
        if self.obstacle is not None or (key in self._failed and self._failed[key].num_bytes > most_bytes):
            return None
        placed = key if place is None else (place, key)
        found = self._graphs.get(placed)
        if found is None:
            found = self._record(key, placed, inputs, work, most_bytes, of_run, network)
            if isinstance(of_run, OwnTensors):
                of_run.when_dropped(self, self.forget_run)
            if found is None:
                return None
        else:
            self._graphs.move_to_end(placed)
        for name, value in inputs.items():
            found.inputs[name].copy_(value)
        found.replay()
        return found.out.clone()

    def release(self) -> bool:
        """Forget all graphs and the memory that they hold; return True where there were some."""
        was_some = bool(self._graphs)
        self._forget_all()
        return was_some

    def forget_run(self, of_run: object) -> None:
        """Forget the graphs that read tensors of this run."""
        forgotten = [key for key, graph in self._graphs.items() if graph.of_run is of_run]
        if forgotten:
            self._recorder.wait()
        for key in forgotten:
            del self._graphs[key]
        for key in [key for key, failed in self._failed.items() if failed.of_run is of_run]:
            del self._failed[key]
        if not self._graphs:
            self._held_bytes = 0

    def _forget_all(self) -> None:
        if self._graphs:
            self._recorder.wait()
        self._graphs.clear()
        self._held_bytes = 0

    def _record(
        self, key: Hashable, placed: Hashable, inputs: Inputs, work: Callable[[Inputs], torch.Tensor],
        most_bytes: float, of_run: object, network: nn.Module | None,
    ) -> Recorded | None:  # fmt: skip
        buffers = {name: value.clone() for name, value in inputs.items()}
        try:
            made = Recording(*self._recorder.record(lambda: work(buffers)))
        except NotNow as error:
            log.debug("CUDA graph not captured now: reason=%s", error)
            return None
        except (CaptureFailed, DeviceLost) as error:
            self._barred.bar(OF_GRAPHS, error_in_words(error))
            if isinstance(error, DeviceLost):  # nothing can be waited for
                self._graphs.clear()
                raise
            self.release()
            return None
        except (torch.OutOfMemoryError, OutOfMemory) as error:
            self._give_up(key, of_run, error_in_words(error), most_bytes * MORE_MEMORY)
            return None
        except RuntimeError as error:  # refused by the rules, or it fails without a capture, too
            self._give_up(key, of_run, error_in_words(error), math.inf)
            return None
        if self._graphs and self._held_bytes + made.num_bytes > most_bytes:
            del made
            self._forget_all()  # what graphs share is free only without all of them: this one begins anew
            return self._record(key, placed, inputs, work, most_bytes, of_run, network)
        if made.num_bytes > most_bytes:
            reason = f"it holds {made.num_bytes} bytes, more than {most_bytes:.0f}"
            self._give_up(key, of_run, reason, made.num_bytes)
            return None
        while len(self._graphs) >= self._max_graphs:
            self._recorder.wait()
            self._graphs.popitem(last=False)
        self._held_bytes += made.num_bytes
        held = _besides(made.read, network)
        self._failed.pop(key, None)
        found = self._graphs[placed] = Recorded(buffers, made.out, made.replay, held, of_run)
        return found

    def _give_up(self, key: Hashable, of_run: object, reason: str, num_bytes: float) -> None:
        self._failed.pop(key, None)
        if len(self._failed) >= MAX_FAILED:
            del self._failed[next(iter(self._failed))]
        self._failed[key] = _Failed(num_bytes, of_run)
        log.warning("not captured as a CUDA graph: reason=%s", reason)


class Addresses:
    """Addresses of a module's weights and buffers, by which a graph reads them."""

    def __init__(self, module: nn.Module) -> None:
        self._tensors: list[tuple[Mapping[str, torch.Tensor | None], str]] = [
            (owned, name)
            for part in module.modules()
            for owned in (part._parameters, part._buffers)
            for name, tensor in owned.items()
            if tensor is not None
        ]

    def now(self) -> int:
        """Return a hash of the addresses; weights may have been moved since the last call.

        For each evaluation: it has to be fast.
        """
        tensors = [owned.get(name) for owned, name in self._tensors]
        return hash(tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors]))


def place_of_weights(module: nn.Module) -> int:
    """Return a hash of the addresses of a module's weights and buffers."""
    return Addresses(module).now()


def moving_weights(use: SamplingUse) -> str | None:
    """Return a reason where layers read weights at addresses that do not stay, or None."""
    if not use.patcher.weights.has_fixed_addresses:
        return "weights pass through buffers: they are kept in another type, packed, offloaded, or patched in each call"
    return None


def unfixable_weights(use: SamplingUse) -> str | None:
    """Return a reason where layers would read weights at addresses that do not stay, even cast directly; or None."""
    if not use.patcher.weights.can_have_fixed_addresses:
        return "weights are offloaded, or patched in each call"
    return None


def schedule_read(use: SamplingUse) -> str | None:
    """Return a reason where the network reads the run's noise levels, which are none of its inputs; or None."""
    return "the network depends on all noise levels" if getattr(use.network, "depends_on_schedule", False) else None


class PlacedWeights:
    """Weights of a module that one use reads: where they are now, for as long as they stay there."""

    def __init__(self, use: SamplingUse, module: nn.Module) -> None:
        self._use = use
        self._addresses = Addresses(module)
        self._fixed: int | None = None  # addresses of which it is known that they stay

    def place(self) -> int | None:
        """Return a hash of their addresses, None where layers do not read them there.

        Whether they do is asked anew only where they have been moved: it takes longer than an evaluation may wait.
        """
        now = self._addresses.now()
        if now != self._fixed:
            self._fixed = now if moving_weights(self._use) is None else None
        return self._fixed


@dataclass(frozen=True, slots=True)
class InputList:
    """An argument that is a list or tuple. `items` are numbers, texts or None, and `IN_BUFFER` for tensors."""

    kind: type
    items: tuple[object, ...]


IN_BUFFER: Final = "in a buffer"
PLAIN = (int, float, str, bool, type(None))


def parted(arguments: Mapping[str, object]) -> tuple[Inputs, dict[str, object]]:
    """Part a network's arguments into tensors and others. The first tensor of a list is called `name.0`."""
    tensors: Inputs = {}
    others: dict[str, object] = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, (list, tuple)) and type(value) in (list, tuple):  # named tuples are made otherwise
            items: dict[int, object] = dict(enumerate(value))
            tensors |= {f"{name}.{i}": item for i, item in items.items() if isinstance(item, torch.Tensor)}
            plain = (IN_BUFFER if isinstance(item, torch.Tensor) else item for item in items.values())
            others[name] = InputList(type(value), tuple(plain))
        else:
            others[name] = value
    return tensors, others


def joined(tensors: Inputs, others: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments that `parted` gave, with these tensors."""
    arguments: dict[str, object] = {}
    for name, value in others.items():
        if isinstance(value, InputList):
            items = enumerate(value.items)
            value = value.kind(tensors[f"{name}.{i}"] if item is IN_BUFFER else item for i, item in items)
        arguments[name] = value
    lists = tuple(f"{name}." for name, value in others.items() if isinstance(value, InputList))
    return arguments | {name: value for name, value in tensors.items() if not name.startswith(lists)}


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value.items)) if isinstance(value, InputList) else isinstance(value, PLAIN)


def graph_key(tensors: Inputs, fixed: Mapping[str, object], options: Mapping[str, object]) -> Hashable | None:
    """Return a key of calls that one graph serves; None for a call that reaches beyond its tensors."""
    if any(options.get(name) for name in NETWORK_OPTIONS):
        return None
    others = {**{name: value for name, value in options.items() if name not in HARMLESS_OPTIONS}, **fixed}
    if not all(map(_is_plain, others.values())):
        return None
    shapes = tuple((name, tuple(value.shape), value.stride(), value.dtype) for name, value in sorted(tensors.items()))
    return shapes, tuple(sorted((name, str(value)) for name, value in others.items()))


def _besides(read: tuple[torch.Tensor, ...], network: nn.Module | None) -> tuple[torch.Tensor, ...]:
    """Return the memory that is none of the network's, which may be moved and is known by its address."""
    own = set() if network is None else {memory_of(item) for item in (*network.parameters(), *network.buffers())}
    return tuple(item for item in read if memory_of(item) not in own)
