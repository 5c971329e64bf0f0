"""`vivace bench` and its subcommands: options in, files and a few lines out."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vivace.errors import InvalidRequest

if TYPE_CHECKING:
    from vivace.bench.run import Progress, Result, Watch
    from vivace.bench.targets import Ask

NOTHING_COMPLETED, CLIENT_WAS_THE_LIMIT = 1, 3

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure a speech server.")

Target = Annotated[
    str,
    typer.Option(
        help="vivace, openai, vllm-omni, sglang-omni, voxserve, mstar, nari, nari-ws, "
        "elevenlabs or cartesia."
    ),
]
Url = Annotated[
    str, typer.Option(help="The client's base URL, for openai with /v1; ws:// takes the socket.")
]
Duration = Annotated[float, typer.Option(help="Seconds that are measured.")]
Warmup = Annotated[float, typer.Option(help="Seconds of the same load before.")]
Seed = Annotated[int, typer.Option(help="The same seed, the same times and texts.")]
Output = Annotated[Path, typer.Option(help="JSON file to write.")]
Model = Annotated[str | None, typer.Option(help="Model to name.")]
Voice = Annotated[str | None, typer.Option(help="Voice to name.")]
Language = Annotated[str | None, typer.Option(help="Language to name.")]
FieldOption = Annotated[
    list[str] | None,
    typer.Option("--field", help="One more field of the body, as name=JSON.", metavar="NAME=JSON"),
]
KeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the API key.")]
Arrivals = Annotated[str, typer.Option(help="poisson, constant, or a file of recorded seconds.")]
Texts = Annotated[str, typer.Option(help="mixed, en, zh, or a file with one text a line.")]
Pace = Annotated[float, typer.Option(help="Send words this many ms apart; 0 is the whole text.")]
Slow = Annotated[float, typer.Option(help="Share of clients that read slowly.")]
SlowBytes = Annotated[float, typer.Option(help="Bytes a second that those read.")]
Leaving = Annotated[float, typer.Option(help="Share of clients that leave early.")]
LeaveAfter = Annotated[float, typer.Option(help="Seconds after their first sound.")]
Timeout = Annotated[float, typer.Option(help="Seconds that a request may take.")]
Processes = Annotated[int, typer.Option(help="Client processes; 0 is as many as it takes.")]
LagLimit = Annotated[float, typer.Option(help="Most ms of own lag (p99) in a valid run.")]
Label = Annotated[str | None, typer.Option(help="What reports call it; the target's name if not.")]
Price = Annotated[float | None, typer.Option(help="Dollars an hour of the machine.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


@bench.command("run")
def run_command(
    target: Target,
    url: Url,
    rps: Annotated[float, typer.Option(help="Requests a second.")],
    output: Output,
    duration: Duration = 30.0,
    warmup: Warmup = 5.0,
    seed: Seed = 0,
    model: Model = None,
    voice: Voice = None,
    language: Language = None,
    fields: FieldOption = None,
    key_env: KeyEnv = "VIVACE_BENCH_KEY",
    arrivals: Arrivals = "poisson",
    texts: Texts = "mixed",
    pace_ms: Pace = 0.0,
    slow: Slow = 0.0,
    slow_bytes_s: SlowBytes = 24_000.0,
    leaving: Leaving = 0.0,
    leave_after_s: LeaveAfter = 0.5,
    timeout: Timeout = 120.0,
    processes: Processes = 0,
    lag_limit_ms: LagLimit = 10.0,
    label: Label = None,
    price_per_hour: Price = None,
    wer: Annotated[bool, typer.Option("--wer", help="Transcribe a sample afterwards.")] = False,
    wer_sample: Annotated[int, typer.Option(min=1, help="How many requests of it.")] = 20,
    wer_model: Annotated[str, typer.Option(help="Whisper model: name or folder.")] = "tiny.en",
    wer_url: Annotated[
        str | None, typer.Option(help="Transcribe there instead: base URL with /v1.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Put a load on a server and write down what its listeners met.

    Exit status 3: the client was the limit, the figures are worth nothing. 1: nothing completed.
    """
    from vivace.bench.run import Load, run, save
    from vivace.bench.texts import load_texts

    load = Load(
        rps, duration, warmup, seed, arrivals, texts, pace_ms, slow, slow_bytes_s, leaving,
        leave_after_s, timeout, processes, lag_limit_ms,
    )  # fmt: skip
    ask = _ask(target, url, model, voice, language, fields, key_env, pace_ms)
    check_writable(output)
    transcribe = None
    if wer:
        from vivace.bench.wer import local_transcriber, remote_transcriber, score

        remote = remote_transcriber(wer_url, wer_model) if wer_url else None
        transcribe = remote or local_transcriber(wer_model)
    with _bar(f"{target} {rps:g} rps", quiet) as watch:
        result, sounds = run(
            ask, load, watch, keep=wer_sample if wer else 0, price_per_hour=price_per_hour
        )
    result["label"] = label or target
    if transcribe:
        result["wer"] = score(sounds, load_texts(texts).texts, transcribe)
    save(result, output)
    print(_line(result))
    print(f"written to {output}")
    _leave(result)


