"""The `vivace` command: say, serve, config, voices, doctor, synth-checkpoint, bench."""

import logging
import os
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vivace.bench.command import bench
from vivace.cluster.command import cluster
from vivace.errors import CheckpointError, DeviceLost, EngineFailure, InvalidRequest, VivaceError
from vivace.flags import as_toml, with_settings
from vivace.keep import means_kept, spoken_by, voices, with_voices
from vivace.logs import log_to_stderr
from vivace.settings import Effective
from vivace.simulate.command import simulate
from vivace.types import SILENCE_MS, SpeechRequest, TextMode

if TYPE_CHECKING:
    from vivace.config import EngineConfig
    from vivace.engine import Engine
    from vivace.host import MakeHost
    from vivace.roster import Offer

USERS_MISTAKE, OUR_FAULT, INTERRUPTED = 2, 1, 130
ENGINE_LOST, DEVICE_LOST = 3, 4  # of `vivace serve`, for its supervisor
MODEL = ("model", "revision", "offline")

commands = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench.command("simulate")(simulate)
commands.add_typer(bench, name="bench")
commands.command()(with_settings()(cluster))
commands.add_typer(voices, name="voices")


def app() -> None:
    """Run a command. Errors are one line on stderr: status 2 is the user's mistake, 1 is ours."""
    try:
        commands()
    except (InvalidRequest, CheckpointError) as error:
        _stop(error.message, USERS_MISTAKE)
    except VivaceError as error:
        _stop(error.message, OUR_FAULT)
    except KeyboardInterrupt:
        print("vivace: stopped", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)  # a thread that still loads cannot be unwound
    except OSError as error:
        _stop(f"{error.filename or 'system'}: {error.strerror or error}", USERS_MISTAKE)
    except Exception as error:
        if os.environ.get("VIVACE_DEBUG"):
            raise
        _stop(f"{type(error).__name__}: {error} (VIVACE_DEBUG=1 shows where)", OUR_FAULT)


def _stop(message: str, status: int) -> NoReturn:
    print("vivace:", " ".join(message.split()), file=sys.stderr)
    sys.exit(status)


