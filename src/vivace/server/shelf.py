"""What an operator keeps beside the checkpoint, for every route: styles and results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vivace.config import ServerConfig
from vivace.server.results import Results
from vivace.voices.styles import Style, read_styles


@dataclass(frozen=True, slots=True)
class Shelf:
    """All of it; an empty one has nothing."""

    styles: Mapping[str, Style] = field(default_factory=dict)
    results: Results | None = None


EMPTY: Final = Shelf()


def open_shelf(config: ServerConfig) -> Shelf:
    """What the config names. Raises InvalidRequest for a file that cannot be used."""
    return Shelf(styles=read_styles(config.styles), results=_results(config))


def _results(config: ServerConfig) -> Results | None:
    if config.cache_dir is None or not config.cache_mb:
        return None
    return Results(config.cache_dir, config.cache_mb << 20)
