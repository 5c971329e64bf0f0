"""The random language model of a synthetic checkpoint, wired so that speech comes to an end.

Random weights know no end of speech. So four channels of the talker's residual stream are kept
free of noise, and the end-of-speech row of `codec_head` reads from them:

STEADY  a constant, large enough that the RMS of every row is about the same
COUNT   +1 for a row of text over codec padding, -1 for a frame without text, else 0
DEBT    the mean of COUNT over all positions so far: positive while text tokens outnumber frames.
        Written by a head of the first layer that looks at every position alike
COIN    a standard normal number per frame, to which all its codes but the first add their own:
        which of them are drawn hardly depends on the text

Speech ends when DEBT falls below zero ("until text"), or whenever COIN exceeds what it exceeds once
in so many frames. Neither depends on how the codes are sampled.
"""

import math
from statistics import NormalDist

from torch import Tensor

from vivace.checkpoint.noise import Noise
from vivace.checkpoint.tensors import Shape
from vivace.model.spec import ModelSpec

STEADY, COUNT, DEBT, COIN = range(4)
RESERVED = slice(0, 4)

# Powers are per channel.
ROW_POWER = 2.0  # of an input row: 1 of its text token, 1 of what is added to it
STEADY_POWER = 8 * ROW_POWER
LAYERS_POWER = 2.0  # that all layers together add
CODE_STD = 0.25  # of a code's embedding: 16 of them sum to a power of 1
SILU_POWER = 0.355  # E[silu(x)^2] for a standard normal x
RELU_GAIN = math.sqrt(2.0)
X_VECTOR_GAIN = 0.1  # log-mel values are far from 0
LOGIT_STD = 2.0
GATE = 16.0  # silu(16) is 16
SPARE_FRAMES = 1.5  # more than the text has tokens, before speech ends
DEBT_GAIN = 16.0
END_LOGIT = 4000.0  # per unit of mean COUNT, or of COIN: sharp, and within reach of fp16


