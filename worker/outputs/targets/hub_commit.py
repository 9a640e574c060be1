"""The child process that commits files to the Hugging Face hub: an order on standard input, its outcome on the output.

The outcome is `{"reason": ""}` for a commit, else why there is none: a fixed sentence, the hub's status, or the kind of
the failure. What the hub's library says itself is not passed on, because it may quote addresses with signatures.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from darkroom.worker.guard.network_errors import cause_of


def main() -> None:
    """Read the order, commit, and write the outcome."""
    sys.stdout.write(json.dumps({"reason": commit(json.load(sys.stdin))}))


def commit(order: dict[str, Any]) -> str:
    """Commit the files of an order; return why that failed, or an empty text."""
    from huggingface_hub import CommitOperationAdd, HfApi  # takes a while to import: not with this module
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    files = [CommitOperationAdd(path_in_repo=key, path_or_fileobj=path) for key, path in order["files"].items()]
    try:
        HfApi(endpoint=order["endpoint"], token=order["token"]).create_commit(
            order["repo"],
            files,
            commit_message=order["message"],
            repo_type=order["repo_type"],
            revision=order["revision"] or None,
        )
    except RevisionNotFoundError:
        return f"no branch {order['revision']}; make it first"
    except RepositoryNotFoundError:
        return "no such repository for this token; make it first, or give a token that may write to it"
    except HfHubHTTPError as error:
        status = error.response.status_code
        advice = "; the token may not write to it" if status in (401, 403) else ""
        return f"the hub answered with status {status}{advice}"
    except FileNotFoundError:
        return "a file is gone"
    except Exception as error:  # noqa: BLE001 - the library's kinds of network failures differ by version
        return cause_of(error)
    return ""


if __name__ == "__main__":
    main()