@bench.command()
def capacity(
    target: Target,
    url: Url,
    output: Output,
    slo: Annotated[str, typer.Option(help="What must hold.")] = "p95 ttfa<50ms, underruns=0",
    lowest: Annotated[float, typer.Option("--min", help="Rate to begin with.")] = 1.0,
    highest: Annotated[float, typer.Option("--max", help="Rate to stop at.")] = 200.0,
    precision: Annotated[float, typer.Option(help="Stop when this sure, as a share.")] = 0.1,
    duration: Duration = 20.0,
    warmup: Warmup = 5.0,
    seed: Seed = 0,
    model: Model = None,
    voice: Voice = None,
    language: Language = None,
    fields: FieldOption = None,
    key_env: KeyEnv = "VIVACE_BENCH_KEY",
    texts: Texts = "mixed",
    pace_ms: Pace = 0.0,
    timeout: Timeout = 120.0,
    processes: Processes = 0,
    lag_limit_ms: LagLimit = 10.0,
    label: Label = None,
    price_per_hour: Price = None,
    quiet: Quiet = False,
) -> None:
    """Find the largest rate that keeps a promise, by doubling and bisection."""
    from vivace.bench.capacity import parse_slo, search
    from vivace.bench.run import Load, run, save

    clauses = parse_slo(slo)
    if not 0 < lowest <= highest or precision <= 0:
        raise InvalidRequest("0 < min <= max, and a precision above 0")
    ask = _ask(target, url, model, voice, language, fields, key_env, pace_ms)
    check_writable(output)

    def probe(rps: float) -> "Result":
        load = Load(
            rps, duration, warmup, seed, texts=texts, pace_ms=pace_ms, timeout_s=timeout,
            processes=processes, lag_limit_ms=lag_limit_ms,
        )  # fmt: skip
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
    output: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    png: Annotated[Path | None, typer.Option(help="Folder for the plots as PNG.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="JSON file for the few figures of every run.")
    ] = None,
    stages: Annotated[Path | None, typer.Option(help="Result of `stages`, to show too.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit, where a result has none.")] = None,
) -> None:
    """Compare runs: one page that needs nothing else, plots, a table."""
    from vivace.bench.report import page, read_runs, series
    from vivace.bench.report import table as table_of

    runs = read_runs(results)
    for run in runs:
        run["commit"] = run["commit"] or commit
    if not (output or png or table):
        raise InvalidRequest("nothing to write: --output page.html, --png folder, --table file")
    if table:
        table.write_text(json.dumps(table_of(runs), indent=1) + "\n", encoding="utf-8")
    if output or png:
        with _plotting():
            if png:
                from vivace.bench.plots import draw, save_png

                png.mkdir(parents=True, exist_ok=True)
                for name, figure in draw(series(runs)).items():
                    save_png(figure, png / f"{name}.png")
            if output:
                times = json.loads(stages.read_text(encoding="utf-8")) if stages else None
                output.write_text(page(runs, times), encoding="utf-8")
    print("written to", *(path for path in (output, png, table) if path))