@commands.callback(invoke_without_command=True)
def root(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A realtime speech server for Qwen3-TTS."""
    if show_version:
        print(f"vivace {version('vivace')}")
        raise typer.Exit


@commands.command()
@with_settings(*MODEL, "trim", "normalize", "device", "dtype", "quantize", "threads")
def say(
    chosen: Effective,
    text: Annotated[str | None, typer.Argument(help="What to say; - or nothing: stdin.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="WAV file; - is raw s16le 24 kHz to stdout.")
    ] = Path("speech.wav"),
    voice: Annotated[str | None, typer.Option(help="See `vivace voices`.")] = None,
    language: Annotated[str, typer.Option(help="English name, tag such as en-US, auto.")] = "auto",
    instruct: Annotated[str, typer.Option(help="How to say it, or the voice to design.")] = "",
    ref_audio: Annotated[
        Path | None,
        typer.Option(
            help="A clip of the voice, for a base checkpoint; any format.", metavar="FILE"
        ),
    ] = None,
    ref_text: Annotated[str, typer.Option(help="The words in the clip.")] = "",
    x_vector_only: Annotated[
        bool, typer.Option("--x-vector-only", help="Take the voice alone; needs no words.")
    ] = False,
    ref_silence_ms: Annotated[
        int,
        typer.Option(min=0, help="Silence put behind the clip; 0 takes the clip as it is."),
    ] = SILENCE_MS,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="The likeliest codes; no cap by the text's length.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed, the same codes.")] = None,
    text_mode: Annotated[
        TextMode, typer.Option(help="One token of text under each frame, or all of it before.")
    ] = TextMode.STREAMING,
    max_frames: Annotated[
        int | None, typer.Option(min=1, help="Most frames of 80 ms.", metavar="N")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option(help="An .npz for codes, pcm and prompt ids.", metavar="FILE")
    ] = None,
) -> None:
    """Speak a text into a WAV file, or to stdout while it is being made."""
    from vivace.roster import Wish, choose
    from vivace.say import check_output, read_clip, write_speech

    words = _words(text)
    check_output(output, dump)
    limits = chosen.engine.limits
    clip = read_clip(ref_audio, ref_text, ref_silence_ms, language, limits, alone=x_vector_only)
    log_to_stderr(logging.WARNING)
    config = replace(chosen.engine, max_sessions=1)
    with _engine(chosen, config) as engine:
        kept = voice if clip is None and means_kept(engine, voice) else None
        named = None if kept else voice
        wish = Wish(voice=named, instruct=bool(instruct), clone=bool(clip or kept))
        model = engine.models[choose(engine.models, wish)]
        if model.spec.kind == "base" and not (clip or kept):
            raise InvalidRequest(
                "This checkpoint speaks with the voice of a clip: name one with --ref-audio, or a "
                "kept voice with --voice (vivace voices list shows them)."
            )
        request = _request(model, named, language, instruct, text_mode, greedy, seed, max_frames)
        if clip is not None:
            request = replace(request, clone=engine.clone(clip, model.model_id))
        elif kept is not None:
            request = spoken_by(chosen, engine, kept, request)
        said = write_speech(engine.say(words, request), output, dump)
    print(said, file=sys.stderr)
    if not said.audio_s:
        raise EngineFailure("The model made no sound; another --seed may.")
    if output.name != "-":
        print(f"written to {output}", file=sys.stderr)


def _words(text: str | None) -> str:
    """The argument, or stdin; refused if nothing in it can be spoken."""
    from vivace.text.clean import speakable

    if text is None and sys.stdin.isatty():
        raise InvalidRequest('There is nothing to say: vivace say "Hello.", or pipe a text in.')
    if text is None or text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"The text on stdin is not UTF-8 (byte {error.start}).") from None
    if not speakable(text):
        raise InvalidRequest("The text holds nothing that can be spoken.", param="text")
    return text


def _request(
    model: "Offer",
    voice: str | None,
    language: str,
    instruct: str,
    text_mode: TextMode,
    greedy: bool,
    seed: int | None,
    max_frames: int | None,
) -> SpeechRequest:
    """The options in the checkpoint's own terms, with its own sampling for what they leave open."""
    from vivace.server.names import find_language, find_voice

    if voice is not None and model.voices:
        voice = find_voice(voice, model.voices).id
    sampling = replace(model.defaults, seed=seed)
    if max_frames is not None:
        sampling = replace(sampling, max_frames=max_frames)
    if greedy:
        sampling = replace(sampling, temperature=0.0, subtalker_temperature=0.0)
    return SpeechRequest(
        model=model.model_id,
        voice=voice,
        language=find_language(language, model.languages),
        instruct=instruct,
        text_mode=text_mode,
        sampling=sampling,
        guards=not greedy,
    )


@commands.command()
@with_settings()
def serve(chosen: Effective) -> None:
    """Serve speech over HTTP. `vivace config` shows every setting."""
    from vivace.server.keys import load_keys
    from vivace.server.serve import address_of, bind, check_tls, run, warn_of_strangers

    start, edge = chosen.start, chosen.server
    log_to_stderr(logging.INFO, start.log_format)
    check_tls(edge.tls_cert, edge.tls_key)
    keys = load_keys(edge.api_keys, edge.api_keys_file)  # what is wrong with them is said now
    with bind(start.host, start.port) as sock:
        from vivace.host import LoopThread
        from vivace.remote.lives import Lives

        warn_of_strangers(sock, edge)
        url = address_of(sock, tls=edge.tls_cert is not None)
        config = replace(chosen.engine, costs_dir=chosen.engine.costs_dir or _cache() / "costs")
        with _engine(chosen, config, LoopThread if start.in_process else Lives) as engine:
            run(engine, with_voices(edge), sock, lambda: _announce(url, keyed=bool(keys)))
            lost = engine.lost
    if lost is not None:
        print(f"vivace: the engine is lost: {lost.message}", file=sys.stderr, flush=True)
        # A step that hangs on a thread would be waited for.
        os._exit(DEVICE_LOST if isinstance(lost, DeviceLost) else ENGINE_LOST)


def _engine(chosen: Effective, config: "EngineConfig", host: "MakeHost | None" = None) -> "Engine":
    """The engine of the chosen checkpoints, where `host` runs it; without, in a thread."""
    from vivace.engine import Engine
    from vivace.host import LoopThread

    start = chosen.start
    return Engine(
        start.models or None,
        config=config,
        revision=start.revision,
        offline=start.offline,
        host=host or LoopThread,
    )


def _cache() -> Path:
    """Where this machine's user keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vivace"


def _announce(url: str, *, keyed: bool) -> None:
    key = "-H 'Authorization: Bearer YOUR_KEY' " if keyed else ""
    print(f"vivace is ready on {url}")
    print(
        f"try: curl {url}/v1/audio/speech {key}-H 'Content-Type: application/json' "
        """-d '{"input": "Hello, I am vivace."}' -o hello.mp3""",
        flush=True,
    )


@commands.command("config")
@with_settings()
def show_config(chosen: Effective) -> None:
    """Print every setting as `vivace serve` would have it, and where each came from."""
    print(as_toml(chosen))


@commands.command()
def trace(
    file: Annotated[Path, typer.Argument(help="What `vivace serve --trace FILE` has written.")],
    chrome: Annotated[
        Path | None, typer.Option(help="Write it for chrome://tracing.", metavar="FILE")
    ] = None,
) -> None:
    """Tell how each session fared: its wait, its first sound, what its listener had left."""
    import json

    from rich.console import Console
    from rich.table import Table

    from vivace.trace import chrome as as_chrome
    from vivace.trace import read_trace, tell

    events = read_trace(file)
    if chrome is not None:
        chrome.write_text(json.dumps(as_chrome(events)), encoding="utf-8")
    head = ("session", "waited ms", "first sound ms", "chunks", "least left ms", "late", "end")
    table = Table(*head, box=None)
    for told in tell(events):
        times = (told.waited_s, told.first_s, told.least_slack_s)
        waited, first, least = ("-" if t is None else f"{t * 1e3:.1f}" for t in times)
        row = (told.session, waited, first, str(told.chunks), least, str(told.late))
        table.add_row(*row, told.reason or "-")
    Console().print(table)


@commands.command()
@with_settings("host", "port")
def doctor(chosen: Effective) -> None:
    """Say what this machine can do and what is missing."""
    from vivace.doctor import examine

    findings = examine(chosen.start.host, chosen.start.port)
    print(*findings, sep="\n")
    if any(finding.mark == "MISSING" for finding in findings):
        raise typer.Exit(OUR_FAULT)


@commands.command("synth-checkpoint")
def synth_checkpoint(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    size: Annotated[
        str | None, typer.Option(help="tiny, 0.6b or 1.7b; without it tiny, or 1.7b with --from.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A small checkpoint that the new one shall speak like, at full size.",
            metavar="embedded|DIR",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="custom_voice, voice_design or base; without it custom_voice."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    mean_frames: Annotated[
        float | None, typer.Option(min=1, help="Mean length of its speech, in frames of 80 ms.")
    ] = None,
    until_text: Annotated[
        bool, typer.Option("--until-text", help="Its speech ends with its text, a token a frame.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
) -> None:
    """Write a checkpoint in the published layout: of random weights, or a small one widened."""
    if source is None:
        from vivace.checkpoint.synth import write_synthetic

        kind = kind or "custom_voice"
        size = size or "tiny"
        write_synthetic(
            out,
            size=size,
            kind=kind,
            seed=seed,
            mean_frames=mean_frames,
            until_text=until_text,
            dtype=dtype,
        )
    else:
        lengths = (("--mean-frames", mean_frames), ("--until-text", until_text or None))
        for option, value in (("--kind", kind), *lengths):
            if value is not None:
                raise InvalidRequest(f"{option} does not go with --from: {source} decides that.")
        from vivace.checkpoint.locate import locate
        from vivace.checkpoint.widen import write_widened

        folder = locate(source)
        write_widened(out, folder, size=size or "1.7b", seed=seed, dtype=dtype)
    print(f"written to {out}")
