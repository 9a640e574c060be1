"""Nodes that reduce the evaluations of MODEL: cached steps."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion import step_cache as caching
from darkroom.engine.diffusion.wrappers import CALC_COND_BATCH, DIFFUSION_MODEL, OUTER_SAMPLE, PREDICT_NOISE
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Flag, Float

Threshold = Annotated[float, Float(min=0.0, max=3.0, step=0.01)]
Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]


def _with_cache(model: Model, settings: caching.CacheSettings) -> Model:
    patched = model.clone()
    patched.model_options["transformer_options"][caching.KEY] = settings
    patched.add_wrapper_with_key(OUTER_SAMPLE, settings.name.lower(), caching.wrap_run)
    return patched


@node(
    "EasyCache",
    category="advanced/debug",
    python_module="comfy_extras.nodes_easycache",
    experimental=True,
    advanced=("reuse_threshold", "start_percent", "end_percent", "verbose"),
)
def easy_cache(
    context: NodeContext,
    *,
    model: MODEL,
    reuse_threshold: Threshold = 0.2,
    start_percent: Percent = 0.15,
    end_percent: Percent = 0.95,
    verbose: Annotated[bool, Flag()] = False,
) -> MODEL:
    """Native EasyCache implementation."""
    settings = caching.CacheSettings("EasyCache", reuse_threshold, start_percent, end_percent, verbose)
    patched = _with_cache(model, settings)
    patched.add_wrapper_with_key(CALC_COND_BATCH, "easycache", caching.wrap_batch)
    patched.add_wrapper_with_key(DIFFUSION_MODEL, "easycache", caching.wrap_network)
    return patched


@node(
    "LazyCache",
    category="advanced/debug",
    python_module="comfy_extras.nodes_easycache",
    experimental=True,
    advanced=("reuse_threshold", "start_percent", "end_percent", "verbose"),
)
def lazy_cache(
    context: NodeContext,
    *,
    model: MODEL,
    reuse_threshold: Threshold = 0.2,
    start_percent: Percent = 0.15,
    end_percent: Percent = 0.95,
    verbose: Annotated[bool, Flag()] = False,
) -> MODEL:
    """Apply the rule of EasyCache to the whole guided prediction, for any network."""
    settings = caching.CacheSettings("LazyCache", reuse_threshold, start_percent, end_percent, verbose)
    patched = _with_cache(model, settings)
    patched.add_wrapper_with_key(PREDICT_NOISE, "lazycache", caching.wrap_prediction)
    return patched


NODES = (easy_cache, lazy_cache)