@bench.command()
def stages(
    output: Output,
    model: Annotated[
        str | None, typer.Option(help="Folder or hub id; without it, the embedded voice.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,4,16",
    frames: Annotated[str, typer.Option(help="Frames in a codec chunk.")] = "1,4,8",
    context: Annotated[int, typer.Option(min=1, help="Positions behind each row.")] = 100,
) -> None:
    """Time talker, predictor, whole frame and codec per batch on the loaded model."""
    check_writable(output)
    sizes, chunks = _numbers(batches, "--batches"), _numbers(frames, "--frames")
    from vivace.bench.stages import time_stages  # brings torch

    result = time_stages(
        model,
        device=device,
        dtype=dtype,
        batches=sizes,
        chunk_frames=chunks,
        context=context,
        note=lambda text: print(text, file=sys.stderr),
    )
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _print_stages(result)
    print(f"written to {output}")


def check_writable(path: Path) -> None:
    """A result that cannot be written is found out before the run, not after it."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InvalidRequest(f"cannot write {path}: its folder is not there, or not writable")


def _numbers(text: str, name: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InvalidRequest(f"{name} takes whole numbers between commas, such as 1,4,16")
    return found


def _ask(
    target: str,
    url: str,
    model: str | None,
    voice: str | None,
    language: str | None,
    fields: list[str] | None,
    key_env: str,
    pace_ms: float,
) -> "Ask":
    from vivace.bench.targets import Ask

    more: dict[str, object] = {}
    for item in fields or []:
        name, mark, value = item.partition("=")
        try:
            more[name] = json.loads(value)
        except ValueError:
            more[name] = value
        if not (name and mark):
            raise InvalidRequest(f"--field takes name=value, not {item!r}")
    key = os.environ.get(key_env, "")
    ask = Ask(target, url, model, voice, language, more, key, paced=pace_ms > 0)
    ask.check()
    return ask


@contextmanager
def _bar(title: str, quiet: bool) -> Iterator["Watch"]:
    """A progress bar on stderr over the time of the load, then over what is still coming in."""
    from rich import progress as rich_progress
    from rich.console import Console

    text = rich_progress.TextColumn
    columns = (text("{task.description}"), rich_progress.BarColumn(), text("{task.fields[counts]}"))
    console = Console(stderr=True, quiet=quiet)
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, counts="starting")

        def watch(progress: "Progress") -> None:
            counts = " ".join(f"{kind} {count}" for kind, count in progress.kinds.items())
            bar.update(
                task, total=progress.total, completed=progress.answered, counts=counts or "waiting"
            )

        yield watch


@contextmanager
def _plotting() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"plots need {error.name}: pip install 'vivace[bench]'") from None


def _line(result: "Result") -> str:
    s: Any = result["summary"]

    def ms(name: str) -> str:
        value = s[name]["p95"]
        return "-" if value is None else f"{value:.1f} ms"

    return (
        f"{result['rps']:g} rps: {s['completed']} of {s['requests']} completed, audible TTFA p95 "
        f"{ms('audible_ttfa_ms')}, TTFB p95 {ms('ttfb_ms')}, {s['underrun_requests']} underruns, "
        f"{s['refused']} refused, {s['failed']} failed, {s['x_realtime']:.1f} x real time, "
        f"own lag p99 {s['lag_ms']['p99']} ms"
    )


def _leave(result: "Result") -> None:
    """A run that is worth nothing does not look like one that is."""
    summary: Any = result["summary"]
    faults: Any = result["faults"]
    for fault in faults:
        print(f"vivace: {fault}", file=sys.stderr)
    if not result["valid"]:
        raise typer.Exit(CLIENT_WAS_THE_LIMIT)
    if not summary["completed"] and not summary["left"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in summary["kinds"].items())
        rows: Any = result["requests"]
        detail = next((row["detail"] for row in rows if row.get("detail")), "")
        print(f"vivace: nothing completed: {kinds}. {detail}", file=sys.stderr)
        raise typer.Exit(NOTHING_COMPLETED)


def _print_stages(result: dict[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table

    print(
        f"{result['device']}, {result['dtype']}: copy {result['copy_gb_s']} GB/s, "
        f"matmul {result['matmul_tflop_s']} TFLOP/s, ready after {result['ready_s']} s"
    )
    rows: Any = result["stages"]
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=160).print(table)
