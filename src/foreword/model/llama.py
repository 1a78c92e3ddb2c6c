"""The Llama family (Llama, Mistral, Qwen2, Qwen3) as a list of ops. Knows no file format, no
device.

`Decoder.forward` is the only forward path: prefill chunk, decode, chain and tree are all a `Batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from collections.abc import Sequence as SequenceOf

import numpy as np
from torch import Tensor

from foreword.kernels.ops import (
    AdapterLayer,
    Kernels,
    LayerWeights,
    Packed,
    Projection,
    Weight,
    WholePass,
)
from foreword.model.batch import Batch
from foreword.model.config import ModelConfig
from foreword.protocols import KVStore

Load = Callable[[str], Weight]


class Decoder:
    """Implements protocols.PartialModel on a kernel backend. `vocab_size` may be below the file's
    rows: those of padding have no text, and are dropped before anything is normalised over
    them."""

    def __init__(
        self,
        config: ModelConfig,
        kernels: Kernels | WholePass,
        load: Load,
        vocab_size: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config = config
        self.kernels = kernels
        # Asked once: a check against a Protocol takes 50 us.
        self._whole = kernels if isinstance(kernels, WholePass) else None
        self._by_op = None if isinstance(kernels, WholePass) else kernels
        self.vocab_size = min(vocab_size or config.vocab_size, config.vocab_size)
        self._layers: list[Packed] = []
        self._adapters: dict[str, Packed] = {}  # by name
        with kernels.guard():  # reading weights is arithmetic, too
            steps, head = config.num_layers + 1, load("model.embed_tokens.weight")
            self._embedding = kernels.pack_embedding(head)
            if not config.tied_head:
                del head  # the two largest tensors need not be held at once
                head = load("lm_head.weight")
            norm = _vector(load, "model.norm.weight")
            if config.tied_head and self._whole is not None:
                self._head = self._whole.pack_tied_head(norm, self._embedding, self.vocab_size)
            else:
                self._head = kernels.pack_head(norm, _first_rows(head, self.vocab_size))
            del head
            if progress is not None:
                progress(1, steps)
            for index in range(config.num_layers):
                self._layers.append(kernels.pack_layer(layer_weights(config, load, index)))
                if progress is not None:
                    progress(index + 2, steps)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def load_adapter(self, name: str, layers: SequenceOf[AdapterLayer]) -> None:
        """From now on a segment may name it. Weights of an adapter of that name are replaced."""
        assert len(layers) == self.num_layers, (len(layers), self.num_layers)
        with self.kernels.guard():
            self._adapters[name] = self.kernels.pack_adapter(layers)

    def unload_adapter(self, name: str) -> None:
        """Nobody uses it any more."""
        del self._adapters[name]

    def forward(self, batch: Batch, kv: KVStore, skip: Set[int] = frozenset()) -> np.ndarray:
        """float32 [len(batch.logit_rows), vocab_size]; writes K and V of every row."""
        kernels, pool = self._by_op, kv.pool
        if self._whole is not None:
            parts = self._embedding, self._layers, self._head
            return self._whole.run(*parts, batch, pool.keys, pool.values, skip, self._adapters)
        assert kernels is not None
        with kernels.guard():
            step = kernels.start(batch, self._adapters)
            hidden = kernels.embed(self._embedding, step)
            every = zip(self._layers, pool.keys, pool.values, strict=True)
            for number, (layer, keys, values) in enumerate(every):
                extra = kernels.extra(step, number)
                if 2 * number not in skip:
                    query = kernels.attend_input(layer, hidden, step, keys, values, extra)
                    context = kernels.attend(layer, query, step, keys, values)
                    hidden = kernels.attend_output(layer, context, hidden, extra)
                if 2 * number + 1 not in skip:
                    hidden = kernels.mlp(layer, hidden, extra)
            if not len(batch.logit_rows):
                return np.zeros((0, self.vocab_size), dtype=np.float32)
            return kernels.logits(self._head, hidden, step)


def layer_weights(config: ModelConfig, load: Load, index: int) -> LayerWeights:
    """Collect one layer's tensors by their Hugging Face names."""
    prefix = f"model.layers.{index}"

    def projection(name: str, bias: bool) -> Projection:
        return Projection(load(f"{prefix}.{name}.weight"), vector(f"{name}.bias") if bias else None)

    def vector(name: str) -> Tensor:
        return _vector(load, f"{prefix}.{name}")

    return LayerWeights(
        attention_norm=vector("input_layernorm.weight"),
        query=projection("self_attn.q_proj", config.qkv_bias),
        key=projection("self_attn.k_proj", config.qkv_bias),
        value=projection("self_attn.v_proj", config.qkv_bias),
        query_norm=vector("self_attn.q_norm.weight") if config.qk_norm else None,
        key_norm=vector("self_attn.k_norm.weight") if config.qk_norm else None,
        output=projection("self_attn.o_proj", config.output_bias),
        mlp_norm=vector("post_attention_layernorm.weight"),
        gate=projection("mlp.gate_proj", config.mlp_bias),
        up=projection("mlp.up_proj", config.mlp_bias),
        down=projection("mlp.down_proj", config.mlp_bias),
        window=config.windows[index],
    )


def _vector(load: Load, name: str) -> Tensor:
    """A norm or a bias: never quantised."""
    found = load(name)
    assert isinstance(found, Tensor), name
    return found


def _first_rows(weight: Weight, count: int) -> Weight:
    if isinstance(weight, Tensor):
        return weight[:count]
    return weight if len(weight.q) == count else weight.rows(slice(count))
