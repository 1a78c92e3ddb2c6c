"""The shape of a model, whatever file it came from: `weights/` fills it, `llama.py` reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions. kind: default | linear | llama3 | yarn. Fields a kind ignores are None.

    `factors`: per-frequency divisors read from the file (GGUF rope_freqs), [head_dim / 2].
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float | None = None
    original_max_position: int | None = None
    low_freq_factor: float | None = None  # llama3
    high_freq_factor: float | None = None  # llama3
    beta_fast: float | None = None  # yarn
    beta_slow: float | None = None  # yarn
    attention_factor: float | None = None  # yarn; None = 0.1 ln(factor) + 1
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3)."""

    architecture: str  # llama | mistral | qwen2 | qwen3
    vocab_size: int  # rows of the embedding in the file, padding included
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position: int
    rope: RopeConfig
    tied_head: bool  # lm_head shares the embedding
    qkv_bias: bool
    output_bias: bool  # o_proj
    mlp_bias: bool
    qk_norm: bool  # RMSNorm over head_dim of q and k before rope (Qwen3)
    windows: tuple[int | None, ...]  # per layer: the token itself + w-1 earlier keys; None = all
