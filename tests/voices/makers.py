"""Voices for tests, and a process that writes them until it is killed."""

import sys
from pathlib import Path

import numpy as np

from vivace.types import Clone
from vivace.voices.store import Making, Store

FRAMES, CODEBOOKS, HIDDEN = 12, 16, 32


def clone(seed: int = 0, *, hidden: int = HIDDEN, ref_text: str | None = "Hello.") -> Clone:
    """One of its own for each seed; without `ref_text` it has no codes."""
    draw = np.random.default_rng(seed)
    vector = draw.normal(size=hidden).astype(np.float32)
    if ref_text is None:
        return Clone(vector)
    return Clone(vector, draw.integers(0, 2048, (FRAMES, CODEBOOKS)), ref_text)


def same(one: Clone, other: Clone) -> bool:
    """Are they the same voice?"""
    if not np.array_equal(one.x_vector, other.x_vector):
        return False
    if one.ref_codes is None or other.ref_codes is None:
        return one.ref_codes is other.ref_codes
    return np.array_equal(one.ref_codes, other.ref_codes)


def work(folder: Path) -> None:
    """Add, rename and remove voices for ever, and say each that is done."""
    store, number = Store(folder), 0
    while True:
        number += 1
        store.add(Making(f"v{number}"), clone(number), "tiny", b"x" * 50_000)
        print("added", number, flush=True)
        if number % 3 == 0:
            store.change(f"v{number}", name=f"w{number}")
            print("renamed", number, flush=True)
        if number % 5 == 0:
            old = number - 1
            store.remove(f"w{old}" if old % 3 == 0 else f"v{old}")
            print("removed", old, flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
