"""Names and shapes of the published tensors, by formula over the spec, for writing them."""

from collections.abc import Iterator
from typing import Any

from vivace.model.spec import CodecSpec, ModelSpec, SpeakerSpec, TransformerSpec

Shape = tuple[int, ...]
Entries = Iterator[tuple[str, Shape]]


def model_tensors(spec: ModelSpec) -> dict[str, Shape]:
    """Every tensor of `model.safetensors`."""
    tensors = dict(_talker(spec))
    if spec.speaker_encoder is not None:
        tensors |= dict(_speaker(spec.speaker_encoder))
    return tensors


def codec_tensors(spec: CodecSpec) -> dict[str, Shape]:
    """Every tensor of `speech_tokenizer/model.safetensors`: the Mimi encoder and the decoder."""
    return dict(_encoder(dict(spec.encoder))) | dict(_decoder(spec))


def _affine(name: str, *weight: int, out: int | None = None) -> Entries:
    """Weight and bias; `out` is the bias where the weight does not start with it."""
    yield f"{name}.weight", weight
    yield f"{name}.bias", (weight[0] if out is None else out,)


def _attention(name: str, hidden: int, heads: int, kv_heads: int, head_dim: int) -> Entries:
    yield f"{name}.q_proj.weight", (heads * head_dim, hidden)
    yield f"{name}.k_proj.weight", (kv_heads * head_dim, hidden)
    yield f"{name}.v_proj.weight", (kv_heads * head_dim, hidden)
    yield f"{name}.o_proj.weight", (hidden, heads * head_dim)


def _swiglu(name: str, hidden: int, intermediate: int) -> Entries:
    yield f"{name}.gate_proj.weight", (intermediate, hidden)
    yield f"{name}.up_proj.weight", (intermediate, hidden)
    yield f"{name}.down_proj.weight", (hidden, intermediate)


