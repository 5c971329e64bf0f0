"""The voice in the box: small, complete, and nothing special to the loader."""

import torch

from vivace.checkpoint import load
from vivace.checkpoint.embedded import embedded


def test_it_loads_like_any_checkpoint() -> None:
    spec = load(embedded(), "cpu", torch.float32).spec
    assert (spec.kind, spec.size) == ("custom_voice", "tiny")
    assert spec.speakers and "english" in spec.languages
    assert spec.piece_s == 8.0, "it loses words in longer prompts"


def test_it_is_small_and_says_where_it_comes_from() -> None:
    files = [path for path in embedded().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 20_000_000
    card = (embedded() / "README.md").read_text()
    for word in ("Apache-2.0", "hibari-tts", "license"):
        assert word in card
