"""`vivace bench` and its subcommands: options in, files and a few lines out."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from vivace.errors import InvalidRequest

if TYPE_CHECKING:
    from vivace.bench.run import Result, Watch
    from vivace.bench.targets import Ask

NOTHING_COMPLETED, CLIENT_WAS_THE_LIMIT = 1, 3

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure a speech server.")

Record = TypeVar("Record")
Opt = typer.Option
_TARGETS = "vivace openai vllm-omni sglang-omni voxserve mstar nari nari-ws elevenlabs cartesia."

Target = Annotated[str, Opt(help=f"One of: {_TARGETS}")]
Url = Annotated[str, Opt(help="The client's base URL, for openai with /v1; ws:// is the socket.")]
Output = Annotated[Path, Opt(help="JSON file to write.")]
Duration = Annotated[float, Opt("--duration", help="Seconds that are measured.")]
Warmup = Annotated[float, Opt("--warmup", help="Seconds of the same load before.")]
Seed = Annotated[int, Opt(help="The same seed, the same times and texts.")]
Model = Annotated[str | None, Opt(help="Model to name.")]
Voice = Annotated[str | None, Opt(help="Voice to name.")]
Language = Annotated[str | None, Opt(help="Language to name.")]
Fields = Annotated[list[str] | None, Opt("--field", help="One more of the body, as NAME=JSON.")]
KeyEnv = Annotated[str, Opt(help="Environment variable that holds the API key.")]
Texts = Annotated[str, Opt(help="mixed, en, zh, or a file with one text a line.")]
Pace = Annotated[float, Opt(help="Send words this many ms apart; 0 sends the whole text.")]
Timeout = Annotated[float, Opt("--timeout", help="Seconds that a request may take.")]
Processes = Annotated[int, Opt(help="Client processes; 0 is as many as it takes.")]
LagLimit = Annotated[float, Opt(help="Most ms of own lag (p99) in a valid run.")]
Label = Annotated[str | None, Opt(help="What reports call it; the target's name if not.")]
Price = Annotated[float | None, Opt(help="Dollars an hour of the machine.")]
Quiet = Annotated[bool, Opt("--quiet", help="No progress bar.")]
Checkpoint = Annotated[str | None, Opt(help="Folder or hub id; without it, the embedded voice.")]


@bench.command("run")
def run_once(
    target: Target,
    url: Url,
    rps: Annotated[float, Opt(help="Requests a second.")],
    output: Output,
    duration_s: Duration = 30.0,
    warmup_s: Warmup = 5.0,
    seed: Seed = 0,
    model: Model = None,
    voice: Voice = None,
    language: Language = None,
    fields: Fields = None,
    key_env: KeyEnv = "VIVACE_BENCH_KEY",
    arrivals: Annotated[
        str, Opt(help="poisson, bursty, constant, or a file of recorded seconds.")
    ] = "poisson",
    texts: Texts = "mixed",
    pace_ms: Pace = 0.0,
    slow: Annotated[float, Opt(help="Share of clients that read slowly.")] = 0.0,
    slow_bytes_s: Annotated[float, Opt(help="Bytes a second that those read.")] = 24_000.0,
    leaving: Annotated[float, Opt(help="Share of clients that leave early.")] = 0.0,
    leave_after_s: Annotated[float, Opt(help="Seconds after their first sound.")] = 0.5,
    timeout_s: Timeout = 120.0,
    processes: Processes = 0,
    lag_limit_ms: LagLimit = 10.0,
    label: Label = None,
    price_per_hour: Price = None,
    wer: Annotated[bool, Opt("--wer", help="Transcribe a sample afterwards.")] = False,
    wer_sample: Annotated[int, Opt(min=1, help="Requests in it.")] = 20,
    wer_model: Annotated[str, Opt(help="Whisper model: name or folder.")] = "tiny.en",
    wer_url: Annotated[
        str | None, Opt(help="Transcribe there instead: an OpenAI base URL, with /v1.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Put a load on a server and write down what its listeners met.

    Exit status 3: the client was the limit, the figures are worth nothing. 1: nothing completed.
    """
    from vivace.bench.load import Load
    from vivace.bench.run import run, save
    from vivace.bench.texts import load_texts
    from vivace.bench.wer import score, transcriber

    ask, load = _ask(locals()), _record(Load, locals())
    _check_writable(output)
    transcribe = transcriber(wer_model, wer_url) if wer else None
    with _bar(f"{target} {rps:g} rps", quiet) as watch:
        result, sounds = run(ask, load, watch, wer_sample if wer else 0, price_per_hour)
    result["label"] = label or target
    if transcribe:
        result["wer"] = score(sounds, load_texts(texts).texts, transcribe)
    save(result, output)
    print(_line(result), f"written to {output}", sep="\n")
    _leave(result)


