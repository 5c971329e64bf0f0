"""Whole runs through client processes and sockets. No absolute time is asserted."""

import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.bench.fake import Fake, Script, silence, tone
from typer.testing import CliRunner, Result

from vivace.bench import load as load_module
from vivace.bench.command import bench
from vivace.bench.http import Peer
from vivace.bench.load import Load, Share
from vivace.bench.machine import Gpus
from vivace.bench.record import Record
from vivace.bench.run import _address, _listen, run, schedule
from vivace.bench.targets import Ask
from vivace.bench.texts import load_texts

ANY_LAG = "--lag-limit-ms=1e9"  # this machine has other things to do


def watch(*_: object) -> None: ...


def bench_run(*words: str) -> Result:
    return CliRunner().invoke(bench, ["run", *words])


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_a_run_writes_what_its_listeners_met(fake: Fake, tmp_path: Path) -> None:
    fake.script = Script([(0.01, silence(0.1)), (0.05, tone(0.2)), (0.0, tone(0.3))])
    out = tmp_path / "run.json"
    words = f"--target openai --url {fake.url}/v1 --rps 20 --duration 1.5 --warmup 0.5 --seed 3"
    done = bench_run(*words.split(), "--processes=2", f"--output={out}", ANY_LAG)
    assert done.exit_code == 0, done.output
    found = load(out)
    rows, s = found["requests"], found["summary"]
    assert found["valid"] and not found["faults"]
    assert len(rows) == len(fake.seen)
    assert s["requests"] == s["completed"] == sum(not row["warmup"] for row in rows)
    assert sum(row["warmup"] for row in rows) > 0
    assert [row["index"] for row in rows] == list(range(len(rows)))
    for row in rows:
        assert row["ttfb_ms"] <= row["playable_ms"] < row["audible_ms"]
        assert row["ttfb_ms"] < row["e2e_ms"]  # all of it may be there before it is heard
        assert row["audio_s"] == pytest.approx(0.6)
        assert row["chunks"] >= 2
    assert {"p50", "p90", "p95", "p99"} == s["audible_ttfa_ms"].keys()
    for name in ("ttfb_ms", "audible_ttfa_ms", "e2e_ms", "rtf", "lag_ms"):
        assert s[name]["p50"] <= s[name]["p99"]
    assert found["hardware"]["cpu"] and found["versions"]["python"]
    assert found["command"].startswith("vivace")
    assert {"commit", "started", "texts", "config"} <= found.keys()
    texts = {seen.body["input"] for seen in fake.seen}
    assert len(texts) > len(rows) / 2
    assert f"{s['requests']} of {s['requests']} completed" in done.output


def test_bad_answers_are_counted_by_kind_beside_good_ones(fake: Fake) -> None:
    scripts = [
        Script(),
        Script([(0.0, b"{}")], status=429, content_type="application/json"),
        Script([(0.0, b'{"error": 1}')], content_type="application/json"),
        Script([(0.0, tone(0.1))], breaks=True),
    ]
    fake.script = lambda seen: scripts[seen % 4]
    found, _ = run(Ask("vivace", fake.url), Load(40.0, 1.0, 0.0, arrivals="constant"), watch)
    summary: Any = found["summary"]
    assert summary["kinds"] == {"ok": 10, "refused": 10, "error_body": 10, "truncated": 10}
    assert (summary["completed"], summary["refused"], summary["failed"]) == (10, 10, 20)


def test_slow_and_leaving_clients_are_named(fake: Fake) -> None:
    fake.script = Script([(0.0, tone(0.1))] + [(0.05, tone(0.1))] * 40)
    clients = Load(20.0, 1.0, 0.0, slow=0.3, leaving=0.3, leave_after_s=0.1, slow_bytes_s=400_000)
    found, _ = run(Ask("nari-ws", fake.ws_url), clients, watch)
    rows, summary = found["requests"], found["summary"]
    assert isinstance(rows, list) and isinstance(summary, dict)
    kinds = {(row.get("client", "plain"), row["kind"]) for row in rows}
    assert kinds == {("plain", "ok"), ("slow", "ok"), ("leaving", "left")}
    assert summary["left"] + summary["completed"] == summary["requests"]


def test_kept_sounds_are_whole(fake: Fake) -> None:
    found, sounds = run(Ask("vivace", fake.url), Load(10.0, 1.0, 0.0), watch, keep=3)
    assert len(sounds) == 3
    assert all(wav[:4] == b"RIFF" and len(wav) == 44 + 2 * 9600 for wav in sounds.values())
    assert found["valid"] in {True, False}


