"""A realtime speech server for Qwen3-TTS."""

from typing import TYPE_CHECKING

from vivace.config import EngineConfig
from vivace.errors import VivaceError
from vivace.types import (
    Chunk,
    Clip,
    Clone,
    Done,
    FinishReason,
    Sampling,
    SpeechRequest,
    TextMode,
    Voice,
)

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.session import Session

__all__ = [
    "Chunk",
    "Clip",
    "Clone",
    "Done",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "Sampling",
    "Session",
    "SpeechRequest",
    "TextMode",
    "VivaceError",
    "Voice",
]


def __getattr__(name: str) -> object:
    """The engine brings what takes time to load: only when it is asked for."""
    if name == "Engine":
        from vivace.engine import Engine

        return Engine
    if name == "Session":
        from vivace.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
