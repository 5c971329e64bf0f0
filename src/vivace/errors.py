"""Every error a caller can meet, in one tree, with one table that maps it to the outside.

VivaceError
├── CheckpointError          the files of a model cannot be used; the message says what to do
├── InvalidRequest     400   malformed: the field named by `param` cannot be read as it should be
│   ├── Unprocessable  422   well formed but out of range, of the wrong type, or not for this model
│   ├── NotFound       404   a voice, model or route that is not here; the message lists what is
│   ├── TooLarge       413   the body is over the limit
│   ├── Unauthorized   401   no API key, or an unknown one
│   └── Forbidden      403   from a page that may not use this server
├── Overloaded         429   no slot and no room to wait; `retry_after_s` says when to come back
├── Unavailable        503   starting, draining or out of memory; may say when to come back
└── EngineFailure      500   our own fault
    └── DeviceLost     500   the device fails whatever it is asked: only a new process helps
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class VivaceError(Exception):
    """Base of the tree.

    `param` is the request field at fault, if one is; `code` a short machine-readable cause.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class CheckpointError(VivaceError):
    """A checkpoint is absent, incomplete or of another kind."""


class InvalidRequest(VivaceError):
    """The request cannot be read."""


class Unprocessable(InvalidRequest):
    """The request is readable but asks for something outside the limits."""


class NotFound(InvalidRequest):
    """The request names something that does not exist."""


class TooLarge(InvalidRequest):
    """The request's body is over the limit."""


class Unauthorized(InvalidRequest):
    """Nobody that we know asks."""


class Forbidden(InvalidRequest):
    """Whoever asks may not."""


class Overloaded(VivaceError):
    """Every slot and every place in the queue is taken."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_s = retry_after_s


class Unavailable(VivaceError):
    """The engine takes no requests now; `retry_after_s` says when it should, if that is known."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after_s = retry_after_s


class EngineFailure(VivaceError):
    """The engine failed; the request is not at fault."""


class DeviceLost(EngineFailure):
    """An error of the device that every later call meets too: nothing here can clear it."""


def as_it_was(kind: type[VivaceError], fields: Mapping[str, Any]) -> VivaceError:
    """An error of these fields, without its constructor: each class has another."""
    error = kind.__new__(kind, fields["message"])
    vars(error).update(fields)
    return error


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an error looks outside: HTTP status, WebSocket close code, OpenAI type, metric label."""

    status: int
    close: int
    type: str
    label: str


OUTCOMES: dict[type[VivaceError], Outcome] = {
    NotFound: Outcome(404, 1008, "invalid_request_error", "not_found"),
    TooLarge: Outcome(413, 1009, "invalid_request_error", "too_large"),
    Unauthorized: Outcome(401, 1008, "authentication_error", "unauthorized"),
    Forbidden: Outcome(403, 1008, "permission_error", "forbidden"),
    Unprocessable: Outcome(422, 1008, "invalid_request_error", "unprocessable"),
    InvalidRequest: Outcome(400, 1008, "invalid_request_error", "invalid"),
    Overloaded: Outcome(429, 1013, "rate_limit_error", "overloaded"),
    Unavailable: Outcome(503, 1013, "server_error", "unavailable"),
    CheckpointError: Outcome(503, 1011, "server_error", "checkpoint"),
    DeviceLost: Outcome(500, 1011, "server_error", "device_lost"),
    EngineFailure: Outcome(500, 1011, "server_error", "failure"),
    VivaceError: Outcome(500, 1011, "server_error", "failure"),
}


def outcome(error: BaseException) -> Outcome:
    """The outside view of `error`; anything outside the tree is our own failure."""
    for kind in type(error).__mro__:
        if kind in OUTCOMES:
            return OUTCOMES[kind]
    return OUTCOMES[EngineFailure]
