"""What came back for one request, before anybody judges it."""

from dataclasses import dataclass, field

MOST_BYTES = 1 << 26  # of one answer: 23 minutes of speech, then it is given up as endless


@dataclass(frozen=True, slots=True)
class Manners:
    """How a client reads. The plain one takes everything as fast as it comes."""

    bytes_s: float = 0.0  # a slow reader's rate; 0 is no limit
    leave_after_s: float | None = None  # goes this long after its first bytes, however far it is


@dataclass(slots=True)
class Answer:
    """One exchange, in seconds of this machine's monotonic clock.

    `kind` is `ok` until something shows that it is not.
    """

    setup_s: float = 0.0  # connecting and what precedes the text on a socket
    sent_s: float = 0.0  # time zero: the first byte of the body, or of the first text, goes out
    ended_s: float = 0.0
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    rate: int = 24_000
    kind: str = "ok"
    detail: str = ""
    status: int | None = None
    finish: str | None = None  # why speech ended, where the server says so

    def fail(self, kind: str, detail: object = "") -> None:
        """Keep the first thing that went wrong."""
        if self.kind == "ok":
            self.kind, self.detail = kind, " ".join(str(detail).split())[:200]


def status_kind(status: int) -> str:
    """How results count a status that is not 200: was it refused for load, or a fault?"""
    if status in {429, 503}:
        return "refused"
    return "rejected" if status < 500 else "server_error"