def _stack(name: str, s: TransformerSpec) -> Entries:
    """Qwen3 layers and the norm after them."""
    for i in range(s.layers):
        layer = f"{name}.layers.{i}"
        yield from _attention(f"{layer}.self_attn", s.hidden, s.heads, s.kv_heads, s.head_dim)
        yield f"{layer}.self_attn.q_norm.weight", (s.head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (s.head_dim,)
        yield from _swiglu(f"{layer}.mlp", s.hidden, s.intermediate)
        yield f"{layer}.input_layernorm.weight", (s.hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (s.hidden,)
    yield f"{name}.norm.weight", (s.hidden,)


def _talker(spec: ModelSpec) -> Entries:
    t, p = spec.talker, spec.predictor
    yield from _stack("talker.model", t)
    yield "talker.model.codec_embedding.weight", (t.vocab, t.hidden)
    yield "talker.model.text_embedding.weight", (spec.text_vocab, spec.text_hidden)
    up, out = (f"talker.text_projection.linear_fc{i}" for i in (1, 2))
    yield from _affine(up, spec.text_hidden, spec.text_hidden)
    yield from _affine(out, t.hidden, spec.text_hidden)
    yield "talker.codec_head.weight", (t.vocab, t.hidden)
    base = "talker.code_predictor"
    yield from _stack(f"{base}.model", p)
    for i in range(spec.codebooks - 1):
        yield f"{base}.model.codec_embedding.{i}.weight", (p.vocab, t.hidden)
        yield f"{base}.lm_head.{i}.weight", (p.vocab, p.hidden)
    if p.hidden != t.hidden:
        yield from _affine(f"{base}.small_to_mtp_projection", p.hidden, t.hidden)


def _speaker(s: SpeakerSpec) -> Entries:
    """ECAPA-TDNN: one convolution, squeeze-and-excitation blocks, aggregation, pooling."""
    first, *blocks, last = s.channels
    yield from _affine("speaker_encoder.blocks.0.conv", first, s.mel_dim, s.kernels[0])
    before = first
    for i, channels in enumerate(blocks, 1):
        block, part = f"speaker_encoder.blocks.{i}", channels // s.res2net_scale
        yield from _affine(f"{block}.tdnn1.conv", channels, before, 1)
        for j in range(s.res2net_scale - 1):
            name = f"{block}.res2net_block.blocks.{j}.conv"
            yield from _affine(name, part, part, s.kernels[i])
        yield from _affine(f"{block}.tdnn2.conv", channels, channels, 1)
        yield from _affine(f"{block}.se_block.conv1", s.se_channels, channels, 1)
        yield from _affine(f"{block}.se_block.conv2", channels, s.se_channels, 1)
        before = channels
    yield from _affine("speaker_encoder.mfa.conv", last, last, s.kernels[-1])
    yield from _affine("speaker_encoder.asp.tdnn.conv", s.attention_channels, 3 * last, 1)
    yield from _affine("speaker_encoder.asp.conv", last, s.attention_channels, 1)
    yield from _affine("speaker_encoder.fc", s.dim, 2 * last, 1)


def _decoder(s: CodecSpec) -> Entries:
    inner = s.codebook_dim // 2
    for part, count in (
        ("rvq_first", s.semantic_quantizers),
        ("rvq_rest", s.quantizers - s.semantic_quantizers),
    ):
        base = f"decoder.quantizer.{part}"
        yield f"{base}.input_proj.weight", (inner, s.codebook_dim, 1)
        yield f"{base}.output_proj.weight", (s.codebook_dim, inner, 1)
        for i in range(count):
            yield f"{base}.vq.layers.{i}._codebook.cluster_usage", (s.codebook_size,)
            yield f"{base}.vq.layers.{i}._codebook.embedding_sum", (s.codebook_size, inner)
    yield from _affine("decoder.pre_conv.conv", s.latent, s.codebook_dim, 3)
    yield from _window_transformer("decoder.pre_transformer", s)
    for i, ratio in enumerate(s.upsampling_ratios):
        yield from _affine(f"decoder.upsample.{i}.0.conv", s.latent, s.latent, ratio)
        yield from _convnext(f"decoder.upsample.{i}.1", s.latent)
    yield from _affine("decoder.decoder.0.conv", s.decoder_dim, s.latent, 7)
    width = s.decoder_dim
    for i, rate in enumerate(s.upsample_rates, 1):
        yield from _stage(f"decoder.decoder.{i}.block", width, width // 2, rate)
        width //= 2
    last = len(s.upsample_rates) + 1
    yield from _snake(f"decoder.decoder.{last}", width)
    yield from _affine(f"decoder.decoder.{last + 1}.conv", 1, width, 7)


def _window_transformer(name: str, s: CodecSpec) -> Entries:
    for i in range(s.layers):
        layer = f"{name}.layers.{i}"
        yield from _attention(f"{layer}.self_attn", s.hidden, s.heads, s.kv_heads, s.head_dim)
        yield from _swiglu(f"{layer}.mlp", s.hidden, s.intermediate)
        yield f"{layer}.input_layernorm.weight", (s.hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (s.hidden,)
        yield f"{layer}.self_attn_layer_scale.scale", (s.hidden,)
        yield f"{layer}.mlp_layer_scale.scale", (s.hidden,)
    yield f"{name}.norm.weight", (s.hidden,)
    yield from _affine(f"{name}.input_proj", s.hidden, s.latent)
    yield from _affine(f"{name}.output_proj", s.latent, s.hidden)


def _convnext(name: str, channels: int) -> Entries:
    yield f"{name}.gamma", (channels,)
    yield from _affine(f"{name}.dwconv.conv", channels, 1, 7)
    yield from _affine(f"{name}.norm", channels)
    yield from _affine(f"{name}.pwconv1", 4 * channels, channels)
    yield from _affine(f"{name}.pwconv2", channels, 4 * channels)


def _snake(name: str, channels: int) -> Entries:
    yield f"{name}.alpha", (channels,)
    yield f"{name}.beta", (channels,)


def _stage(name: str, into: int, out: int, rate: int) -> Entries:
    yield from _snake(f"{name}.0", into)
    yield from _affine(f"{name}.1.conv", into, out, 2 * rate, out=out)
    for i in (2, 3, 4):
        yield from _snake(f"{name}.{i}.act1", out)
        yield from _affine(f"{name}.{i}.conv1.conv", out, out, 7)
        yield from _snake(f"{name}.{i}.act2", out)
        yield from _affine(f"{name}.{i}.conv2.conv", out, out, 1)


def _encoder(c: dict[str, Any]) -> Entries:
    """Mimi's encoder, from its raw config."""
    hidden, filters = c["hidden_size"], c["num_filters"]
    yield from _affine(
        "encoder.encoder.layers.0.conv", filters, c["audio_channels"], c["kernel_size"]
    )
    place = 1
    for ratio in reversed(c["upsampling_ratios"]):
        for _ in range(c["num_residual_layers"]):
            block, inner = f"encoder.encoder.layers.{place}.block", filters // c["compress"]
            yield from _affine(f"{block}.1.conv", inner, filters, c["residual_kernel_size"])
            yield from _affine(f"{block}.3.conv", filters, inner, 1)
            place += 1
        place += 1  # the activation
        name = f"encoder.encoder.layers.{place}.conv"
        yield from _affine(name, 2 * filters, filters, 2 * ratio)
        filters, place = 2 * filters, place + 1
    name = f"encoder.encoder.layers.{place + 1}.conv"
    yield from _affine(name, hidden, filters, c["last_kernel_size"])
    yield from _encoder_transformer(c)
    yield "encoder.downsample.conv.weight", (hidden, hidden, 4)
    yield from _encoder_quantizers(c)


def _encoder_transformer(c: dict[str, Any]) -> Entries:
    hidden = c["hidden_size"]
    heads = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    for i in range(c["num_hidden_layers"]):
        layer = f"encoder.encoder_transformer.layers.{i}"
        yield from _attention(f"{layer}.self_attn", hidden, *heads)
        yield f"{layer}.mlp.fc1.weight", (c["intermediate_size"], hidden)
        yield f"{layer}.mlp.fc2.weight", (hidden, c["intermediate_size"])
        yield from _affine(f"{layer}.input_layernorm", hidden)
        yield from _affine(f"{layer}.post_attention_layernorm", hidden)
        yield f"{layer}.self_attn_layer_scale.scale", (hidden,)
        yield f"{layer}.mlp_layer_scale.scale", (hidden,)


def _encoder_quantizers(c: dict[str, Any]) -> Entries:
    hidden, inner, size = c["hidden_size"], c["codebook_dim"], c["codebook_size"]
    semantic = c["num_semantic_quantizers"]
    for part, count in (("semantic", semantic), ("acoustic", c["num_quantizers"] - semantic)):
        base = f"encoder.quantizer.{part}_residual_vector_quantizer"
        yield f"{base}.input_proj.weight", (inner, hidden, 1)
        yield f"{base}.output_proj.weight", (hidden, inner, 1)
        for i in range(count):
            book = f"{base}.layers.{i}.codebook"
            yield f"{book}.initialized", (1,)
            yield f"{book}.cluster_usage", (size,)
            yield f"{book}.embed_sum", (size, inner)
