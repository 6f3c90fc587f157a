"""The check of the bearer token (RFC 6750), for the application and for a server that checks it earlier."""

import re

import falcon

from plants.errors import ErrorCode, http_error
from plants.falcon_defaults import Router
from plants.tokens import B64TOKEN, TokenCheck

_BEARER = re.compile(f"[Bb][Ee][Aa][Rr][Ee][Rr] ++({B64TOKEN})")
CHALLENGE = 'Bearer realm="plants"'


class BearerAuth:
    """Falcon middleware that checks the token before Falcon looks at the path, the method or the body.

    :param checks: a token is valid if any of these accepts it.
    :param router: finds the route of a path; a request for a public one needs no token.
    """

    def __init__(self, *checks: TokenCheck, router: Router) -> None:
        self._checks = checks
        self._router = router

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Raise an error unless the request has a valid token or its path is public.

        A server that has checked the token with this object sets ``plants.auth`` to it. A client cannot set that key.

        :raises falcon.HTTPError: 401.
        """
        if req.env.get("plants.auth") is self or self._router.route_of(req.path).public:
            return
        if rejection := self.rejection(str(req.env.get("HTTP_AUTHORIZATION") or "")):
            raise rejection

    def rejection(self, authorization: str) -> falcon.HTTPError | None:
        """Return None for a valid token, else a 401 with the challenge of RFC 6750, section 3.

        :param authorization: the header ``Authorization``, or an empty string.
        :raises TypeError: a check returned something other than True or False.
        """
        bearer = _BEARER.fullmatch(authorization)
        if bearer and self._accepts(bearer[1]):
            return None
        if authorization.partition(" ")[0].lower() != "bearer":
            return http_error(ErrorCode.NO_TOKEN, headers={"WWW-Authenticate": CHALLENGE})
        challenge = f'{CHALLENGE}, error="invalid_token"'
        return http_error(ErrorCode.INVALID_TOKEN, headers={"WWW-Authenticate": challenge})

    def _accepts(self, token: str) -> bool:
        # Call all checks, so that the time does not show which one accepted the token.
        accepted = False
        for check in self._checks:
            result: object = check.accepts(token)
            if result is True:
                accepted = True
            elif result is not False:  # A coroutine would be truthy for every token.
                raise TypeError(f"accepts() returned {type(result).__name__}, not True or False")
        return accepted
