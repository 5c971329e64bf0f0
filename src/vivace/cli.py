"""The `vivace` command: say, serve, voices, doctor, synth-checkpoint, bench."""

import logging
import os
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vivace.bench.command import bench
from vivace.config import PROFILES, EngineConfig, ServerConfig, profile_of
from vivace.errors import CheckpointError, EngineFailure, InvalidRequest, VivaceError
from vivace.logs import log_to_stderr
from vivace.simulate.command import simulate
from vivace.types import SpeechRequest, TextMode

if TYPE_CHECKING:
    from vivace.engine import Engine

USERS_MISTAKE, OUR_FAULT, INTERRUPTED = 2, 1, 130
DEFAULTS = EngineConfig()

commands = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench.command("simulate")(simulate)
commands.add_typer(bench, name="bench")

Model = Annotated[
    str | None,
    typer.Option(help="Folder or hub id of a checkpoint; without it, the embedded voice."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the hub id.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use what is in the hub's cache only.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Threads = Annotated[
    int, typer.Option(min=0, help="CPU threads; 0: one for a small model, else every core.")
]
Graphs = Annotated[
    bool, typer.Option(" /--no-graphs", help="On a card, launch kernels one by one.")
]
Kernels = Annotated[
    bool, typer.Option(" /--no-kernels", help="On a card, use torch's own kernels.")
]
Trim = Annotated[bool, typer.Option("--trim/--no-trim", help="Drop the silence before the speech.")]
Normalize = Annotated[
    bool,
    typer.Option("--normalize/--no-normalize", help="Take markdown, emoji and tags out of texts."),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
TlsCert = Annotated[
    Path | None, typer.Option(help="Serve https and wss with this certificate (PEM).")
]
TlsKey = Annotated[
    Path | None, typer.Option(help="Its private key, unless the certificate's file holds it.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is a free one.")]


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
def say(
    text: Annotated[str | None, typer.Argument(help="What to say; - or nothing: stdin.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="WAV file; - is raw s16le 24 kHz to stdout.")
    ] = Path("speech.wav"),
    model: Model = None,
    revision: Revision = None,
    offline: Offline = False,
    voice: Annotated[str | None, typer.Option(help="See `vivace voices`.")] = None,
    language: Annotated[str, typer.Option(help="English name, tag such as en-US, auto.")] = "auto",
    instruct: Annotated[str, typer.Option(help="How to say it, or the voice to design.")] = "",
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
    trim: Trim = True,
    normalize: Normalize = DEFAULTS.normalize,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = 0,
) -> None:
    """Speak a text into a WAV file, or to stdout while it is being made."""
    from vivace.say import check_output, write_speech

    words = _words(text)
    check_output(output, dump)
    from vivace.engine import Engine  # brings torch: not before we know what to say

    log_to_stderr(logging.WARNING)
    config = EngineConfig(
        device=device,
        dtype=dtype,
        threads=threads,
        max_sessions=1,
        trim=trim,
        normalize=normalize,
    )
    with Engine(model, config=config, revision=revision, offline=offline) as engine:
        request = _request(engine, voice, language, instruct, text_mode, greedy, seed, max_frames)
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
    engine: "Engine",
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

    if voice is not None and engine.voices:
        voice = find_voice(voice, engine.voices).id
    sampling = replace(engine.defaults, seed=seed)
    if max_frames is not None:
        sampling = replace(sampling, max_frames=max_frames)
    if greedy:
        sampling = replace(sampling, temperature=0.0, subtalker_temperature=0.0)
    return SpeechRequest(
        voice=voice,
        language=find_language(language, engine.languages),
        instruct=instruct,
        text_mode=text_mode,
        sampling=sampling,
        guards=not greedy,
    )


@commands.command()
def serve(
    model: Model = None,
    revision: Revision = None,
    offline: Offline = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_sessions: Annotated[
        int, typer.Option(min=1, help="Streams made at the same time.")
    ] = DEFAULTS.max_sessions,
    max_queue: Annotated[
        int, typer.Option(min=0, help="Requests that may wait for one.")
    ] = DEFAULTS.max_queue,
    slo_ttfa_ms: Annotated[
        float, typer.Option(min=0, help="Requests whose first sound would take longer are refused.")
    ] = DEFAULTS.slo_ttfa_s * 1e3,
    profile: Annotated[
        str, typer.Option(help=f"What the scheduler favours: {', '.join(PROFILES)}.")
    ] = "balanced",
    trace: Annotated[
        Path | None, typer.Option(help="Append every decision to this file.", metavar="FILE")
    ] = None,
    threads: Threads = 0,
    graphs: Graphs = True,
    kernels: Kernels = True,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Engine and HTTP in one process.")
    ] = False,
    trim: Trim = True,
    normalize: Normalize = DEFAULTS.normalize,
    model_alias: Annotated[
        list[str], typer.Option(help="One more name for the model; may be given again.")
    ] = [],  # noqa: B006
    voice_alias: Annotated[
        list[str],
        typer.Option(help="One more name for a voice; may be given again.", metavar="NAME=VOICE"),
    ] = [],  # noqa: B006
) -> None:
    """Serve speech over HTTP."""
    from vivace.server.serve import address_of, bind, check_tls, run

    check_tls(tls_cert, tls_key)
    edge = ServerConfig(
        model_aliases=tuple(model_alias),
        voice_aliases=dict(map(_alias, voice_alias)),
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    sock = bind(host, port)
    from vivace.engine import Engine
    from vivace.host import LoopThread
    from vivace.remote.near import LoopProcess

    log_to_stderr(logging.INFO)
    config = EngineConfig(
        device=device,
        dtype=dtype,
        threads=threads,
        max_sessions=max_sessions,
        max_queue=max_queue,
        graphs=graphs,
        kernels=kernels,
        slo_ttfa_s=slo_ttfa_ms / 1e3,
        profile=profile_of(profile),
        trace=trace,
        costs_dir=_cache() / "costs",
        trim=trim,
        normalize=normalize,
    )
    with Engine(
        model,
        config=config,
        revision=revision,
        offline=offline,
        host=LoopThread if in_process else LoopProcess,
    ) as engine:
        run(engine, edge, sock, lambda: _announce(address_of(sock, tls=tls_cert is not None)))


def _alias(text: str) -> tuple[str, str]:
    name, _, voice = text.partition("=")
    if not (name and voice):
        raise InvalidRequest(f"--voice-alias must be NAME=VOICE; got {text!r}.")
    return name, voice


def _cache() -> Path:
    """Where this machine's user keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vivace"


def _announce(url: str) -> None:
    print(f"vivace is ready on {url}")
    print(
        f"try: curl {url}/v1/audio/speech -H 'Content-Type: application/json' "
        """-d '{"input": "Hello, I am vivace."}' -o hello.mp3""",
        flush=True,
    )


@commands.command()
def voices(model: Model = None, revision: Revision = None, offline: Offline = False) -> None:
    """List the voices and languages of a checkpoint."""
    from rich.console import Console
    from rich.table import Table

    from vivace.checkpoint.embedded import embedded
    from vivace.checkpoint.locate import locate
    from vivace.checkpoint.read import read_spec

    path = embedded() if model is None else locate(model, revision=revision, offline=offline)
    spec = read_spec(path)
    if spec.speakers:
        table = Table("voice", "dialect", box=None)
        for voice in spec.speakers:
            table.add_row(voice, spec.dialects.get(voice, ""))
        Console().print(table)
    else:
        print(f"A {spec.kind} checkpoint has no named voices.")
    print(f"languages: auto, {', '.join(spec.languages)}")


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
def doctor(host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Say what this machine can do and what is missing."""
    from vivace.doctor import examine

    findings = examine(host, port)
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
        from vivace.checkpoint.embedded import embedded
        from vivace.checkpoint.locate import locate
        from vivace.checkpoint.widen import write_widened

        folder = embedded() if source == "embedded" else locate(source)
        write_widened(out, folder, size=size or "1.7b", seed=seed, dtype=dtype)
    print(f"written to {out}")
