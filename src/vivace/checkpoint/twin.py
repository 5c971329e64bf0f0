"""The tensors of a tiny checkpoint's twin at full size, one by one, under their published names."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from vivace.checkpoint.inlay import Inlay, place
from vivace.checkpoint.noise import CodecNoise, Noise
from vivace.checkpoint.tensors import Shape
from vivace.model.spec import CodecSpec, ModelSpec


class LanguageModelTwin:
    """Talker and predictor: two inlaid transformers and what leads into and out of them.

    The talker's states leave its last norm at the scale of its stream, because the projection to
    the predictor also takes the embeddings of that stream.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        noise: Noise,
        tiny: ModelSpec,
        wide: ModelSpec,
        text_ids: Mapping[int, int],
    ) -> None:
        """`text_ids` gives the wide id of a tiny one."""
        self.tensors, self.noise = tensors, noise
        self.talker = Inlay(tensors, noise, tiny.talker, wide.talker)
        self.predictor = Inlay(tensors, noise, tiny.predictor, wide.predictor)
        self.text_from, self.text_to = map(torch.tensor, zip(*text_ids.items(), strict=True))
        self.codes = torch.arange(tiny.predictor.vocab)
        special = torch.arange(wide.predictor.vocab, wide.talker.vocab)
        self.codec_ids = torch.cat((self.codes, special))
        self.width = tiny.talker.hidden
        self.special = {
            "talker.model.text_embedding.weight": self._text_embedding,
            "talker.text_projection.linear_fc1.weight": self._text_up,
            "talker.text_projection.linear_fc1.bias": self._text_up_bias,
            "talker.text_projection.linear_fc2.weight": self._text_out,
            "talker.text_projection.linear_fc2.bias": self._text_out_bias,
            "talker.model.codec_embedding.weight": self._codec_embedding,
            "talker.model.norm.weight": self._talker_norm,
            "talker.codec_head.weight": self._codec_head,
            "talker.code_predictor.model.codec_embedding.weight": self._later_embedding,
            "talker.code_predictor.small_to_mtp_projection.weight": self._projection,
            "talker.code_predictor.small_to_mtp_projection.bias": self._projection_bias,
            "talker.code_predictor.model.norm.weight": self._predictor_norm,
            "talker.code_predictor.lm_head.weight": self._later_head,
        }

    def __call__(self, name: str, shape: Shape) -> Tensor:
        """The tensor `name`."""
        if ".layers." in name:
            return (self.predictor if ".code_predictor." in name else self.talker)(name, shape)
        return self.special[re.sub(r"\.\d+\.", ".", name)](name, shape)

    def _text_embedding(self, name: str, shape: Shape) -> Tensor:
        part = self.tensors[name][self.text_from]
        return place(self.noise.normal(name, shape), part, self.text_to)

    def _text_up(self, name: str, shape: Shape) -> Tensor:
        return place(self.noise.layer(name, shape), self.tensors[name])

    def _text_up_bias(self, name: str, shape: Shape) -> Tensor:
        x, part = self.noise.normal(name, shape, 0.1), self.tensors[name]
        x[: len(part)] = part.to(x.dtype)
        return x

    def _text_out(self, name: str, shape: Shape) -> Tensor:
        return self.talker.enter(self.tensors[name], shape)

    def _text_out_bias(self, name: str, shape: Shape) -> Tensor:
        return self.talker.enter_bias(self.tensors[name], shape)  # every position has one text id

    def _codec_embedding(self, name: str, shape: Shape) -> Tensor:
        part = self.tensors[name] * self.talker.scale
        return place(self.noise.normal(name, shape), part, self.codec_ids)

    def _later_embedding(self, name: str, shape: Shape) -> Tensor:
        return place(self.noise.normal(name, shape), self.tensors[name] * self.talker.scale)

    def _talker_norm(self, name: str, shape: Shape) -> Tensor:
        return self.talker.last_norm(name, shape, self.talker.scale)

    def _codec_head(self, name: str, shape: Shape) -> Tensor:
        return self.talker.head(name, shape, self.codec_ids, self.talker.scale)

    def _projection(self, name: str, shape: Shape) -> Tensor:
        part = self.tensors.get(name, torch.eye(self.width))  # none between equal sizes
        return self.predictor.enter(part / self.talker.scale, shape)

    def _projection_bias(self, name: str, shape: Shape) -> Tensor:
        part = self.tensors.get(name, torch.zeros(self.predictor.tiny.hidden))
        return self.predictor.enter_bias(part, shape)

    def _predictor_norm(self, name: str, shape: Shape) -> Tensor:
        return self.predictor.last_norm(name, shape, 1.0)

    def _later_head(self, name: str, shape: Shape) -> Tensor:
        return self.predictor.head(name, shape, self.codes, 1.0)


class CodecTwin:
    """The speech tokenizer: an inlaid transformer; everything else has its channels repeated.

    Repeated channels keep the mean and variance that ConvNeXt's norm takes, and leave no weight
    zero: a layer reads every copy of its input, divided by their number.
    """

    TRANSPOSED = re.compile(r"decoder\.(upsample\.\d+\.0|decoder\.\d+\.block\.1)\.conv\.weight")

    def __init__(
        self, tensors: Mapping[str, Tensor], noise: Noise, tiny: CodecSpec, wide: CodecSpec
    ) -> None:
        self.tensors, self.tiny = tensors, tiny
        self.spare = CodecNoise(wide, noise)  # the encoder, and codes the tiny one lacks
        self.transformer = Inlay(tensors, noise, tiny, wide)

    def __call__(self, name: str, shape: Shape) -> Tensor:
        """The tensor `name`."""
        if name.startswith("encoder."):
            return self.spare(name, shape)
        if name.startswith("decoder.pre_transformer."):
            return self._transformer(name, shape)
        if name.endswith(("cluster_usage", "embedding_sum")):
            return self._codebook(name, shape)
        axis = 0 if self.TRANSPOSED.fullmatch(name) else 1  # of its input
        return _repeat(self.tensors[name], shape, axis if len(shape) > 1 else None)

    def _transformer(self, name: str, shape: Shape) -> Tensor:
        part, stream = self.tensors.get(name), self.transformer
        if part is None or ".layers." in name or name.endswith(".norm.weight"):
            return stream(name, shape)
        if name.endswith("input_proj.weight"):
            return stream.enter(_repeat(part, (part.shape[0], shape[1]), 1), shape)
        if name.endswith("input_proj.bias"):
            return stream.enter_bias(part, shape)
        part = _repeat(part, (shape[0], *part.shape[1:]))
        return part if len(shape) == 1 else place(torch.zeros(shape), part)

    def _codebook(self, name: str, shape: Shape) -> Tensor:
        x, part = self.spare(name, shape), self.tensors[name]
        x[: len(part)] = _repeat(part, (len(part), *shape[1:]))
        return x


def _repeat(part: Tensor, shape: Shape, into: int | None = None) -> Tensor:
    """Copies of `part` up to `shape`, one after the other; `into` is the axis that a layer sums."""
    copies = [wide // tiny for wide, tiny in zip(shape, part.shape, strict=True)]
    return part.repeat(copies) / (1 if into is None else copies[into])
