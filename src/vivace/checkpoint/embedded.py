"""The default checkpoint, for starting without a model: made on first use, then kept in a cache."""

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from vivace.checkpoint.synth import write_synthetic
from vivace.errors import CheckpointError

log = logging.getLogger("vivace")


def embedded(cache_dir: Path | None = None) -> Path:
    """The folder of the default checkpoint, a tiny synthetic one until a trained voice ships.

    Kept under `cache_dir`, else $VIVACE_CACHE, else $XDG_CACHE_HOME/vivace or ~/.cache/vivace.
    Raises CheckpointError if nothing can be written there.
    """
    log.warning("no model was given: the embedded voice is voice-like noise, not speech")
    cache = cache_dir or _cache_dir()
    folder = cache / f"embedded-{_version()}"
    if not folder.is_dir():
        _make(folder)
    return folder


def _cache_dir() -> Path:
    own = os.environ.get("VIVACE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    return Path(own or (Path(shared) if shared else Path.home() / ".cache") / "vivace").expanduser()


def _version() -> str:
    """A key of the code that makes the checkpoint: what it would make is what it names."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _make(folder: Path) -> None:
    """Write beside the folder, then rename: it is there as a whole or not at all.

    Of several processes that make it at the same time, the first one's rename counts.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as scratch:
            write_synthetic(Path(scratch) / "new", until_text=True)
            try:
                (Path(scratch) / "new").rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise CheckpointError(
            f"The embedded voice cannot be kept in {folder.parent}: {error.strerror}. Set "
            "VIVACE_CACHE to a folder that can be written, or give a model."
        ) from error
