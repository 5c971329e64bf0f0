"""What an operator keeps beside the checkpoint, for every route: styles."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vivace.config import ServerConfig
from vivace.voices.styles import Style, read_styles


@dataclass(frozen=True, slots=True)
class Shelf:
    """All of it; an empty one has nothing."""

    styles: Mapping[str, Style] = field(default_factory=dict)


EMPTY: Final = Shelf()


def open_shelf(config: ServerConfig) -> Shelf:
    """What the config names. Raises InvalidRequest for a file that cannot be used."""
    return Shelf(styles=read_styles(config.styles))
