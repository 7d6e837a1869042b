"""Who may call an endpoint that changes something."""

from __future__ import annotations

import base64
import binascii
import hmac

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
