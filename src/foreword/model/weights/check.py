"""What tensors a config promises, and whether a file keeps the promise. Reads headers only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.config import ModelConfig
from foreword.model.weights.checkpoint import Checkpoint, StoredTensor

READABLE = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "INT4", "INT8",
)  # fmt: skip
_HARMLESS = ("rotary_emb.inv_freq", "masked_bias")  # buffers that old exporters left behind


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor the model reads."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_head:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    products = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    for layer in range(config.num_layers):
        start = f"model.layers.{layer}."
        shapes[start + "input_layernorm.weight"] = (hidden,)
        shapes[start + "post_attention_layernorm.weight"] = (hidden,)
        if config.qk_norm:
            shapes[start + "self_attn.q_norm.weight"] = (head_dim,)
            shapes[start + "self_attn.k_norm.weight"] = (head_dim,)
        for name, (rows, columns, bias) in products.items():
            shapes[f"{start}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{start}{name}.bias"] = (rows,)
    return shapes


def without_harmless(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Drop buffers that carry no weights and that the model computes itself."""
    return {name: stored for name, stored in tensors.items() if not name.endswith(_HARMLESS)}


def check(checkpoint: Checkpoint) -> None:
    """Every promised tensor is there with its shape and a readable type, and nothing else is.

    Raises WeightsError or UnsupportedModel naming the file and the tensor.
    """
    expected = expected_shapes(checkpoint.config)
    found = checkpoint.tensors
    for name, stored in found.items():
        if name in expected and stored.kind not in READABLE:
            raise UnsupportedModel(
                f"{stored.file}: tensor {name!r} has type {stored.kind};"
                f" Foreword reads {', '.join(READABLE)}"
            )
    _refuse(checkpoint.path, [name for name in expected if name not in found], "is missing")
    _refuse(
        checkpoint.path,
        [name for name in found if name not in expected],
        f"does not belong to this {checkpoint.config.architecture} model",
    )
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise WeightsError(
                f"{found[name].file}: tensor {name!r} has shape {list(found[name].shape)},"
                f" the config says {list(shape)}"
            )
    _check_end_tokens(checkpoint)


def _refuse(path: Path, names: Iterable[str], problem: str) -> None:
    names = sorted(names)
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise WeightsError(f"{path}: tensor {names[0]!r} {problem}{more}; download the model again")


def _check_end_tokens(checkpoint: Checkpoint) -> None:
    for token in sorted(checkpoint.eos_ids):
        if token >= checkpoint.config.vocab_size:
            raise WeightsError(
                f"{checkpoint.path}: end token {token} lies outside the vocabulary of"
                f" {checkpoint.config.vocab_size}"
            )
