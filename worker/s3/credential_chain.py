"""Sessions of botocore for the operator's credentials that are no fixed keys.

The chain is AWS's default one: AWS_ACCESS_KEY_ID and its kin, profiles (AWS_PROFILE, which may name a role to assume),
web identity (AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN), the container's and the instance's role. Its credentials
are refreshed before they expire, by a request that blocks: sign in a thread.
"""

from __future__ import annotations

from typing import Any


def chain_session() -> Any:
    """Return a session with the credentials that the chain finds. Blocking. Raises botocore's errors."""
    from botocore.exceptions import NoCredentialsError
    from botocore.session import Session

    session: Any = Session()
    if session.get_credentials() is None:
        raise NoCredentialsError()
    return session
