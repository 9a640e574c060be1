"""Checks of a request's time limit and addresses, which workers would refuse only after the job was accepted."""

from __future__ import annotations

from collections.abc import Iterator

from darkroom.worker.api.schemas import GenerateInput
from darkroom.worker.errors import InputRejected, Problem, RequestRejected
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.outputs.targets.put import KEY
from darkroom.worker.settings.store_names import find_endpoint_problem


class RequestLimits:
    """The gateway's JOB_TIMEOUT and ALLOWED_PRIVATE_HOSTS, which are to be those of its workers.

    `s3_endpoint` is the operator's own store, whose address is not checked.
    """

    def __init__(self, job_timeout_seconds: float, addresses: AddressGuard, s3_endpoint: str = "") -> None:
        self._job_timeout_seconds = job_timeout_seconds
        self._addresses = addresses
        self._s3_endpoint = s3_endpoint

    def check(self, given: GenerateInput) -> None:
        """Raise RequestRejected with every problem."""
        problems = list(self._problems(given))
        if problems:
            raise RequestRejected(problems)

    def _problems(self, given: GenerateInput) -> Iterator[Problem]:
        allowed = self._job_timeout_seconds
        if given.timeout is not None and given.timeout > allowed:
            message = f"timeout: too long; got {given.timeout:g} s, expected at most {allowed:g} (JOB_TIMEOUT)"
            yield Problem(message, field="input.timeout", type="too_long", allowed={"maximum": allowed})
        endpoint = "" if given.s3 is None else given.s3.endpoint_url or ""
        bucket = "" if given.s3 is None else given.s3.bucket_name
        if wrong := find_endpoint_problem(endpoint, bucket):
            yield Problem(wrong, field="input.s3.endpoint_url", type="bucket_in_address")
        addresses = {
            "input.webhook.url": "" if given.webhook is None else given.webhook.url,
            "input.put.url": "" if given.put is None else given.put.url.replace(KEY, "key"),
            "input.s3.endpoint_url": "" if endpoint == self._s3_endpoint else endpoint,
        }
        for field, url in addresses.items():
            try:
                if url:
                    self._addresses.check_form(url)
            except InputRejected as error:
                yield Problem(error.message, field=field, type=error.code)
