"""Who may call an endpoint that changes something."""

from __future__ import annotations

import base64
import binascii
import hmac

from fastapi import HTTPException, Request
from pydantic import SecretStr

CHALLENGE = {"www-authenticate": 'Bearer realm="counters"'}


def holds_token(authorization: str, token: SecretStr | None) -> bool:
    """Whether the ``Authorization`` header carries ``token``; without a token nobody does.

    ``Bearer <token>``, or ``Basic`` with the token as password, which is what HTTP clients that know nothing
    but user and password can send. How long the comparison takes says nothing about the token.
    """
    expected = b"" if token is None else token.get_secret_value().encode()
    scheme, _, credentials = authorization.strip().partition(" ")
    given = credentials.strip().encode()
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given, expected) and expected != b""


def check_token(request: Request, token: SecretStr | None) -> None:
    """Make sure that the client may change something.

    Raises:
        HTTPException: 403 where no token is configured, 401 where it is not the one that was sent.
    """
    if token is None:
        raise HTTPException(403, "no token is configured, hence nobody may do this; set api.token")
    if not holds_token(request.headers.get("authorization", ""), token):
        raise HTTPException(401, "send Authorization: Bearer with the token in api.token", CHALLENGE)
