"""adapter_config.json of a PEFT folder: which projections a LoRA adapter changes, and how much.

Plain LoRA on the linear layers of a decoder, with everything that only says rank, scale and place.
What would change the function in another way is refused by name, and so is a field that nobody here
knows and that is not empty: nothing of an adapter is left out silently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foreword.errors import WeightsError
from foreword.model.weights.fields import Fields, read_json
from foreword.model.weights.pattern import check_pattern

CONFIG_FILE = "adapter_config.json"
MOST_RANK = 4096

# Fields that must be absent, empty or false, and what to do when they are not.
_REFUSED = {
    "use_dora": "DoRA is not supported; merge the adapter into the weights",
    "modules_to_save": "whole trained modules are not supported; merge the adapter",
    "fan_in_fan_out": "transposed weights belong to no model that Foreword runs",
    "trainable_token_indices": "trained embeddings are not supported; merge the adapter",
    "target_parameters": "parameters that are no linear layer are not supported; merge the adapter",
    "layer_replication": "replicated layers are not supported; merge the adapter",
    "lora_bias": "biases of an adapter are not supported; merge the adapter",
    "use_qalora": "QA-LoRA is not supported; merge the adapter",
    "use_bdlora": "block-diagonal LoRA is not supported; merge the adapter",
    "alora_invocation_tokens": "activated LoRA is not supported; use a plain LoRA adapter",
    "arrow_config": "a router of adapters is not supported; use a plain LoRA adapter",
    "monteclora_config": "MonteCLoRA is not supported; merge the adapter",
    "kasa_config": "KaSA is not supported; merge the adapter",
}
# Fields that say how it was trained, where it came from, or belong to a refused one.
_IGNORED = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "task_type", "velora_config",
}  # fmt: skip
_READ = {
    "alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules",
    "use_rslora",
}  # fmt: skip
# Ways to begin that leave the base weights as they are; the others (PiSSA, OLoRA, CorDA, ...) train
# against changed ones.
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
_OUTSIDE = ("lm_head", "embed_tokens", "model.embed_tokens")  # modules that no adapter may change


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Rank and scale of a module by its name, such as model.layers.0.self_attn.q_proj."""

    where: str  # the file, for messages
    rank: int
    alpha: float
    rank_stabilised: bool
    ranks: Mapping[str, int]  # by pattern
    alphas: Mapping[str, float]
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...]
    layers: frozenset[int]  # empty = all

    def changes(self, module: str) -> bool:
        """Whether the adapter is for this module."""
        found = re.match(r"model\.layers\.(\d+)\.", module)
        if self.layers and (found is None or int(found[1]) not in self.layers):
            return False
        if self.excluded and _matches(self.excluded, module):
            return False
        if self.targets == "all-linear":
            return module not in _OUTSIDE
        return _matches(self.targets, module)

    def rank_of(self, module: str) -> int:
        return int(_by_pattern(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """alpha / rank, or alpha / sqrt(rank); rounded to float32."""
        rank = self.rank_of(module)
        alpha = _by_pattern(self.alphas, module, self.alpha)
        return float(np.float32(alpha / (math.sqrt(rank) if self.rank_stabilised else rank)))


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Raises WeightsError naming the file and the field."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise WeightsError(f"{folder}: has no {CONFIG_FILE}; give the folder of a PEFT adapter")
    raw = read_json(path)
    where, fields = str(path), Fields(raw, str(path))
    _refuse(raw, where)
    config = AdapterConfig(
        where=where,
        rank=_rank(fields.integer("r"), where, "r"),
        alpha=_alpha(raw.get("lora_alpha"), where, "lora_alpha"),
        rank_stabilised=fields.flag("use_rslora"),
        ranks={key: _rank(value, where, key) for key, value in _patterns(raw, "rank", where)},
        alphas={key: _alpha(value, where, key) for key, value in _patterns(raw, "alpha", where)},
        targets=_modules(raw.get("target_modules"), where, "target_modules"),
        excluded=_modules(raw.get("exclude_modules") or (), where, "exclude_modules"),
        layers=_layers(raw.get("layers_to_transform"), where),
    )
    for module in _OUTSIDE:
        if config.changes(module):
            raise WeightsError(
                f"{where}: target_modules holds {module}; adapters of embeddings and heads are not "
                f"supported, merge the adapter into the weights"
            )
    return config


def _refuse(raw: Mapping[str, Any], where: str) -> None:
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise WeightsError(f"{where}: peft_type is {kind!r:.60}; only LORA is supported")
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise WeightsError(f"{where}: task_type is {raw['task_type']!r:.60}, not CAUSAL_LM")
    if raw.get("bias", "none") not in ("none", None):
        raise WeightsError(
            f'{where}: bias is {raw["bias"]!r:.60}; only adapters with bias "none" are supported'
        )
    start = raw.get("init_lora_weights")
    if not any(start is one or start == one for one in _STARTS):
        raise WeightsError(
            f"{where}: init_lora_weights is {start!r:.60}, which changes the base weights; convert "
            f"the adapter to plain LoRA when saving it"
        )
    if raw.get("layers_pattern") not in (None, "", [], "layers", ["layers"]):
        raise WeightsError(
            f"{where}: layers_pattern is {raw['layers_pattern']!r:.60}; the layers of this model "
            f"are called layers"
        )
    for name, value in raw.items():
        if not value or name in _IGNORED | _READ:
            continue
        reason = _REFUSED.get(name, "Foreword does not know this field; leave it out")
        raise WeightsError(f"{where}: {name} is {value!r:.60}: {reason}")


def _rank(value: Any, where: str, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_RANK:
        raise WeightsError(
            f"{where}: rank {name} must be a whole number 1 to {MOST_RANK}, got {value!r:.60}"
        )
    return value


def _alpha(value: Any, where: str, name: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not abs(value) <= 1e30:
        raise WeightsError(f"{where}: {name} must be a finite number, got {value!r:.60}")
    return float(value)


def _patterns(raw: Mapping[str, Any], kind: str, where: str) -> list[tuple[str, Any]]:
    found = raw.get(f"{kind}_pattern") or {}
    if not isinstance(found, dict):
        raise WeightsError(f"{where}: {kind}_pattern must be an object, got {found!r:.60}")
    for pattern in found:
        check_pattern(pattern, where, f"{kind}_pattern")
    return list(found.items())


def _modules(value: Any, where: str, name: str) -> str | tuple[str, ...]:
    """A regular expression, or names."""
    if isinstance(value, str) and value:
        if value != "all-linear":
            check_pattern(value, where, name)
        return value
    listed = list(value) if isinstance(value, (list, tuple)) else None
    if listed is None or not all(isinstance(item, str) and item for item in listed):
        raise WeightsError(f"{where}: {name} must be text or a list of names, got {value!r:.60}")
    if not listed and name == "target_modules":
        raise WeightsError(f"{where}: {name} is empty; name the modules that it changes")
    return tuple(listed)


def _layers(value: Any, where: str) -> frozenset[int]:
    listed = [value] if isinstance(value, int) else value or []
    if not isinstance(listed, list) or not all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed
    ):
        raise WeightsError(
            f"{where}: layers_to_transform must hold layer numbers, got {value!r:.60}"
        )
    return frozenset(listed)


def _matches(wanted: str | tuple[str, ...], module: str) -> bool:
    """As PEFT: a regular expression fits the whole name, a name in a list its end."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(module == name or module.endswith("." + name) for name in wanted)


def _by_pattern(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Of the first pattern that fits the end of the name, as PEFT."""
    for pattern, value in patterns.items():
        if re.match(rf"(?:.*\.)?(?:{pattern})$", module):
            return value
    return default
