"""Settings of jobs: the queue, their stages, how long their data is kept, and limits on prompts and callers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field, model_validator

from darkroom.worker.settings.priority import MAX_PRIORITY, MIN_PRIORITY
from darkroom.worker.settings.section import (
    GIB,
    MIB,
    CommaList,
    NaturalInt,
    PositiveInt,
    PositiveSeconds,
    Seconds,
    Section,
    env,
    split_commas,
)

PACK: Final = "pack:"


def _check_checkpoints(value: str) -> str:
    if value.lower() in ("folder", "s3"):
        return value.lower()
    if "/" not in value:
        raise ValueError(f"expected folder, s3, or a folder's path with a slash, as in ./{value}")
    return value


class QueueLimits(Section):
    """Limits of the queue. `max_wait_seconds` None: no limit on the wait. Floors are bytes of free disk and memory."""

    max_queued: Annotated[PositiveInt, env("MAX_QUEUE_SIZE")] = 100
    """Jobs that may wait; more get 503."""

    max_wait_seconds: Annotated[PositiveSeconds | None, env("MAX_QUEUE_TIME")] = None
    """Longest expected wait of a job in seconds, at a worker or a gateway, else 429. Empty: no limit; 10 under Vast."""

    job_timeout_seconds: Annotated[PositiveSeconds, env("JOB_TIMEOUT")] = 3600.0
    """Seconds a job may run, from the start of its execution."""

    sync_grace_seconds: Annotated[Seconds, env("SYNC_GRACE_SECONDS")] = 30.0
    """Seconds a job of `/generate/sync` goes on after its client left."""

    min_free_disk_bytes: Annotated[NaturalInt, env("MIN_FREE_DISK_BYTES")] = 256 * MIB
    """With less free disk new jobs get 503."""

    min_free_memory_bytes: Annotated[NaturalInt, env("MIN_FREE_MEMORY_BYTES")] = 256 * MIB
    """With less free memory new jobs get 503."""


class PipelineSettings(Section):
    """Concurrency of the stages beside the engine, and the end of the front."""

    num_fetching: Annotated[PositiveInt, env("PREPROCESS_WORKERS")] = 8
    """Jobs whose inputs are fetched at once."""

    num_delivering: Annotated[PositiveInt, env("POSTPROCESS_WORKERS")] = 8
    """Jobs whose outputs are uploaded at once, to each store."""

    drain_seconds: Annotated[Seconds, env("DRAIN_TIMEOUT")] = 30.0
    """Seconds that running jobs get to end when the worker is stopped."""


class CheckpointSettings(Section):
    """Checkpoints of running jobs."""

    seconds: Annotated[Seconds, env("CHECKPOINT_SECONDS")] = 0.0
    """Seconds of sampling between two checkpoints of a job, from which it goes on after the loss of its engine or
    worker ([checkpoints](fleet.md#checkpoints)); 0: none."""

    store: Annotated[str, AfterValidator(_check_checkpoints), env("CHECKPOINT_STORE", "CHECKPOINT_DIRECTORY")] = (
        "folder"
    )
    """`folder`: checkpoints stay in `checkpoints` of `STATE_DIRECTORY`. A path: a folder that workers share, who go on
    with each other's jobs. `s3`: they are copied to the bucket of the outputs too, below `darkroom-checkpoints/`,
    where any worker finds them."""

    preempt_priority: Annotated[
        Annotated[int, Field(ge=MIN_PRIORITY + 1, le=MAX_PRIORITY)] | None, env("PREEMPT_PRIORITY")
    ] = None
    """Priority from which a job takes the engine from one of lower priority at its next sampling step; that one goes on
    from its checkpoint later. Empty: none does."""

    @property
    def directory(self) -> Path | None:
        """Folder of the operator's for checkpoints; None for one in the state directory."""
        return None if self.store in ("folder", "s3") else Path(self.store)

    @property
    def are_copied(self) -> bool:
        """True if checkpoints are copied to the bucket of the outputs."""
        return self.store == "s3"


class RetentionConfig(Section):
    """Age and size limits of expired data. Bytes are the sum over all files of a kind."""

    result_ttl_seconds: Annotated[PositiveSeconds, env("RESULT_TTL", "API_CACHE_TTL")] = 21600.0
    """Seconds for which a result is kept."""

    output_max_bytes: Annotated[PositiveInt, env("OUTPUT_MAX_BYTES")] = 20 * GIB
    """Files of ended jobs are kept up to this sum, the newest longest; fetched inputs that no job needs any more are
    kept up to a quarter of it besides, and up to `RESULT_TTL`."""

    dead_webhook_ttl_seconds: PositiveSeconds = 604800.0
    """Seconds that a webhook which could not be delivered is kept for redelivery: a week, so that a receiver that
    broke over a holiday gets it."""

    @property
    def input_max_bytes(self) -> int:
        """Largest sum of the fetched inputs that no job needs any more."""
        return self.output_max_bytes // 4


class PromptLimits(Section):
    """Limits of a prompt. 0 nodes, links or bytes: no limit; None: no limit."""

    whole: ClassVar[str] = "PROMPT_LIMITS"
    """Limits of a workflow, `NAME=NUMBER` by commas: `PROMPT_LIMITS=steps=100,pixels=4194304,frames=121`
    ([limits](security.md#limits)). Each has a variable of its own, too, which wins."""

    max_nodes: Annotated[NaturalInt, env("PROMPT_MAX_NODES", key="nodes")] = 50_000
    """Its nodes; 0: no limit, as for the next two."""

    max_links: Annotated[NaturalInt, env("PROMPT_MAX_LINKS", key="links")] = 250_000
    """Links between its nodes."""

    max_bytes: Annotated[NaturalInt, env("PROMPT_MAX_BYTES", key="bytes")] = 64 * MIB
    """Its texts and structure; files in base64 do not count."""

    max_pixels: Annotated[PositiveInt | None, env("PROMPT_MAX_PIXELS", key="pixels")] = None
    """Width times height of any image or latent that a workflow makes. Empty: no limit, as for the next six."""

    max_batch: Annotated[PositiveInt | None, env("PROMPT_MAX_BATCH", key="batch")] = None
    """Images in one batch."""

    max_frames: Annotated[PositiveInt | None, env("PROMPT_MAX_FRAMES", key="frames")] = None
    """Frames of a video."""

    max_video_pixels: Annotated[PositiveInt | None, env("PROMPT_MAX_VIDEO_PIXELS", key="video_pixels")] = None
    """Width times height times frames of a video."""

    max_seconds: Annotated[PositiveSeconds | None, env("PROMPT_MAX_SECONDS", key="seconds")] = None
    """Seconds of audio, and of a video: its frames by the frame rate of the node that saves them."""

    max_steps: Annotated[PositiveInt | None, env("PROMPT_MAX_STEPS", key="steps")] = None
    """Steps of all samplers of a workflow together, in a loop those of all its iterations."""

    max_output_bytes: Annotated[PositiveInt | None, env("PROMPT_MAX_OUTPUT_BYTES", key="output_bytes")] = None
    """All outputs of a job together."""

    @property
    def bounds_work(self) -> bool:
        """True with any limit on the work that a prompt requires of the engine."""
        limits = (self.max_pixels, self.max_batch, self.max_frames, self.max_video_pixels, self.max_steps)
        return self.max_seconds is not None or any(limit is not None for limit in limits)


class NodePolicyConfig(Section):
    """Patterns of node classes and packs. Empty lists: every node may be used."""

    allowed: Annotated[CommaList[str], env("ALLOWED_NODES")] = ()
    """Comma list of node classes that workflows may use, as patterns (`Load*`), and of packs as `pack:NAME`;
    `pack:built-in` means the engine's own. Empty: all."""

    denied: Annotated[CommaList[str], env("DENIED_NODES")] = ()
    """Comma list of node classes that no workflow may use, and of packs as `pack:NAME`; takes precedence over the
    allowed ones."""

    allowed_packs: Annotated[CommaList[str], env("ALLOWED_NODE_PACKS", part_of="ALLOWED_NODES")] = ()
    """The packs alone."""

    denied_packs: Annotated[CommaList[str], env("DENIED_NODE_PACKS", part_of="DENIED_NODES")] = ()
    """The packs alone."""

    @model_validator(mode="before")
    @classmethod
    def _take_packs_out(cls, given: Any) -> Any:
        """Move what begins with `pack:` from the lists of nodes to those of packs."""
        if not isinstance(given, dict):
            return given
        taken = dict(given)
        for nodes, packs in (("ALLOWED_NODES", "ALLOWED_NODE_PACKS"), ("DENIED_NODES", "DENIED_NODE_PACKS")):
            words = split_commas(taken.get(nodes, ()))
            named = [word.removeprefix(PACK) for word in words if word.startswith(PACK)]
            if named:
                taken[nodes] = tuple(word for word in words if not word.startswith(PACK))
                taken[packs] = (*split_commas(taken.get(packs, ())), *named)
        return taken


class CallerLimits(Section):
    """Limits for each API key, or address where there is none; operators have none. None: no limit."""

    whole: ClassVar[str] = "CALLER_LIMITS"
    """Limits of one API key, or of one address without a key, `NAME=NUMBER` by commas:
    `CALLER_LIMITS=requests_per_second=5,jobs_waiting=20`. Operators have none. Each has a variable of its own, too,
    which wins."""

    requests_per_second: Annotated[
        Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] | None,
        env("CALLER_MAX_REQUESTS_PER_SECOND", key="requests_per_second"),
    ] = None
    """Its requests a second. Empty: no limit, as for the next four."""

    jobs_waiting: Annotated[PositiveInt | None, env("CALLER_MAX_JOBS_WAITING", key="jobs_waiting")] = None
    """Its jobs that wait; more get 429."""

    jobs_running: Annotated[PositiveInt | None, env("CALLER_MAX_JOBS_RUNNING", key="jobs_running")] = None
    """Its jobs at the engines; more wait their turn, and callers take turns."""

    pixel_steps_per_minute: Annotated[
        PositiveInt | None, env("CALLER_MAX_PIXEL_STEPS_PER_MINUTE", key="pixel_steps_per_minute")
    ] = None
    """Pixels times steps of its samplers in a minute, in a loop those of all its iterations."""

    stored_bytes: Annotated[PositiveInt | None, env("CALLER_MAX_STORED_BYTES", key="stored_bytes")] = None
    """Bytes of everything that is stored for it: outputs, inputs of its jobs, assets ([limits](security.md#limits))."""