class LanguageModel:
    """Makes the tensors of talker and predictor one by one, under their published names.

    `mean_frames` None ends speech with its text; a number makes it the mean length of speech.
    """

    def __init__(self, spec: ModelSpec, noise: Noise, mean_frames: float | None) -> None:
        self.spec, self.noise, self.mean_frames = spec, noise, mean_frames
        self.codes = spec.predictor.vocab
        self.special = {
            "talker.model.text_embedding.weight": self._text_embedding,
            "talker.text_projection.linear_fc1.weight": self._text_up,
            "talker.text_projection.linear_fc1.bias": self._text_up_bias,
            "talker.text_projection.linear_fc2.weight": self._text_out,
            "talker.text_projection.linear_fc2.bias": self._text_out_bias,
            "talker.model.codec_embedding.weight": self._codec_embedding,
            "talker.model.layers.0.input_layernorm.weight": self._first_norm,
            "talker.model.layers.0.self_attn.q_proj.weight": self._first_query,
            "talker.model.layers.0.self_attn.v_proj.weight": self._first_value,
            "talker.model.layers.0.self_attn.o_proj.weight": self._first_out,
            "talker.model.norm.weight": self._last_norm,
            "talker.codec_head.weight": self._codec_head,
        }

    def __call__(self, name: str, shape: Shape) -> Tensor:
        """The tensor `name`."""
        if name in self.special:
            return self.special[name](name, shape)
        if name.startswith("talker.code_predictor."):
            return self._predictor(name, shape)
        if name.startswith("speaker_encoder."):
            return self._speaker(name, shape)
        return self._layer(name, shape)

    def _branch(self, name: str, shape: Shape, power: float) -> Tensor:
        """The projection that adds a branch's `power` to the residual stream."""
        into = SILU_POWER if "down_proj" in name else 1.0
        return self.noise.layer(name, shape, math.sqrt(power / into))

    def _norm(self, shape: Shape, power: float) -> Tensor:
        """The norm of rows with noise of this power, brought to 1: x becomes x / sqrt(power)."""
        x = self.noise.constant(shape, math.sqrt((power + STEADY_POWER) / power))
        x[RESERVED] = 0.0
        return x

    # Text to rows: STEADY is a bias; COUNT is -1 for the three marks of text, which one unit of
    # the projection tells from tokens.

    def _text_embedding(self, name: str, shape: Shape) -> Tensor:
        x, ids = self.noise.normal(name, shape), self.spec.text_ids
        x[:, 0] = 0.0
        x[[ids.tts_pad, ids.tts_bos, ids.tts_eos], 0] = 1.0
        return x

    def _text_up(self, name: str, shape: Shape) -> Tensor:
        x = self.noise.layer(name, shape)
        x[0], x[:, 0] = 0.0, 0.0
        x[0, 0] = GATE
        return x

    def _text_up_bias(self, name: str, shape: Shape) -> Tensor:
        x = self.noise.normal(name, shape, 0.1)
        x[0] = 0.0
        return x

    def _text_out(self, name: str, shape: Shape) -> Tensor:
        x = self.noise.layer(name, shape, 1 / math.sqrt(SILU_POWER))
        x[RESERVED], x[:, 0] = 0.0, 0.0
        x[COUNT, 0] = -1.0 / GATE
        return x

    def _text_out_bias(self, _: str, shape: Shape) -> Tensor:
        x = self.noise.constant(shape, 0.0)
        x[STEADY] = math.sqrt(STEADY_POWER * shape[0])
        return x

    def _codec_embedding(self, name: str, shape: Shape) -> Tensor:
        """Every special id makes up for the text mark it stands under."""
        x = self.noise.normal(name, shape)
        x[: self.codes] *= CODE_STD
        x[:, RESERVED] = 0.0
        x[self.codes :, COUNT] = 1.0
        x[self.spec.codec_ids.bos, COUNT] = SPARE_FRAMES
        return x

    # The layers read and write none of the reserved channels, but for one head of the first.

    def _layer(self, name: str, shape: Shape) -> Tensor:
        layers = self.spec.talker.layers
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return self.noise.constant(shape, 1.0)
        if name.endswith("norm.weight"):
            return self._norm(shape, ROW_POWER + LAYERS_POWER * int(name.split(".")[3]) / layers)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            x = self._branch(name, shape, LAYERS_POWER / (2 * layers))
            x[RESERVED] = 0.0
            return x
        return self.noise.layer(name, shape)

    def _first_norm(self, name: str, shape: Shape) -> Tensor:
        x = self._layer(name, shape)
        x[COUNT] = x[-1]
        return x

    def _first_query(self, name: str, shape: Shape) -> Tensor:
        x = self._layer(name, shape)
        x[: self.spec.talker.head_dim] = 0.0  # a query of zero: the mean of all positions
        return x

    def _first_value(self, name: str, shape: Shape) -> Tensor:
        x = self._layer(name, shape)
        x[0] = 0.0
        x[0, COUNT] = math.sqrt(ROW_POWER)
        return x

    def _first_out(self, name: str, shape: Shape) -> Tensor:
        x = self._layer(name, shape)
        x[DEBT, 0] = DEBT_GAIN
        return x

    def _last_norm(self, _: str, shape: Shape) -> Tensor:
        x = self._norm(shape, ROW_POWER + LAYERS_POWER)
        x[DEBT] = x[COIN] = x[-1]
        x[STEADY] = x[-1] / math.sqrt(STEADY_POWER * shape[0])  # arrives as COIN does at 1
        return x

    def _codec_head(self, name: str, shape: Shape) -> Tensor:
        x = self.noise.layer(name, shape, LOGIT_STD)
        x[:, RESERVED] = 0.0
        end = x[self.spec.codec_ids.eos]
        end.zero_()
        gain = END_LOGIT * math.sqrt(ROW_POWER + LAYERS_POWER)
        if self.mean_frames is None:
            end[DEBT] = -gain / DEBT_GAIN
        else:
            # Two frames cannot be the last; after them, each one is with these odds.
            quantile = NormalDist().inv_cdf(1 - 1 / (self.mean_frames - 1))
            end[COIN], end[STEADY] = gain, -gain * quantile
        return x

    def _predictor(self, name: str, shape: Shape) -> Tensor:
        if ".codec_embedding." in name:
            x = self.noise.normal(name, shape, CODE_STD)
            coin = x[:, COIN].float().clone()
            x[:, RESERVED] = 0.0
            x[:, COIN] = (coin - coin.mean()) / (coin.std() * math.sqrt(self.spec.codebooks - 1))
            return x
        if name.endswith("norm.weight"):
            return self.noise.constant(shape, 1.0)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            return self._branch(name, shape, CODE_STD**2 / (2 * self.spec.predictor.layers))
        if name.endswith("bias"):
            return self.noise.normal(name, shape, 0.1 * CODE_STD)
        return self.noise.layer(name, shape, LOGIT_STD if ".lm_head." in name else 1.0)

    def _speaker(self, name: str, shape: Shape) -> Tensor:
        """An x-vector makes up for its text mark like the special ids it stands beside."""
        bias, last = name.endswith("bias"), name.startswith("speaker_encoder.fc.")
        gain = X_VECTOR_GAIN if last else RELU_GAIN
        x = self.noise.constant(shape, 0.0) if bias else self.noise.layer(name, shape, gain)
        if last:
            x[RESERVED] = 0.0
            x[COUNT] = float(bias)
        return x
