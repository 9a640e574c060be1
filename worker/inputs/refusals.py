"""Why an input could not be had: each says whose fault it is and names node, field and address."""

from __future__ import annotations

import errno

from worker.errors import DiskLow, InputRejected

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
RETRY_AFTER_SECONDS = 30.0


def disk_low(what: str) -> DiskLow:
    return DiskLow(f"The disk has no room for {what}", retry_after_seconds=RETRY_AFTER_SECONDS)


class DownloadFailed(InputRejected):
    """The server did not give the file: no connection, an error status, too slow, too many redirects."""

    code = "download_failed"


class InputTooLarge(InputRejected):
    code = "input_too_large"


class InputBroken(InputRejected):
    """The file came and is not what the node takes, or the inline data does not decode."""

    code = "input_broken"
