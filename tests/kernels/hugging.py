"""The same weights in transformers' own model, run eagerly: what we are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from foreword.model.config import ModelConfig

CONFIGS = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}


def hugging_config(config: ModelConfig) -> PretrainedConfig:
    rope = {"rope_type": config.rope.kind, "rope_theta": config.rope.theta}
    others = asdict(config.rope)
    others["original_max_position_embeddings"] = others.pop("original_max_position")
    for key in ("theta", "kind", "factors"):
        others.pop(key)
    if config.rope.kind != "default":
        rope |= {key: value for key, value in others.items() if value is not None}
    if config.rope.kind != "yarn":
        rope.pop("truncate", None)
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    windows = [window for window in config.windows if window is not None]
    if config.architecture == "llama":
        fields |= {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}
    if config.architecture == "mistral":
        fields["sliding_window"] = windows[0] if windows else None
    if config.architecture.startswith("qwen") and windows:
        kinds = ["full_attention" if w is None else "sliding_attention" for w in config.windows]
        fields |= {
            "use_sliding_window": True,
            "sliding_window": windows[0],
            "layer_types": kinds,
        }
    return CONFIGS[config.architecture](**fields)


def hugging_model(
    config: ModelConfig, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32
) -> Any:
    """transformers' model with exactly these weights, eager attention, in `dtype`."""
    model = AutoModelForCausalLM.from_config(
        hugging_config(config), attn_implementation="eager", dtype=dtype
    ).eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert all(config.tied_head and name == "lm_head.weight" for name in missing), missing
    return model


def hugging_logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    """float32 [len(ids), vocab]."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)]), use_cache=False).logits[0].float().numpy()
