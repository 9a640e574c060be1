"""Sessions of botocore for the operator's credentials that are no fixed keys: profile, chain, role.

The chain is AWS's default one: AWS_ACCESS_KEY_ID and its kin, profiles, web identity (AWS_WEB_IDENTITY_TOKEN_FILE and
AWS_ROLE_ARN), the container's and the instance's role. Its credentials are refreshed before they expire, by a request
that blocks: sign in a thread.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from darkroom.worker.s3.targets import S3Target

DEFAULT_REGION = "us-east-1"
SESSION_NAME = "darkroom"


def chain_session(target: S3Target) -> Any:
    """Return a session with the credentials that a target's chain finds. Blocking. Raises botocore's errors."""
    from botocore.exceptions import NoCredentialsError
    from botocore.session import Session

    chain = target.chain
    assert chain is not None
    session: Any = Session(profile=chain.profile or None)
    if target.access_key_id:  # fixed keys that may assume the role
        session.set_credentials(
            target.access_key_id,
            target.secret_access_key.get_secret_value(),
            target.session_token.get_secret_value() or None,
        )
    found = session.get_credentials()
    if found is None:
        raise NoCredentialsError()
    if chain.role_arn:
        session._credentials = _assumed_role(session, target, found)
    return session


def _assumed_role(session: Any, target: S3Target, source: Any) -> object:
    """Return credentials of the role, requested with the source's when they are first used."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    chain = target.chain
    assert chain is not None
    extra = {"RoleSessionName": SESSION_NAME, **({"ExternalId": chain.external_id} if chain.external_id else {})}
    region = target.region or session.get_config_variable("region") or DEFAULT_REGION
    create = partial(session.create_client, region_name=region)
    fetcher = AssumeRoleCredentialFetcher(create, source, chain.role_arn, extra_args=extra)
    return DeferredRefreshableCredentials(method="assume-role", refresh_using=fetcher.fetch_credentials)