@bench.command()
def capacity(
    target: Target,
    url: Url,
    output: Output,
    slo: Annotated[str, Opt(help="What must hold.")] = "p95 ttfa<50ms, underruns=0",
    lowest: Annotated[float, Opt("--min", help="Rate to begin with.")] = 1.0,
    highest: Annotated[float, Opt("--max", help="Rate to stop at.")] = 200.0,
    precision: Annotated[float, Opt(help="Stop when this sure, as a share.")] = 0.1,
    duration_s: Duration = 20.0,
    warmup_s: Warmup = 5.0,
    seed: Seed = 0,
    model: Model = None,
    voice: Voice = None,
    language: Language = None,
    fields: Fields = None,
    key_env: KeyEnv = "VIVACE_BENCH_KEY",
    texts: Texts = "mixed",
    pace_ms: Pace = 0.0,
    timeout_s: Timeout = 120.0,
    processes: Processes = 0,
    lag_limit_ms: LagLimit = 10.0,
    label: Label = None,
    price_per_hour: Price = None,
    quiet: Quiet = False,
) -> None:
    """Find the largest rate that keeps a promise, by doubling and bisection."""
    from vivace.bench.capacity import parse_slo, search
    from vivace.bench.load import Load
    from vivace.bench.run import run, save

    options = locals()
    clauses, ask = parse_slo(slo), _ask(options)
    if not 0 < lowest <= highest or precision <= 0:
        raise InvalidRequest("0 < min <= max, and a precision above 0")
    _check_writable(output)

    def probe(rps: float) -> "Result":
        load = _record(Load, options | {"rps": rps})
        with _bar(f"{target} {rps:g} rps", quiet) as watch:
            result, _ = run(ask, load, watch, price_per_hour=price_per_hour)
        print(_line(result))
        return {**result, "label": label or target}

    best, runs = search(probe, clauses, lowest, highest, precision)
    limited = not runs[-1]["valid"]
    found = {"slo": slo, "rps": best, "client_was_the_limit": limited, "target": target}
    save({**found, "runs": runs}, output)
    print(f"{slo}: {f'{best:g} requests a second' if best else 'not even at the lowest rate'}")
    print(f"written to {output}")
    _leave(runs[-1])


@bench.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Results of `run` and `capacity`.")],
    output: Annotated[Path | None, Opt(help="HTML page to write.")] = None,
    png: Annotated[Path | None, Opt(help="Folder for the plots as PNG.")] = None,
    table: Annotated[Path | None, Opt(help="JSON file for the few figures of each run.")] = None,
    stages: Annotated[Path | None, Opt(help="Result of `stages`, to show too.")] = None,
    commit: Annotated[str | None, Opt(help="Commit, where a result has none.")] = None,
    hardware: Annotated[str | None, Opt(help="The machine in the table, in your words.")] = None,
) -> None:
    """Compare runs: one page that needs nothing else, plots, a table."""
    from vivace.bench import report as reports

    runs = reports.read_runs(results, commit)
    if not (output or png or table):
        raise InvalidRequest("nothing to write: --output page.html, --png folder, --table file")
    if table:
        found = reports.table(runs, hardware)
        table.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    try:
        if png:
            reports.save_plots(runs, png)
        if output:
            times = json.loads(stages.read_text(encoding="utf-8")) if stages else None
            output.write_text(reports.page(runs, times), encoding="utf-8")
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"plots need {error.name}: pip install 'vivace[bench]'") from None
    print("written to", *(path for path in (output, png, table) if path))


