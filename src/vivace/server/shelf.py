"""What an operator keeps beside the checkpoint, for every route: voices, styles and results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vivace.config import ServerConfig
from vivace.errors import Unprocessable
from vivace.server.results import Results
from vivace.types import Voice
from vivace.voices.consents import Consents, open_consents
from vivace.voices.kept import KEPT, Kept
from vivace.voices.store import Store
from vivace.voices.styles import Style, read_styles

if TYPE_CHECKING:
    from vivace.engine import Engine


@dataclass(frozen=True, slots=True)
class Shelf:
    """All of it; an empty one has nothing."""

    styles: Mapping[str, Style] = field(default_factory=dict)
    results: Results | None = None
    voices: Store | None = None
    consents: Consents | None = None

    def kept(self, engine: "Engine") -> list[Kept]:
        """The kept voices that an engine can speak with, oldest first."""
        if self.voices is None or all(model.spec.kind != "base" for model in engine.models):
            return []
        return self.voices.voices()

    def voices_of(self, engine: "Engine") -> list[Voice]:
        """The same as lists show them."""
        return list(map(voice_of, self.kept(engine)))

    def kept_as(self, voice: Voice | None) -> Kept | None:
        """The kept voice that a list shows as this one."""
        if voice is None or self.voices is None or not voice.id.startswith(KEPT):
            return None
        return self.voices.find(voice.id)

    @property
    def store(self) -> Store:
        """Where voices are kept. Raises Unprocessable if nowhere."""
        if self.voices is None:
            raise Unprocessable("This server keeps no voices.", code="not_supported")
        return self.voices


EMPTY: Final = Shelf()


def voice_of(kept: Kept) -> Voice:
    """A kept voice as lists show it."""
    return Voice(kept.card.id, kept.card.name, kept.card.language or None)


def open_shelf(config: ServerConfig) -> Shelf:
    """What the config names.

    Raises InvalidRequest for a file that cannot be used, Unavailable for such a folder.
    """
    folder, most = config.voices_dir, config.voices_max
    return Shelf(
        styles=read_styles(config.styles),
        results=_results(config),
        voices=None if folder is None else Store(folder, most=most),
        consents=None if folder is None else open_consents(folder / "consents", most),
    )


def _results(config: ServerConfig) -> Results | None:
    if config.cache_dir is None or not config.cache_mb:
        return None
    return Results(config.cache_dir, config.cache_mb << 20)
