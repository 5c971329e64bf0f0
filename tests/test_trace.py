"""A trace of the loop's decisions: what is written, what is told of it, what Chrome gets."""

import itertools
import json
from pathlib import Path
from typing import NoReturn

import pytest
from tests.commands import Run, one_line
from tests.test_loop import Bench, drain

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import InvalidRequest
from vivace.trace import TraceFile, chrome, read_trace, tell


def traced(path: Path) -> Bench:
    """Two sessions served, one slot and no queue, so the third is sent away."""
    bench = Bench(max_sessions=1, max_queue=1)
    bench.loop.note = TraceFile(path)
    sessions = [bench.open() for _ in range(3)]
    bench.run()
    for session in sessions:
        drain(session)
    bench.loop.note.close()
    return bench


def test_a_trace_tells_each_sessions_story(tmp_path: Path) -> None:
    traced(tmp_path / "trace.jsonl")
    events = read_trace(tmp_path / "trace.jsonl")
    names = [event["event"] for event in events]
    assert names.count("ready") == 3 and names.count("seated") == 2 and names.count("refused") == 1
    assert {"step", "chunk", "done"} <= set(names)
    lanes = {event["lane"] for event in events if event["event"] == "step"}
    assert lanes == {"tokens", "sound"}
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)


def test_nobody_is_seated_before_being_ready(tmp_path: Path) -> None:
    """On a clock that moves whenever it is looked at, as a real one does."""
    bench, ticks = Bench(), itertools.count(1)
    bench.loop.clock = lambda: next(ticks) * 1e-5
    bench.loop.note = TraceFile(tmp_path / "trace.jsonl")
    for _ in range(3):
        bench.open()
    bench.run()
    bench.loop.note.close()
    stories = tell(read_trace(tmp_path / "trace.jsonl"))
    assert [story.waited_s is not None and story.waited_s >= 0 for story in stories] == [True] * 3


def test_a_trace_that_cannot_be_written_is_found_out_before_loading(tmp_path: Path) -> None:
    def build() -> NoReturn:
        raise AssertionError("it was loaded")

    for path in (tmp_path, tmp_path / "nowhere" / "trace.jsonl"):
        with pytest.raises(OSError):
            Engine(parts=build, config=EngineConfig(trace=path))


def test_the_command_says_so_in_one_line(run: Run, tmp_path: Path) -> None:
    status, out, err = run("serve", "--port", 0, "--trace", tmp_path)
    assert (status, out) == (2, "")
    assert one_line(err) == f"vivace: {tmp_path}: Is a directory\n"


def test_a_full_disk_ends_the_trace_and_not_the_speech(caplog: pytest.LogCaptureFixture) -> None:
    traced(Path("/dev/full"))
    assert [record.message for record in caplog.records] == [
        "the trace ends here: [Errno 28] No space left on device"
    ]


def test_what_is_told_of_a_session(tmp_path: Path) -> None:
    lines = [
        {"t": 1.0, "event": "ready", "session": "a", "forecast_s": 0.1},
        {"t": 1.5, "event": "seated", "session": "a", "slot": 0, "seated": 1},
        {"t": 1.5, "event": "step", "lane": "tokens", "rows": 1, "took_s": 0.1, "said_s": 0.1},
        {"t": 2.0, "event": "chunk", "session": "a", "frames": 1, "slack_s": None, "late": False},
        {"t": 2.1, "event": "chunk", "session": "a", "frames": 1, "slack_s": -0.02, "late": True},
        {"t": 2.2, "event": "done", "session": "a", "reason": "stop", "frames": 2},
        {"t": 2.3, "event": "ready", "session": "b", "forecast_s": 9.0},
        {"t": 2.3, "event": "refused", "session": "b", "retry_after_s": 3.0},
    ]
    first, second = tell(lines)
    assert (first.waited_s, first.first_s, first.chunks) == (0.5, 1.0, 2)
    assert (first.least_slack_s, first.late, first.reason) == (-0.02, 1, "stop")
    assert (second.waited_s, second.chunks, second.reason) == (None, 0, "refused")


def test_chrome_gets_a_row_per_lane_and_per_session_and_every_span_ends(tmp_path: Path) -> None:
    traced(tmp_path / "trace.jsonl")
    out = chrome(read_trace(tmp_path / "trace.jsonl"))
    json.dumps(out)
    events = out["traceEvents"]
    assert isinstance(events, list)
    spans = [e for e in events if e["ph"] in "BE"]
    for row in {e["tid"] for e in spans}:
        depth = 0
        for e in (e for e in spans if e["tid"] == row):
            depth += 1 if e["ph"] == "B" else -1
            assert depth in (0, 1)
        assert depth == 0
    assert {e["tid"] for e in events if e["ph"] == "X"} == {"tokens", "sound"}


@pytest.mark.parametrize("line", ["{", "[]", '{"t": 1}', "7"])
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"t": 0, "event": "ready", "session": "a"}\n' + line + "\n")
    with pytest.raises(InvalidRequest, match="line 2"):
        read_trace(path)
