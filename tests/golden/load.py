"""Loads the golden checkpoints with our own code."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from tests.golden import read

from vivace.checkpoint import Encoders, load
from vivace.model.codec import Codec
from vivace.model.predictor import Predictor
from vivace.model.spec import ModelSpec
from vivace.model.talker import Talker
from vivace.text.tokenize import Tokenizer


@dataclass(frozen=True)
class Model:
    """A golden checkpoint in fp32."""

    path: Path
    spec: ModelSpec
    tokenizer: Tokenizer
    talker: Talker
    predictor: Predictor
    codec: Codec
    encoders: Encoders | None


class Models:
    """The golden checkpoints by name, each put together under `root` and loaded once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.load = cache(self._load)
        torch.set_num_threads(1)  # on products this small, threads only wait for each other

    def _load(self, name: str) -> Model:
        path = read.assemble(name, self.root / name)
        m = load(path, "cpu", torch.float32)
        tokenizer = Tokenizer.from_dir(path)
        return Model(path, m.spec, tokenizer, m.talker, m.predictor, m.codec, m.encoders)
