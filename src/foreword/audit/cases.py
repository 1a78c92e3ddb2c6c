"""The requests an audit replays: prompts of several kinds times ways of sampling, as token ids.

A case never changes between settings; only what runs beside it and how does. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from foreword.params import StructuredOutput
from foreword.protocols import Grammar, Logits
from foreword.sample.noise import derive
from foreword.types import MAX_LOGPROBS, Request, SamplingParams

NUM_LOGPROBS = 5
LONG = 122  # tokens: its output crosses position 128, the end of an attention partition
ESSAY = 300  # tokens: several partitions are full
ADAPTED = 3  # an adapter has every third case
ALIGNED = 16  # tokens: a multiple of every block size of the axes

TEXTS = {
    "short": "The capital of France is",
    "long": (
        "A lighthouse keeper wrote in his log every evening. On the first day the sea was calm and "
        "two ships passed. On the second day a storm came from the north and one ship turned back. "
        "On the third day the fog was so thick that he rang the bell from morning to night. On the "
        "fourth day a young woman rowed to the island, asked for water, and stayed for supper. She "
        "told him that the harbour had been rebuilt and that the old tower would soon be replaced "
        "by a machine. He said nothing for a while, and then he asked her what the machine would "
        "do in the fog. She thought about it and answered that it would ring a bell, as he had "
        "done, but that nobody would hear how tired it was"
    ),
    "repetitive": "red green blue red green blue red green blue red green blue red green",
    "code": (
        "def add(left, right):\n    return left + right\n\n\ndef subtract(left, right):\n"
        "    return left - right\n\n\ndef multiply(left, right):\n    return"
    ),
}

SAMPLINGS: dict[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "penalised": {
        "temperature": 0.7,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "top_p": 0.95,
    },
    "sampled": {"temperature": 0.8, "top_p": 0.95},
    "mirostat": {"temperature": 1.0, "mirostat_mode": 2, "presence_penalty": 0.5},
    "top-k": {"temperature": 0.8, "top_k": 40},
    "typical": {"temperature": 1.0, "typical_p": 0.9, "xtc_probability": 0.5},
    "min-p": {"temperature": 1.0, "min_p": 0.05},
    "masked": {
        "temperature": 0.0,
        "logit_bias": dict.fromkeys(range(0, 256, 5), 1.5),
        "allowed_token_ids": range(256),
        "min_tokens": 3,
        "dry_multiplier": 0.8,
    },
}
BAD_WORDS = (" the", "the", "ring", "red blue")
BREAKERS = ("\n", ":")


def wary(token_ids: SequenceOf[int], row: Logits) -> Logits:
    """A user's processor: what came last is less likely."""
    row[list(token_ids[-4:])] -= 2.0
    return row


# Other ways of asking, each with one prompt; beside them the samples of one prompt.
ASKED: dict[str, Mapping[str, Any]] = {
    "most logprobs": {"temperature": 0.8, "logprobs": MAX_LOGPROBS},
    "processed logprobs": {
        "temperature": 0.8,
        "top_p": 0.9,
        "logprobs": NUM_LOGPROBS,
        "logprobs_mode": "processed",
    },
    "prompt logprobs": {"temperature": 0.0, "logprobs": 0, "prompt_logprobs": NUM_LOGPROBS},
    "arithmetic sampling": {
        "temperature": 0.9,
        "sampler": "arithmetic",
        "logprobs": NUM_LOGPROBS,
    },
    "own processor": {
        "temperature": 0.8,
        "logits_processors": (wary,),
        "logprobs": NUM_LOGPROBS,
    },
}
NUM_SIBLINGS = 3

