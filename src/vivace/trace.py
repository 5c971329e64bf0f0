"""Why a session sounded as it did: every decision as a line of JSON, and as a Chrome trace.

A line is one event with its time `t` in seconds. Sessions: `ready` (something to say), `refused`,
`seated`, `chunk` (sent, with the slack its listener had left), `cut` (by a guard), `redraw`,
`done`. Lanes: `step` (rows that went together, how long it took and was said to take, who was the
most pressing and its slack).
"""

import contextlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vivace.errors import InvalidRequest

log = logging.getLogger(__name__)

Event = dict[str, Any]


class Trace(Protocol):
    """Takes events down."""

    def __call__(self, t: float, event: str, session: str | None = None, **fields: object) -> None:
        """One at second `t`, of a session or of a lane."""
        ...

    def close(self) -> None:
        """There are no more."""
        ...


class Untraced:
    """Nobody wants to know."""

    def __call__(self, t: float, event: str, session: str | None = None, **fields: object) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing to do."""


class TraceFile:
    """Appends events to a file, a whole line each.

    Raises OSError if the file cannot be opened. One that cannot be written any more, as on a full
    disk, ends the trace with one warning: speech goes on without it.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def __call__(self, t: float, event: str, session: str | None = None, **fields: object) -> None:
        """Append one."""
        about = {} if session is None else {"session": session}
        line = json.dumps({"t": round(t, 6), "event": event, **about, **fields}) + "\n"
        if self._file.closed:
            return
        try:
            self._file.write(line)
        except OSError as error:
            log.warning("the trace ends here: %s", error)
            self.close()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what is still in its buffer has nowhere to go
            self._file.close()


def check_trace(path: Path) -> None:
    """Raises OSError if events cannot be appended to that file."""
    with path.open("a", encoding="utf-8"):
        pass


def read_trace(path: Path) -> list[Event]:
    """The events of a file. Raises InvalidRequest for a line that is none."""
    events = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            event = json.loads(line)
            event["t"], event["event"]
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest(f"{path}, line {number}: not an event of a trace") from None
        events.append(event)
    return events


@dataclass(frozen=True, slots=True)
class Told:
    """One session's story, in seconds."""

    session: str
    waited_s: float | None  # from ready to its slot
    first_s: float | None  # from ready to its first sound
    chunks: int
    least_slack_s: float | None  # what its listener had left when a chunk was sent
    late: int  # chunks after that
    reason: str | None


def tell(events: Iterable[Event]) -> list[Told]:
    """The stories, in the order of the sessions' first events."""
    by_session: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if "session" in event:
            by_session[event["session"]].append(event)
    return [_tell(session, its) for session, its in by_session.items()]


def _tell(session: str, events: list[Event]) -> Told:
    def when(name: str) -> float | None:
        return next((e["t"] for e in events if e["event"] == name), None)

    ready, seated, first = when("ready"), when("seated"), when("chunk")
    chunks = [e for e in events if e["event"] == "chunk"]
    slacks = [e["slack_s"] for e in chunks if e["slack_s"] is not None]
    reason = next((e["reason"] for e in events if e["event"] == "done"), None)
    return Told(
        session,
        None if ready is None or seated is None else seated - ready,
        None if ready is None or first is None else first - ready,
        len(chunks),
        min(slacks, default=None),
        sum(e["late"] for e in chunks),
        "refused" if when("refused") is not None else reason,
    )


def chrome(events: Iterable[Event]) -> dict[str, object]:
    """The same for chrome://tracing or Perfetto: a row per lane and one per session."""
    speaking: set[str] = set()  # sessions whose span is open
    rows = [row for event in events for row in _chrome(event, speaking)]
    return {"traceEvents": [*_names(), *rows]}


def _names() -> Iterator[Event]:
    for pid, name in enumerate(("lanes", "sessions"), 1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def _chrome(event: Event, open_spans: set[str]) -> Iterator[Event]:
    kind, args = event["event"], {k: v for k, v in event.items() if k not in ("t", "session")}
    at_us = event["t"] * 1e6
    if kind == "step":
        took_us = event["took_s"] * 1e6
        name = f"{event['rows']} rows" + (
            f", {event['frames']} frames" if "frames" in event else ""
        )
        lane = {"ph": "X", "pid": 1, "tid": event["lane"], "name": name}
        yield {**lane, "ts": at_us - took_us, "dur": took_us, "args": args}
        return
    session = event["session"]
    row = {"pid": 2, "tid": session, "ts": at_us, "args": args}
    if kind in ("seated", "done") and session in open_spans:
        open_spans.remove(session)
        yield {**row, "ph": "E"}
    if kind in ("ready", "seated"):
        open_spans.add(session)
        yield {**row, "ph": "B", "name": "waits" if kind == "ready" else "speaks"}
    if kind in ("chunk", "refused", "cut", "redraw"):
        yield {**row, "ph": "i", "s": "t", "name": kind}
