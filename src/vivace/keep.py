"""`vivace voices` and its subcommands: a checkpoint's voices, and those that are kept."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vivace.config import ServerConfig
from vivace.errors import InvalidRequest, Unavailable, Unprocessable
from vivace.flags import with_settings
from vivace.settings import Effective, data_folder
from vivace.types import SpeechRequest

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.server.studio import Studio
    from vivace.voices.store import Store

log = logging.getLogger("vivace")

MODEL = ("model", "revision", "offline")
WHERE = ("voices_dir", "voices_max")

voices = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

Opt = typer.Option
Name = Annotated[str, typer.Argument(help="Name or id of a kept voice.")]


@voices.callback()
@with_settings(*MODEL)
def voices_of(chosen: Effective, ctx: typer.Context) -> None:
    """List the voices and languages of checkpoints; the commands are for voices that are kept."""
    if ctx.invoked_subcommand is not None:
        return
    from vivace.checkpoint.embedded import embedded
    from vivace.checkpoint.locate import locate

    start = chosen.start
    for model in start.models or (None,):
        path = embedded()
        if model is not None:
            path = locate(model, revision=start.revision, offline=start.offline)
        if len(start.models) > 1:
            print(f"{model}:")
        _print_voices(path)


def _print_voices(path: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from vivace.checkpoint.read import read_spec

    spec = read_spec(path)
    if spec.speakers:
        table = Table("voice", "dialect", box=None)
        for voice in spec.speakers:
            table.add_row(voice, spec.dialects.get(voice, ""))
        Console().print(table)
    else:
        print(f"A {spec.kind} checkpoint has no named voices.")
    print(f"languages: auto, {', '.join(spec.languages)}")


@voices.command("list")
@with_settings(*WHERE)
def list_kept(chosen: Effective) -> None:
    """List the kept voices."""
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.table import Table

    store = _store(chosen)
    table = Table("name", "id", "language", "takes", "made", box=None)
    for kept in store.voices():
        card = kept.card
        takes = "its sound" if kept.clone.ref_codes is None else "its sound and words"
        made = datetime.fromtimestamp(card.created_s, UTC).strftime("%Y-%m-%d")
        table.add_row(card.name, card.id, card.language or "-", takes, made)
    Console().print(table) if table.rows else print("No voices are kept yet.")


@voices.command()
@with_settings(*MODEL, *WHERE, "device", "dtype", "threads")
def add(
    chosen: Effective,
    name: Annotated[str, typer.Argument(help="What the voice will be called.")],
    clip: Annotated[Path, typer.Argument(help="Sound of it, in any format.")],
    ref_text: Annotated[str, Opt(help="The words in the clip; without, its sound alone.")] = "",
    language: Annotated[str, Opt(help="Spoken where a request does not say.")] = "auto",
    seed: Annotated[int | None, Opt(min=0, help="Drawn where a request does not say.")] = None,
    instruct: Annotated[str, Opt(help="Followed where a request does not say.")] = "",
    description: Annotated[str, Opt(help="For people.")] = "",
    keep_clip: Annotated[
        bool, Opt("--keep-clip/--forget-clip", help="Keep the clip, for other models.")
    ] = True,
) -> None:
    """Take a voice from a clip with a base checkpoint (--model), and keep it."""
    from vivace.server.names import find_language
    from vivace.voices.store import Making

    data = clip.read_bytes()
    with _studio(chosen) as studio:
        spoken = find_language(language, studio.engine.languages)
        making = Making(
            name,
            ref_text=ref_text.strip(),
            keep_clip=keep_clip,
            language="" if spoken == "auto" else spoken,
            seed=seed,
            instruct=instruct,
            description=description,
        )
        kept, warnings = studio.make(making, data)
    for warning in warnings:
        print("vivace:", warning, file=sys.stderr)
    print(kept.card.id)


@voices.command()
@with_settings(*MODEL, *WHERE, "device", "dtype", "threads")
def renew(chosen: Effective, name: Name) -> None:
    """Make a kept voice anew of its clip, for another base checkpoint (--model)."""
    with _studio(chosen) as studio:
        studio.renew(studio.shelf.store.get(name))


@voices.command()
@with_settings(*WHERE)
def export(
    chosen: Effective,
    name: Name,
    file: Annotated[
        Path | None, typer.Argument(help="File to write; without, named by id.")
    ] = None,
) -> None:
    """Write all of a kept voice into one file."""
    store = _store(chosen)
    kept = store.get(name)
    path = file or Path(f"{kept.card.id}.safetensors")
    path.write_bytes(store.export(kept.card.id))
    print(f"written to {path}")


@voices.command("import")
@with_settings(*WHERE)
def take_in(
    chosen: Effective,
    file: Annotated[Path, typer.Argument(help="A file that `vivace voices export` has written.")],
    name: Annotated[str | None, Opt(help="Another name for it.")] = None,
) -> None:
    """Keep a voice from such a file."""
    store = _store(chosen)
    if file.stat().st_size > store.most_bytes:
        raise InvalidRequest(f"{file} is over the limit of {store.most_bytes:,} bytes.")
    print(store.take_in(file.read_bytes(), name).card.id)


@voices.command("rm")
@with_settings(*WHERE)
def remove(chosen: Effective, name: Name) -> None:
    """Forget a kept voice."""
    _store(chosen).remove(name)


@voices.command()
@with_settings(*WHERE)
def rename(
    chosen: Effective,
    name: Name,
    new: Annotated[str, typer.Argument(help="What it will be called.")],
) -> None:
    """Give a kept voice another name."""
    _store(chosen).change(name, name=new)


def with_voices(server: ServerConfig) -> ServerConfig:
    """With the user's data folder for voices, where none is named and it can be used."""
    from vivace.voices.store import Store

    if server.voices_dir is not None:
        return server
    folder = data_folder() / "voices"
    try:
        Store(folder)
    except Unavailable as error:
        log.warning("no voices are kept: %s", error)
        return server
    return replace(server, voices_dir=folder)


