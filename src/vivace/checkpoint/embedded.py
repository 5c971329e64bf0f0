"""The checkpoint in the box: a small voice that comes with the package."""

from pathlib import Path


def embedded() -> Path:
    """Its folder, in the published layout like any other's; `training/` says how it was made."""
    return Path(__file__).parent.parent / "voice"
