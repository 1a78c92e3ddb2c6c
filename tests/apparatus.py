"""Shared test apparatus: tiny random checkpoints on disk, a byte tokenizer, SmolLM2, prompts.

Everything is written once per session and cached by its keywords, so a test may ask again and
again. Nothing here imports transformers or the package's model code: the files are written from
numpy, and the formats are those of Hugging Face, so that both libraries can read them.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 4, 2, 16
VOCAB, CONTEXT, NUM_TOKENS = 512, 128, 470
ENDOFTEXT, IM_START, IM_END = 256, 257, 258
NUM_SPECIALS = 16
# Added to every weight of T, this lets roughly half of the greedy drafts through (measured in
# test_apparatus.py): acceptance is ragged, which is what most batch bugs need.
NOISE = 0.01

EMBEDDING_STD, PROJECTION_STD = 0.3, 0.2

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_DATA = Path(__file__).parent / "data"


@cache
def scratch() -> Path:
    """The session's folder for written checkpoints; removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="foreword-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def tiny_checkpoint(
    *,
    architecture: str = "llama",
    dtype: str = "float32",
    vocab_size: int = VOCAB,
    num_tokens: int = NUM_TOKENS,
    num_layers: int = 2,
    max_position: int = CONTEXT,
    sliding_window: int | None = None,
    rope_scaling: dict[str, Any] | None = None,
    seed: int = 0,
    noise: float = 0.0,
    tied: bool = True,
    eos_ids: tuple[int, ...] = (ENDOFTEXT,),
    generation: dict[str, Any] | None = None,
    shards: int = 1,
) -> Path:
    """A Hugging Face folder with random weights; the defaults are the target T of the cases.

    architecture: llama | mistral | qwen2 | qwen3. dtype: float32 | bfloat16 | float16, of the file.
    num_tokens: ids the tokenizer knows; rows from there to vocab_size are padding without text.
    noise: sigma of a Gaussian added to every weight before rounding (the drafter D_noise).
    generation: extra entries of generation_config.json. shards: weight files, with an index if > 1.
    """
    options = dict(locals())
    return _written(json.dumps(options, sort_keys=True))


@cache
def _written(key: str) -> Path:
    options = json.loads(key)
    folder = Path(tempfile.mkdtemp(dir=scratch(), prefix=f"{options['architecture']}-"))
    _dump(folder / "config.json", _config(options))
    extra = options["generation"] or {}
    _dump(folder / "generation_config.json", {"eos_token_id": options["eos_ids"], **extra})
    dtype = getattr(torch, options["dtype"])
    weights = {
        name: torch.from_numpy(array).to(dtype).contiguous()
        for name, array in tiny_weights(options).items()
    }
    _save(folder, weights, options["shards"])
    write_tokenizer(folder, min(options["num_tokens"], options["vocab_size"]))
    return folder


def _config(options: dict[str, Any]) -> dict[str, Any]:
    architecture = options["architecture"]
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": options["num_layers"],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": options["vocab_size"],
        "max_position_embeddings": options["max_position"],
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": options["tied"],
        "torch_dtype": options["dtype"],
        "bos_token_id": None,
        "eos_token_id": options["eos_ids"],
    }
    if options["rope_scaling"] is not None:
        config["rope_scaling"] = options["rope_scaling"]
    if architecture == "mistral":
        config["sliding_window"] = options["sliding_window"]
    elif options["sliding_window"] is not None:
        assert architecture in ("qwen2", "qwen3"), f"{architecture} has no sliding window"
        config |= {
            "sliding_window": options["sliding_window"],
            "use_sliding_window": True,
            "max_window_layers": 0,
        }
    return config


