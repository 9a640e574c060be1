"""Platform: the worker's environment: its autoscaler, its envelopes, its unit of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from darkroom.contract.graph.cost import UNIT_COST, Price, price_of
from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.contract.graph.work import PromptWork
from darkroom.worker.autoscaler.autoscaler import Autoscaler, Caller
from darkroom.worker.autoscaler.envelope import Envelopes
from darkroom.worker.engines.families import Family
from darkroom.worker.settings.workload import Workload
from darkroom.worker.storage.job import Job


class Background(Protocol):
    """Work of a platform's integration that is none of its autoscaler's."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Platform:
    """Parts for the worker's platform."""

    autoscaler: Autoscaler
    envelopes: Envelopes
    workload: Workload
    expects_envelopes: bool = False
    """True where every request comes through the platform, so that refusals are in its terms."""
    background: tuple[Background, ...] = ()

    def price_of(self, work: PromptWork, families: Mapping[ModelFile, Family]) -> Price:
        """Return the price of a prompt, of the same cost for every prompt where the workload is not computed."""
        if self.workload is not Workload.COMPUTED:
            return Price(UNIT_COST if self.workload is Workload.STATIC else 1.0)
        return price_of(work, families)

    def job_accepted(self, job: Job, caller: Caller | None) -> None:
        """Report an accepted job, also for a request that attached to a job, or to the stored result of one."""
        self.autoscaler.job_accepted(job.id, 0.0 if job.state.is_terminal else job.cost, caller)
        if job.state.is_terminal:
            self.autoscaler.job_ended(job.id, job.state)

    async def start(self) -> None:
        """Start the autoscaler. Raises OSError when a port is taken."""
        await self.autoscaler.start()
        for part in self.background:
            await part.start()

    async def close(self) -> None:
        await self.autoscaler.close()
        for part in self.background:
            await part.close()
