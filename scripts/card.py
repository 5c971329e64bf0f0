"""Measures a server on the card of this machine: rates, overload, cold start, what each idea gains.

    python scripts/card.py CHECKPOINT OUT rates overload cold ablation

Server and client share the machine. Each phase starts servers of its own, writes one JSON into OUT
and prints a line a run, so that phases can be spread over several calls.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from vivace.bench.machine import commit

PORT = int(os.environ.get("PORT", "8765"))  # two may measure on one host, a card each
URL = f"http://127.0.0.1:{PORT}"
SESSIONS = ["--max-sessions", "128", "--max-queue", "64"]
FRAMES = ["--field", "max_new_tokens=51", "--field", "min_new_tokens=51"]  # streams of 4 s
RATES = (1, 10, 20, 60, 100, 130, 160, 200)
CAPACITY_RPS = float(os.environ.get("CAPACITY_RPS", "150"))
SWITCHES = {
    "everything": [],
    "no graphs": ["--no-graphs"],
    "no kernels": ["--no-kernels"],
    "no prefixes": ["--prefix-mb", "0"],
    "engine and HTTP in one process": ["--in-process"],
    "no trim": ["--no-trim"],
}
Run = dict[str, Any]


@contextmanager
def serving(model: str, *flags: str, caches: str | None = None) -> Iterator[float]:
    """A server; the seconds from its start to readiness."""
    own = {"XDG_CACHE_HOME": caches, "TRITON_CACHE_DIR": f"{caches}/triton"} if caches else {}
    command = [sys.executable, "-m", "vivace", "serve", "--model", model, "--port", str(PORT)]
    began_s = time.monotonic()
    server = subprocess.Popen([*command, *SESSIONS, *flags], env={**os.environ, **own})
    try:
        _await_ready(server)
        yield time.monotonic() - began_s
    finally:
        server.terminate()
        server.wait()


def _await_ready(server: subprocess.Popen[bytes]) -> None:
    """The port is open from the start; who calls waits until the model is loaded."""
    while server.poll() is None:
        try:
            if httpx.get(f"{URL}/ready", timeout=1.0).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise SystemExit(f"the server ended with {server.returncode}")


def load(rps: float, duration_s: float) -> Run:
    """One run of the project's own client, without its single requests."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        command = ["-m", "vivace", "bench", "run", "--target", "vivace", "--url", URL, "--quiet"]
        numbers = ["--rps", str(rps), "--duration", str(duration_s), "--output", str(out)]
        texts = ["--texts", "en", "--language", "english", "--lag-limit-ms", "50", *FRAMES]
        subprocess.run([sys.executable, *command, *numbers, *texts], check=False)
        run: Run = json.loads(out.read_text())
    del run["requests"]  # some megabytes
    told = run["summary"]
    print(
        f"{rps:g}/s: p50 {told['audible_ttfa_ms']['p50']} p95 {told['audible_ttfa_ms']['p95']} ms,",
        f"dry {told['underrun_requests']}, refused {told['refused']},",
        f"failed {told['failed']} of {told['requests']}",
        flush=True,
    )
    return run


def rates(model: str) -> Iterator[Run]:
    """First sound and underruns at each rate, 30 s each, until streams run dry."""
    with serving(model):
        for rps in RATES:
            run = load(rps, 30.0)
            yield run
            if run["summary"]["underrun_requests"] > 10:
                break


def overload(model: str) -> Iterator[Run]:
    """A minute of 1.5 times what it carries: nobody let in runs dry, the rest are refused."""
    with serving(model):
        yield load(1.5 * CAPACITY_RPS, 60.0)


def cold(model: str) -> Iterator[Run]:
    """Ready with empty compiler caches, and with those just filled."""
    with tempfile.TemporaryDirectory() as caches:
        for name in ("cold", "warm"):
            with serving(model, caches=caches) as ready_s:
                print(f"{name}: ready after {ready_s:.1f} s", flush=True)
            yield {"caches": name, "ready_s": ready_s}


def ablation(model: str) -> Iterator[Run]:
    """The same load with one idea switched off at a time."""
    for name, flags in SWITCHES.items():
        print(name, end=": ", flush=True)
        with serving(model, *flags) as ready_s:
            yield {"off": name, "ready_s": ready_s, **load(60.0, 10.0)}


PHASES: dict[str, Callable[[str], Iterator[Run]]] = {
    phase.__name__: phase for phase in (rates, overload, cold, ablation)
}


def main(model: str, out: str, *phases: str) -> None:
    """Run them in the order given; a phase's file is whole after each of its runs."""
    Path(out).mkdir(parents=True, exist_ok=True)
    for name in phases:
        found: Run = {"command": " ".join(sys.argv), "commit": commit(), "runs": list[Run]()}
        for run in PHASES[name](model):
            found["runs"].append(run)
            (Path(out) / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
