"""The middleware that checks the bearer token (RFC 6750)."""

import re
from collections.abc import Container

import falcon

from plants.errors import ErrorCode, http_error
from plants.tokens import B64TOKEN, TokenCheck

_BEARER = re.compile(f"(?i:bearer) +({B64TOKEN})", re.ASCII)
_CHALLENGE = 'Bearer realm="plants"'


class BearerAuth:
    """Falcon middleware that checks the token before Falcon looks at the path, the method or the body.

    Requests for the public paths need no token.
    """

    def __init__(self, check: TokenCheck, public_paths: Container[str]) -> None:
        self._check = check
        self._public_paths = public_paths

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Raise an error unless the request has a valid token or its path is public.

        :raises falcon.HTTPError: 401, with the challenge of RFC 6750, section 3.
        :raises TypeError: accepts() returned a truthy value other than True.
        """
        if req.path in self._public_paths:
            return
        authorization = str(req.env.get("HTTP_AUTHORIZATION") or "")
        bearer = _BEARER.fullmatch(authorization)
        if bearer:
            accepted = self._check.accepts(bearer[1])
            if accepted is True:
                return
            if accepted:  # An asynchronous accepts() returns a coroutine, which is truthy for every token.
                raise TypeError(f"accepts() returned {type(accepted).__name__}, not True or False")
        if authorization.partition(" ")[0].lower() != "bearer":
            raise http_error(ErrorCode.NO_TOKEN, headers={"WWW-Authenticate": _CHALLENGE})
        raise http_error(ErrorCode.INVALID_TOKEN, headers={"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'})
