"""The table of the application's errors, and the only place that makes Error bodies."""

import json
import logging
from enum import IntEnum
from http.client import responses
from typing import Self

import falcon

from plants.stores import PlantIdInUse, PlantRefused, StoreUnavailable

# The headers of every response; only the page and the metrics have a Content-Type of their own.
HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
RETRY_AFTER = {"Retry-After": "1"}  # in seconds
_MAX_MESSAGE = 499

_log = logging.getLogger(__name__)


class ErrorCode(IntEnum):
    """The codes of the application's errors: the status times 100, plus a number. Each has a default ``message``."""

    message: str

    MALFORMED_REQUEST = 40000, "This is not a well-formed HTTP request, or its body was cut short."
    NOT_JSON = 40001, "The body is missing or is not JSON."
    NOT_A_NEW_PLANT = 40002, "The body is not a NewPlant."
    ID_IN_USE = 40003, "The id is in use."
    NO_TOKEN = 40100, "A bearer token is required: Authorization: Bearer <ACCESS_TOKEN>."
    INVALID_TOKEN = 40101, "The bearer token is not valid."
    NO_SUCH_PATH = 40400, "There is nothing at this path."
    METHOD_NOT_ALLOWED = 40500, "This path does not support this method; see the Allow header."
    REQUEST_TIMEOUT = 40800, "The request did not arrive in time."
    TOO_LARGE = 41300, "The body is too large."
    UNSUPPORTED_MEDIA_TYPE = 41500, "The body must be application/json in UTF-8, without a content coding."
    INTERNAL = 50000, "The service failed; its log has the details."
    UNAVAILABLE = 50300, "The plant store cannot be reached now; try again later."
    REFUSED = 50301, "The plant store does not accept this plant; a retry cannot succeed."

    def __new__(cls, code: int, message: str) -> Self:
        """Make a member from a row of the table."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        return member


_MESSAGES = {int(code): code.message for code in ErrorCode}


def http_error(code: ErrorCode, message: str | None = None, headers: dict[str, str] | None = None) -> falcon.HTTPError:
    """Return the exception for an error code; ``message`` defaults to the table's."""
    return falcon.HTTPError(code // 100, description=message, headers=headers, code=code)


def error_message(code: int, message: str | None = None) -> str:
    """Return this message, or the table's, or the phrase of the status, with at most 499 characters."""
    message = message or _MESSAGES.get(code) or responses.get(code // 100, "The request failed.")
    return message[:_MAX_MESSAGE]


def error_response(error: BaseException) -> tuple[int, list[tuple[str, str]], bytes, tuple[int, str]]:
    """Return the status, headers and body of the response to an exception, and the code and message in the body."""
    http = _as_http_error(error)
    # An HTTPError that Falcon itself raises (no such path, no such method) has no code.
    code = http.code or http.status_code * 100
    headers = HEADERS | (RETRY_AFTER if code == ErrorCode.UNAVAILABLE else {}) | dict(http.headers or {})
    message = error_message(code, http.description)
    body = json.dumps({"error": code, "message": message}) + "\n"
    return http.status_code, [*headers.items()], body.encode(), (code, message)


def handle_error(req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
    """Respond to an exception with an Error body, and append its code and message to the list that the server logs.

    If this raised an HTTPError, a reference cycle in Falcon would keep the request and its body in memory.
    """
    status, headers, resp.data, code_and_message = error_response(error)
    resp.status = falcon.code_to_http_status(status)  # Tracing agents expect a status line in middleware.
    resp.set_headers(headers)
    req.env.get("server.errors", []).append(code_and_message)


def _as_http_error(error: BaseException) -> falcon.HTTPError:
    match error:
        case falcon.HTTPError():
            return error
        case PlantIdInUse():
            return http_error(ErrorCode.ID_IN_USE, f"The id {error.plant_id} is in use.")
        case PlantRefused():
            _log.error("the store refused a plant: %s", error)
            return http_error(ErrorCode.REFUSED)
        case StoreUnavailable():
            # Do not log it, because the store logs the start and the end of an outage instead of each request.
            return http_error(ErrorCode.UNAVAILABLE)
        case _:
            _log.error("a request failed", exc_info=error)
            return http_error(ErrorCode.INTERNAL)