def test_a_client_that_was_the_limit_says_so_and_fails(fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    words = f"--target vivace --url {fake.url} --rps 10 --duration 1 --warmup 0 --output {out}"
    done = bench_run(*words.split(), "--lag-limit-ms=0.000001")
    assert done.exit_code == 3
    assert "the client was the limit" in done.output
    assert load(out)["valid"] is False


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url, out = f"http://127.0.0.1:{unused.getsockname()[1]}", tmp_path / "run.json"
        words = f"--target vivace --url {url} --rps 10 --duration 1 --warmup 0 --output {out}"
        done = bench_run(*words.split(), ANY_LAG)
    assert done.exit_code == 1
    assert "nothing completed: unreachable" in done.output
    assert load(out)["summary"]["kinds"].keys() == {"unreachable"}


@pytest.mark.parametrize(
    "words",
    [
        "--target nobody --url http://127.0.0.1 --rps 1",
        "--target vivace --url http://127.0.0.1 --rps 0",
        "--target vivace --url http://127.0.0.1 --rps 0.001 --duration 0.1 --warmup 0",
        "--target vivace --url http://127.0.0.1 --rps 1 --field nonsense",
        "--target voxserve --url http://127.0.0.1 --rps 1 --pace-ms 10",
        "--target vivace --url http://127.0.0.1 --rps 1 --texts /nowhere",
        "--target vivace --url http://no-such-host.invalid --rps 9 --duration 1",
    ],
)
def test_the_users_mistakes_are_told_in_a_line(tmp_path: Path, words: str) -> None:
    done = bench_run(*words.split(), f"--output={tmp_path / 'run.json'}")
    assert type(done.exception).__name__ == "InvalidRequest"
    assert not (tmp_path / "run.json").exists()


def test_an_output_that_cannot_be_written_is_found_first(fake: Fake, tmp_path: Path) -> None:
    words = f"--target vivace --url {fake.url} --rps 9 --output {tmp_path / 'no' / 'run.json'}"
    assert type(bench_run(*words.split()).exception).__name__ == "InvalidRequest"
    assert not fake.seen


def test_a_key_goes_to_the_server_and_nowhere_else(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "do-not-tell")
    out = tmp_path / "run.json"
    words = f"--target openai --url {fake.url}/v1 --rps 9 --duration 1 --warmup 0 --output {out}"
    assert bench_run(*words.split(), "--key-env=MY_KEY", ANY_LAG).exit_code == 0
    assert fake.seen[0].headers["authorization"] == "Bearer do-not-tell"
    assert "do-not-tell" not in out.read_text(encoding="utf-8")


def test_a_client_process_that_dies_makes_the_run_invalid() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.send(Record(0, "t", 1, 0.0, warmup=False))
    theirs.close()
    seen: list[dict[str, int]] = []
    records, late, faults = _listen([ours], lambda kinds: seen.append(dict(kinds)), Gpus())
    assert (len(records), late, faults) == (1, [], ["a client process died"])
    assert seen[-1] == {"ok": 1}


async def test_an_error_of_ours_costs_one_request_not_the_run(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "judge", lambda *_: 1 / 0)
    share = Share(Ask("vivace", fake.url), Load(1.0), "127.0.0.1", (), tmp_path)
    (job,) = schedule(Load(1.0, 1.0, 0.0, arrivals="constant"), load_texts("en").texts)
    sent: list[Record] = []
    pipe: Any = SimpleNamespace(send=sent.append)
    peer = Peer("127.0.0.1", share.ask.port, "127.0.0.1")
    await load_module._one(share, peer, job, time.monotonic(), pipe)
    assert (sent[0].kind, "ZeroDivisionError" in sent[0].detail) == ("client_error", True)


def test_of_several_addresses_one_that_answers_is_taken(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`localhost` is often ::1 first, where nobody listens."""
    found = [(0, 0, 0, "", (name, 0)) for name in ("::1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    opened: list[str] = []

    def connect(address: tuple[str, int], timeout: float) -> SimpleNamespace:
        opened.append(address[0])
        if address[0] == "::1":
            raise ConnectionRefusedError
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(socket, "create_connection", connect)
    assert _address(Ask("vivace", "http://localhost:1")) == "127.0.0.1"
    assert opened == ["::1", "127.0.0.1"]


class Nvml:
    """One card, as pynvml tells it."""

    def __init__(self) -> None:
        self.power_mw = [100_000, 300_000]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetName": "A card",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=8e9),
        }
        return lambda *_: self.power_mw.pop() if name.endswith("PowerUsage") else answers.get(name)


def test_gpus_are_sampled_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    gpus = Gpus()
    gpus.sample()
    gpus.sample()
    assert gpus.names == ["A card"]
    (card,) = gpus.summary()
    assert card["mean_use_percent"] == 50.0
    assert (card["max_memory_gb"], card["mean_power_w"], card["max_power_w"]) == (8.0, 200.0, 300.0)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert Gpus().names == []
    assert Gpus().summary() == []


def test_capacity_searches_with_real_runs(fake: Fake, tmp_path: Path) -> None:
    out = tmp_path / "capacity.json"
    words = f"capacity --target vivace --url {fake.url} --min 8 --max 16 --duration 0.5 --warmup 0"
    done = CliRunner().invoke(
        bench, [*words.split(), "--quiet", f"--output={out}", ANY_LAG, "--slo", "p95 ttfa<60s"]
    )
    assert done.exit_code == 0, done.output
    found = load(out)
    assert found["rps"] == 16.0
    assert [run["rps"] for run in found["runs"]] == [8.0, 16.0]
    assert "16 requests a second" in done.output