@bench.command("formats")
def formats_(
    url: Url,
    output: Output,
    target: Target = "vivace",
    model: Model = None,
    voice: Voice = None,
    language: Language = None,
    fields: Fields = None,
    key_env: KeyEnv = "VIVACE_BENCH_KEY",
    formats: Annotated[str, Opt(help="Response formats; pcm is the yardstick.")] = (
        "pcm,wav,mp3,opus,aac,flac"
    ),
    rounds: Annotated[int, Opt(min=1, help="Requests of each format.")] = 30,
) -> None:
    """Compare the first bytes of response formats, on the same request."""
    from vivace.bench.formats import compare_formats

    ask = _ask({**locals(), "pace_ms": 0.0})
    _check_writable(output)
    _save(compare_formats(ask, formats.split(","), rounds, print), output)


@bench.command()
def stages(
    output: Output,
    model: Checkpoint = None,
    device: Annotated[str, Opt(help="auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Annotated[str, Opt(help="auto, float32 or bfloat16.")] = "auto",
    batches: Annotated[str, Opt(help="Batch sizes.")] = "1,4,16",
    frames: Annotated[str, Opt(help="Frames in a codec chunk.")] = "1,4,8",
    context: Annotated[int, Opt(min=1, help="Positions behind each row.")] = 100,
) -> None:
    """Time talker, predictor, whole frame and codec per batch on the loaded model."""
    sizes, chunks = _numbers(batches, "--batches"), _numbers(frames, "--frames")
    _check_writable(output)
    from vivace.bench.stages import time_stages  # brings torch

    result = time_stages(model, device, dtype, sizes, chunks, context, print)
    _save(result, output)


@bench.command()
def link(
    output: Output,
    rates: Annotated[str, Opt(help="Requests a second.")] = "20,100",
    duration_s: Duration = 20.0,
) -> None:
    """What a process of its own costs the engine's loop, on a runner as fast as a card."""
    numbers = _numbers(rates, "--rates")
    _check_writable(output)
    from vivace.bench.link import measure  # brings the engine

    result = measure(numbers, duration_s)
    _save(result, output)


@bench.command()
def costs(
    output: Output,
    model: Checkpoint = None,
    device: Annotated[str, Opt(help="auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Annotated[str, Opt(help="auto, float32 or bfloat16.")] = "auto",
    max_sessions: Annotated[int, Opt(min=1, help="Streams made at the same time.")] = 16,
) -> None:
    """Record this device's step times, for `vivace bench simulate --costs FILE`."""
    _check_writable(output)
    from vivace.bench.costs import record  # brings torch
    from vivace.config import EngineConfig

    config = EngineConfig(device=device, dtype=dtype, max_sessions=max_sessions)
    print(f"{record(model, config, output)}: written to {output}")


@bench.command()
def profile(
    output: Output,
    model: Checkpoint = None,
    device: Annotated[str, Opt(help="cuda or cuda:1.")] = "cuda",
    dtype: Annotated[str, Opt(help="auto, float32 or bfloat16.")] = "auto",
    batches: Annotated[str, Opt(help="Batch sizes.")] = "1,32,128",
    chunk: Annotated[int, Opt(min=1, help="Frames in a codec chunk.")] = 8,
    context: Annotated[int, Opt(min=1, help="Positions behind each row.")] = 160,
    trace: Annotated[Path | None, Opt(help="Chrome trace to write.")] = None,
    graphs: Annotated[bool, Opt(" /--no-graphs", help="Launch kernels one by one.")] = True,
    kernels: Annotated[bool, Opt(" /--no-kernels", help="Use torch's own kernels.")] = True,
) -> None:
    """See where a card's time goes: modules, gaps of the host, kernels, bandwidth."""
    sizes = _numbers(batches, "--batches")
    _check_writable(output)
    from vivace.bench import profile as profiles  # brings torch
    from vivace.config import EngineConfig

    config = EngineConfig(
        device=device, dtype=dtype, max_sessions=max(sizes), graphs=graphs, kernels=kernels
    )
    result = profiles.profile(model, config, sizes, chunk, context, trace, print)
    _save(result, output)


def _record(kind: type[Record], options: Mapping[str, Any]) -> Record:
    """A record from the options that have its fields' names."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in options.items() if name in names})


def _ask(options: Mapping[str, Any]) -> "Ask":
    from vivace.bench.targets import Ask

    more: dict[str, object] = {}
    for item in options["fields"] or []:
        name, mark, value = item.partition("=")
        if not (name and mark):
            raise InvalidRequest(f"--field takes name=value, not {item!r}")
        try:
            more[name] = json.loads(value)
        except ValueError:
            more[name] = value
    key, paced = os.environ.get(options["key_env"], ""), options["pace_ms"] > 0
    ask = _record(Ask, {**options, "fields": more, "key": key, "paced": paced})
    ask.check()
    return ask


def _check_writable(path: Path) -> None:
    """A result that cannot be written is found out before the run, not after it."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InvalidRequest(f"cannot write {path}: its folder is not there, or not writable")


def _save(result: "Result", output: Path) -> None:
    """Write a result, and say where."""
    from vivace.bench.run import save

    save(result, output)
    print(f"written to {output}")


def _numbers(text: str, name: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise InvalidRequest(f"{name} takes whole numbers between commas, such as 1,4,16")
    return [int(word) for word in words]


@contextmanager
def _bar(title: str, quiet: bool) -> Iterator["Watch"]:
    """A progress bar on stderr: how many requests are answered, and how."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counts]}")
    console = Console(stderr=True, quiet=quiet)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, counts="starting")

        def watch(total: int, kinds: Mapping[str, int]) -> None:
            counts = " ".join(f"{kind} {count}" for kind, count in kinds.items())
            bar.update(task, total=total, completed=sum(kinds.values()), counts=counts or "waiting")

        yield watch


def _line(result: "Result") -> str:
    s: Any = result["summary"]
    ttfa, ttfb = (s[name]["p95"] for name in ("audible_ttfa_ms", "ttfb_ms"))
    return (
        f"{result['rps']:g} rps: {s['completed']} of {s['requests']} completed, audible TTFA p95 "
        f"{ttfa} ms, TTFB p95 {ttfb} ms, {s['underrun_requests']} underruns, {s['refused']} "
        f"refused, {s['failed']} failed, {s['x_realtime']:.1f} x real time, "
        f"own lag p99 {s['lag_ms']['p99']} ms"
    )


def _leave(result: "Result") -> None:
    """A run that is worth nothing does not look like one that is."""
    summary: Any = result["summary"]
    faults: Any = result["faults"]
    rows: Any = result["requests"]
    print(*(f"vivace: {fault}\n" for fault in faults), sep="", end="", file=sys.stderr)
    if not result["valid"]:
        raise typer.Exit(CLIENT_WAS_THE_LIMIT)
    if not summary["completed"] and not summary["left"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in summary["kinds"].items())
        detail = next((row["detail"] for row in rows if row.get("detail")), "")
        print(f"vivace: nothing completed: {kinds}. {detail}", file=sys.stderr)
        raise typer.Exit(NOTHING_COMPLETED)
