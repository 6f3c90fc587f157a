"""The middleware that asks for the bearer token (RFC 6750)."""

import re

import falcon

from plants.errors import ErrorCode, http_error
from plants.tokens import B64TOKEN, TokenCheck

_BEARER = re.compile(f"(?i:bearer) +({B64TOKEN})", re.ASCII)
_CHALLENGE = 'Bearer realm="plants"'


class BearerAuth:
    """Falcon middleware that checks the token before the path, the method and the body."""

    def __init__(self, check: TokenCheck) -> None:
        self._accepts = check.accepts

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Return if the request has one valid token.

        :raises falcon.HTTPError: 401, with the challenge of RFC 6750, section 3.
        :raises TypeError: the token check gave neither True nor what counts as false.
        """
        authorization = req.env.get("HTTP_AUTHORIZATION", "")
        bearer = _BEARER.fullmatch(authorization)
        if bearer:
            accepted = self._accepts(bearer[1])
            if accepted is True:
                return
            if accepted:  # A coroutine is true, and would let everybody in.
                raise TypeError(f"accepts() gave a {type(accepted).__name__}, not True or False")
        if authorization.partition(" ")[0].lower() != "bearer":
            raise http_error(ErrorCode.NO_TOKEN, headers={"WWW-Authenticate": _CHALLENGE})
        raise http_error(ErrorCode.INVALID_TOKEN, headers={"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'})