def tiny_weights(options: dict[str, Any]) -> dict[str, np.ndarray]:
    """float32 arrays under their Hugging Face names, [out, in]; noise included."""
    random = np.random.default_rng(options["seed"])

    def normal(*shape: int, std: float = PROJECTION_STD, mean: float = 0.0) -> np.ndarray:
        return (mean + std * random.standard_normal(shape)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": normal(options["vocab_size"], HIDDEN, std=EMBEDDING_STD)
    }
    for layer in range(options["num_layers"]):
        at = f"model.layers.{layer}."
        weights[at + "input_layernorm.weight"] = normal(HIDDEN, std=0.1, mean=1.0)
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            weights[f"{at}self_attn.{name}_proj.weight"] = normal(rows * HEAD_DIM, HIDDEN)
            if options["architecture"] == "qwen2":
                weights[f"{at}self_attn.{name}_proj.bias"] = normal(rows * HEAD_DIM)
        if options["architecture"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                weights[f"{at}self_attn.{name}.weight"] = normal(HEAD_DIM, std=0.1, mean=1.0)
        weights[at + "self_attn.o_proj.weight"] = normal(HIDDEN, HEADS * HEAD_DIM)
        weights[at + "post_attention_layernorm.weight"] = normal(HIDDEN, std=0.1, mean=1.0)
        weights[at + "mlp.gate_proj.weight"] = normal(INTERMEDIATE, HIDDEN)
        weights[at + "mlp.up_proj.weight"] = normal(INTERMEDIATE, HIDDEN)
        weights[at + "mlp.down_proj.weight"] = normal(HIDDEN, INTERMEDIATE)
    weights["model.norm.weight"] = normal(HIDDEN, std=0.1, mean=1.0)
    if not options["tied"]:
        weights["lm_head.weight"] = normal(options["vocab_size"], HIDDEN, std=EMBEDDING_STD)
    if options["noise"]:
        for name in weights:
            weights[name] = weights[name] + normal(*weights[name].shape, std=options["noise"])
    return weights


def _save(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    names = list(weights)
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    total = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    _dump(folder / "model.safetensors.index.json", index)


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (as GPT-2)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    stand_in = {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [stand_in.get(byte, chr(byte)) for byte in range(256)]


def write_tokenizer(folder: Path, num_tokens: int = NUM_TOKENS) -> None:
    """tokenizer.json and tokenizer_config.json: ids 0-255 are bytes, 256.. are added tokens.

    256 <|endoftext|>, 257 <|im_start|>, 258 <|im_end|>, to 271 specials; the rest show as text
    <t272>, <t273>, ...
    """
    assert num_tokens >= 256 + 3, num_tokens
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    names += [f"<|special_{i}|>" for i in range(259, 256 + NUM_SPECIALS)]
    names += [f"<t{i}>" for i in range(256 + NUM_SPECIALS, num_tokens)]
    for number, name in enumerate(names[: num_tokens - 256]):
        token = AddedToken(name, special=number < NUM_SPECIALS, normalized=False)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    assert tokenizer.get_vocab_size() == num_tokens
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    _dump(folder / "tokenizer_config.json", config)


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def target(**options: Any) -> Path:
    """T, the target of the tiny pair."""
    return tiny_checkpoint(**options)


def drafter_noise(**options: Any) -> Path:
    """D_noise: T with noise on every weight, so that some drafts are right and some are not."""
    return tiny_checkpoint(**{"noise": NOISE, **options})


def drafter_random(**options: Any) -> Path:
    """D_rand: T's config with another seed; hardly ever right."""
    return tiny_checkpoint(**{"seed": 1, **options})


@cache
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct Q4_1 GGUF file, from the cache or fetched once."""
    from foreword.model.weights.open import locate  # here: the other helpers need no package code

    return locate("smollm2-135m-instruct")


def spec_bench_prompts(count: int) -> list[str]:
    """The first turn of `count` Spec-Bench questions, spread evenly over the six groups."""
    groups: dict[str, list[str]] = {}
    for row in read_jsonl(_DATA / "spec_bench_subset.jsonl"):
        groups.setdefault(row["group"], []).append(row["turns"][0])
    longest = max(len(group) for group in groups.values())
    ordered = [group[i] for i in range(longest) for group in groups.values() if i < len(group)]
    assert count <= len(ordered), f"only {len(ordered)} Spec-Bench prompts are stored"
    return ordered[:count]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]
