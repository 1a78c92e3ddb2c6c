"""A small vocabulary with merges, and the forms of a model that has it."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from foreword.text.forms import Forms
from foreword.text.tokenizer import Tokenizer

EOS = 0
TEXT = 'the cat "name": "colour": [1, 2, 3] {"name": "red"} dog door cart car' * 3


def make_tokenizer(vocab_size: int = 330) -> Tokenizer:
    """Byte-level BPE with merges; 0 and 1 are special, the last is an added token of plain text."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([TEXT], trainer)
    raw.add_tokens([AddedToken("<call>", special=False, normalized=False)])
    return Tokenizer(raw, {"eos_token": "<|end|>"})


TOKENIZER = make_tokenizer()
NUM_IDS = TOKENIZER.vocab_size + 5  # columns without a text
FORMS = Forms(TOKENIZER, NUM_IDS, {EOS})
