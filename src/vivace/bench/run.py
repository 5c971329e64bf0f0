"""A run: client processes over one schedule, their records gathered, judged and written down."""

import contextlib
import json
import multiprocessing
import os
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

from vivace.bench.answer import Manners
from vivace.bench.arrivals import arrivals
from vivace.bench.load import AHEAD_S, Job, Load, Share, work
from vivace.bench.machine import Gpus, command, commit, hardware, versions
from vivace.bench.record import Record
from vivace.bench.summary import cost, ranked, summarise
from vivace.bench.targets import Ask
from vivace.bench.texts import Text, load_texts, pick
from vivace.errors import InvalidRequest

FORMAT = 1
_WAKE_S, _SAMPLE_S, _PROBE_S = 0.2, 0.5, 2.0
_PROCESS_RPS = 25.0  # a process more for so many requests a second, up to one a core

Result = dict[str, object]


Watch = Callable[[int, Counter[str]], None]
"""(requests in all, answers so far by kind) for whoever watches."""


def schedule(load: Load, texts: tuple[Text, ...], keep: int = 0) -> list[Job]:
    """Every request of a run: the same for the same load, however many processes send it."""
    times = arrivals(load.arrivals, load.rps, load.warmup_s + load.duration_s, load.seed)
    chosen = pick(texts, len(times), load.seed)
    rng = random.Random(f"manners {load.seed}")
    measured = [i for i, due_s in enumerate(times) if due_s >= load.warmup_s]
    kept = set(random.Random(f"kept {load.seed}").sample(measured, min(keep, len(measured))))
    jobs = []
    for i, (due_s, text) in enumerate(zip(times, chosen, strict=True)):
        draw, manners = rng.random(), Manners()
        if draw < load.slow:
            manners = Manners(bytes_s=load.slow_bytes_s)
        elif draw < load.slow + load.leaving:
            manners = Manners(leave_after_s=load.leave_after_s)
        jobs.append(Job(i, due_s, text, due_s < load.warmup_s, manners, i in kept))
    return jobs


def run(
    ask: Ask, load: Load, watch: Watch, keep: int = 0, price_per_hour: float | None = None
) -> tuple[Result, dict[str, bytes]]:
    """Make a run: its result as JSON takes it, and the sounds that were kept, by text id.

    Raises InvalidRequest for what cannot be asked; what a server does wrong is in the result.
    """
    ask.check()
    load.check()
    texts = load_texts(load.texts)
    jobs = schedule(load, texts.texts, keep)
    if not any(not job.warmup for job in jobs):
        raise InvalidRequest("no request is due in this time: a higher rate or a longer duration")
    begun = datetime.now(UTC)
    gpus = Gpus()
    with tempfile.TemporaryDirectory() as folder:
        records, late, faults = _gather(ask, load, jobs, watch, gpus, Path(folder))
        kept = {job.text.id: Path(folder, f"{job.index:05}.wav") for job in jobs if job.keep}
        sounds = {name: path.read_bytes() for name, path in kept.items() if path.exists()}
    records.sort(key=lambda record: record.index)
    summary = summarise(records, load.duration_s)
    lag, loop = ranked(r.lag_ms for r in records if not r.warmup), ranked(late)
    faults += _limits(lag, loop, load.lag_limit_ms)
    lost = len(jobs) - sum(record.kind != "client_error" for record in records)
    if lost:
        faults.append(f"the client lost {lost} requests")
    asked = {key: value for key, value in asdict(ask).items() if key != "key"}
    return {
        "format": FORMAT,
        "valid": not faults,
        "faults": faults,
        "target": ask.target,
        "rps": load.rps,
        "started": begun.isoformat(timespec="seconds"),
        "command": command(),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "config": {**asked, **asdict(load)},
        "texts": texts.describe(),
        "summary": {**summary, "lag_ms": lag, "loop_lag_ms": loop},
        "gpus": gpus.summary(),
        "cost": cost(summary, price_per_hour) if price_per_hour else None,
        "requests": [record.row() for record in records],
    }, sounds


def _limits(
    lag: dict[str, float | None], loop: dict[str, float | None], limit_ms: float
) -> list[str]:
    """Whether the client itself was too slow to measure."""
    return [
        f"the client was the limit: {what} p99 is {late['p99']} ms, over {limit_ms:g} ms; "
        "take a lower rate, more --processes or a machine with more to spare"
        for what, late in (("scheduling lag", lag), ("its loops' lag", loop))
        if (late["p99"] or 0.0) > limit_ms
    ]


def _gather(
    ask: Ask, load: Load, jobs: list[Job], watch: Watch, gpus: Gpus, folder: Path
) -> tuple[list[Record], list[float], list[str]]:
    """Run the client processes to their ends: records, the lateness of their loops, faults."""
    address, cores = _address(ask), os.cpu_count() or 1
    count = load.processes or min(cores, 1 + int(load.rps / _PROCESS_RPS))
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    workers = []
    try:
        for i in range(count):
            ours, theirs = context.Pipe()
            share = Share(ask, load, address, tuple(jobs[i::count]), folder)
            workers.append(context.Process(target=work, args=(share, theirs), daemon=True))
            workers[-1].start()
            theirs.close()
            pipes.append(ours)
        with contextlib.suppress(EOFError, OSError):  # one that died is found out below
            for pipe in pipes:
                pipe.recv()  # it is up
            start_s = time.monotonic() + AHEAD_S + _WAKE_S
            for pipe in pipes:
                pipe.send(start_s)
        return _listen(pipes, partial(watch, len(jobs)), gpus)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _address(ask: Ask) -> str:
    """The first of the host's addresses at which somebody answers, looked up once."""
    where = ask.parts.hostname, ask.port
    try:
        found = [str(info[4][0]) for info in socket.getaddrinfo(*where, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise InvalidRequest(f"no address for {ask.parts.hostname}: {error}") from None
    for address in found:
        with contextlib.suppress(OSError):
            socket.create_connection((address, ask.port), timeout=_PROBE_S).close()
            return address
    return found[0]


def _listen(
    pipes: list[Connection], watch: Callable[[Counter[str]], None], gpus: Gpus
) -> tuple[list[Record], list[float], list[str]]:
    records, late, faults, kinds = list[Record](), list[float](), list[str](), Counter[str]()
    sampled_s = time.monotonic()
    while pipes:
        for pipe in wait(pipes, _WAKE_S):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except EOFError:
                faults.append("a client process died")
                message = []
            if isinstance(message, Record):
                records.append(message)
                kinds[message.kind] += 1
            else:  # its last word
                late += message
                pipes.remove(pipe)
        watch(kinds)
        if time.monotonic() - sampled_s >= _SAMPLE_S:
            sampled_s = time.monotonic()
            gpus.sample()
    return records, late, faults


def save(result: Result, path: Path) -> None:
    """Write a result: one request a line, so that it can be read and compared as text."""
    rows = result.get("requests")
    head = json.dumps({k: v for k, v in result.items() if k != "requests"}, indent=1)
    if isinstance(rows, list):
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        head = f'{head[:-2]},\n "requests": [\n{lines}\n ]\n}}'
    path.write_text(head + "\n", encoding="utf-8")