def means_kept(engine: "Engine", name: str | None) -> bool:
    """Can a voice of that name only be a kept one?"""
    from vivace.roster import named_so

    bases = [model for model in engine.models if model.spec.kind == "base"]
    return bool(name and bases and not any(named_so(model, name) for model in engine.models))


def spoken_by(
    chosen: Effective, engine: "Engine", name: str, request: SpeechRequest
) -> SpeechRequest:
    """The request with a kept voice, and its manner where the request has none.

    Raises NotFound, and Unprocessable for a voice of another model.
    """
    from vivace.server.casting import fits

    kept = _store(chosen).get(name)
    model = next(model for model in engine.models if model.spec.kind == "base")
    if not fits(kept, model):
        raise Unprocessable(
            f"The voice {kept.card.name!r} was made for another model: vivace voices renew.",
            param="voice",
        )
    card, sampling, language = kept.card, request.sampling, request.language
    if sampling is not None and sampling.seed is None:
        sampling = replace(sampling, seed=card.seed)
    if language == "auto" and card.language in model.languages:
        language = card.language
    return replace(
        request,
        model=model.model_id,
        voice=None,
        clone=kept.clone,
        sampling=sampling,
        language=language,
    )


def _store(chosen: Effective) -> "Store":
    from vivace.voices.store import Store

    server = chosen.server
    return Store(server.voices_dir or data_folder() / "voices", most=server.voices_max)


@contextmanager
def _studio(chosen: Effective) -> "Iterator[Studio]":
    """Where the chosen checkpoint makes voices."""
    from vivace.engine import Engine
    from vivace.server.clips import Clones
    from vivace.server.shelf import Shelf
    from vivace.server.studio import Studio

    start, store = chosen.start, _store(chosen)
    with Engine(
        start.models, config=chosen.engine, revision=start.revision, offline=start.offline
    ) as engine:
        studio = Studio(engine, Shelf(voices=store), Clones(chosen.server).decode)
        _ = studio.base
        yield studio