FORM = StructuredOutput(
    json={
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "colour": {"enum": ["red", "green", "blue"]},
            "numbers": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["name", "colour", "numbers"],
        "additionalProperties": False,
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `params` are resolved and ask for logprobs."""

    name: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int
    eos_ids: frozenset[int]
    bad_words: tuple[tuple[int, ...], ...] = ()
    breakers: frozenset[int] = frozenset()
    group: str | None = None  # of the samples of one prompt
    grammar: Grammar | None = None
    adapter: str | None = None
    adapter_sha256: str = ""

    def request(self, request_id: str, priority: int = 0) -> Request:
        return Request(
            id=request_id,
            prompt_ids=self.prompt_ids,
            params=self.params,
            seed=self.seed,
            eos_ids=self.eos_ids,
            max_tokens=self.max_tokens,
            priority=priority,
            bad_words=self.bad_words,
            dry_breakers=self.breakers,
            group=self.group,
            grammar=self.grammar,
            adapter=self.adapter,
            adapter_sha256=self.adapter_sha256,
        )

    def under(self, adapter: str, sha256: str) -> Case:
        """The same request with an adapter."""
        name = f"{self.name}, adapter {adapter}"
        return replace(self, name=name, adapter=adapter, adapter_sha256=sha256)

    @property
    def num_positions(self) -> int:
        """Prompt and output together."""
        return len(self.prompt_ids) + self.max_tokens

    def ending_at(self, token_id: int) -> Case:
        """The same request, but this id ends it: an end that falls inside an accepted path."""
        params = replace(self.params, stop_token_ids=(token_id,))
        return replace(self, name=f"{self.name}, stop {token_id}", params=params)


def make_cases(
    encode: Callable[[str], list[int]],
    prompts: SequenceOf[str],
    *,
    max_tokens: int,
    context: int,
    eos_ids: frozenset[int],
    seed: int,
    every: bool,
    compiled: Callable[[SamplingParams], Grammar | None] | None = None,
    adapters: Mapping[str, str] | None = None,
) -> list[Case]:
    """Cases for the built-in prompts and the user's own.

    every: each prompt with each sampling; else each prompt with half of them in turn (BAD_WORDS and
    BREAKERS go with the masked one). Built-in prompts are cut to what `context` (positions) leaves
    beside `max_tokens`. compiled: makes the grammar of a case whose text must have a form; without
    it there is none. adapters: name -> sha256; each has every third case, right behind the same one
    without it.
    """
    room = context - max_tokens
    named = {name: encode(text)[: min(room, LONG)] for name, text in TEXTS.items()}
    if every:
        named["essay"] = (encode(TEXTS["long"]) * 3)[: min(room, ESSAY)]
    named |= twins(named["long"], named["code"], room)
    named |= {f"prompt {number}": encode(text) for number, text in enumerate(prompts, start=1)}
    words = tuple(tuple(encode(word)) for word in BAD_WORDS)
    breakers = frozenset(token for text in BREAKERS for token in encode(text)[-1:])
    chosen = [
        (name, sampling)  # neighbours in this list run together: different prompts
        for (turn, sampling), (place, name) in product(enumerate(SAMPLINGS), enumerate(named))
        if every or (place + turn) % 2 == 0
    ]
    cases = [
        Case(
            name=f"{name}, {sampling}",
            prompt_ids=tuple(named[name]),
            params=SamplingParams(**SAMPLINGS[sampling], logprobs=NUM_LOGPROBS).resolve({}),
            seed=derive(seed, number),
            max_tokens=max_tokens,
            eos_ids=eos_ids,
            bad_words=words if sampling == "masked" else (),
            breakers=breakers if sampling == "masked" else frozenset(),
        )
        for number, (name, sampling) in enumerate(chosen)
    ]
    forms = [] if compiled is None else [formed(cases[len(cases) // 2], compiled)]
    return adapted(cases, adapters or {}) + asking(cases) + siblings(cases) + forms


def adapted(cases: SequenceOf[Case], adapters: Mapping[str, str]) -> list[Case]:
    """The cases, every third of them again under each adapter (name -> sha256)."""
    mixed = []
    for number, case in enumerate(cases):
        mixed.append(case)
        for turn, (adapter, sha256) in enumerate(adapters.items()):
            if (number + turn) % ADAPTED == 0:
                mixed.append(case.under(adapter, sha256))
    return mixed


def formed(case: Case, compiled: Callable[[SamplingParams], Grammar | None]) -> Case:
    """The case again, its text a JSON object of a schema."""
    params = replace(case.params, structured_outputs=FORM)
    return replace(case, name=f"{case.name}, JSON", params=params, grammar=compiled(params))


def asking(cases: SequenceOf[Case]) -> list[Case]:
    """The first prompts again, with logprobs asked for in other ways."""
    return [
        replace(
            case,
            name=f"{case.name}, {how}",
            params=SamplingParams(**ASKED[how]).resolve({}),
            seed=derive(case.seed, 1000),  # nobody else's
        )
        for case, how in zip(cases, ASKED, strict=False)
    ]


def siblings(cases: SequenceOf[Case]) -> list[Case]:
    """Samples of one prompt, n > 1: they run side by side, and share its keys and values."""
    case = next(case for case in cases if case.params.temperature)
    return [
        replace(case, name=f"{case.name}, sample {n}", seed=derive(case.seed, n), group="siblings")
        for n in range(1, NUM_SIBLINGS + 1)
    ]


def twins(first: list[int], second: list[int], room: int) -> dict[str, list[int]]:
    """Two prompts whose second block is equal while the first is not: a prefix cache that looks at
    blocks alone would take one for the other."""
    middle, tail = first[-ALIGNED:], first[:3]
    return {
        "left twin": [*first[:ALIGNED], *middle, *tail][:room],
        "right twin": [*second[:ALIGNED], *middle, *tail][:room],
    }
