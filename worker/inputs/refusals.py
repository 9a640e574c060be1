"""Why an input could not be had: each says whose fault it is and names node, field and address."""

from __future__ import annotations

from worker.errors import InputRejected


class DownloadFailed(InputRejected):
    """The server did not give the file: no connection, an error status, too slow, too many redirects."""

    code = "download_failed"


class InputTooLarge(InputRejected):
    code = "input_too_large"


class InputBroken(InputRejected):
    """The file came and is not what the node takes, or the inline data does not decode."""

    code = "input_broken"
