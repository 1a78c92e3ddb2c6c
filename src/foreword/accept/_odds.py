"""What an approximate acceptor may ask about its sequence, always at the next output position.

Each emitted token moves the position on and the sampler's state with it, so the law of a row may
only be asked for when the walk has come to its node.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

from foreword.errors import RequestError
from foreword.protocols import Logits, Sampler
from foreword.sample.law import Law
from foreword.types import SamplingParams, Sequence


@dataclass(slots=True)
class Odds:
    """Laws and coins of one sequence. `draws`: its drafts are draws from laws written down."""

    sampler: Sampler
    sequence: Sequence
    draws: bool = False

    def law(self, row: Logits) -> Law:
        """What the next token is drawn from in plain decoding, `row` being its logits; at
        temperature 0 all of it on one token. Raises NonFiniteLogits."""
        return self._law(row, self.sequence.request.params)

    def soft_law(self, row: Logits) -> Law:
        """As `law`, but a greedy request's is that of temperature 1."""
        params = self.sequence.request.params
        if params.temperature == 0.0:
            params = replace(params, temperature=1.0)
        return self._law(row, params)

    def ahead(self, rows: SequenceOf[Logits], drafted: SequenceOf[int]) -> list[Law]:
        """The laws at `rows` [n + 1]: now, and after each of n `drafted` tokens, as if they were
        emitted. From the first token on that has no chance, the last law before it."""
        sequence, state = self.sequence, self.copied_state()
        params, position = sequence.request.params, sequence.num_output
        laws = [self.sampler.law(rows[0], params, state, position)]
        for count, token in enumerate(drafted, start=1):
            if laws[-1].of(token) > 0.0 and len(laws) == count:
                self.sampler.advance(rows[count - 1], state, token)
                laws.append(self.sampler.law(rows[count], params, state, position + count))
        return laws + laws[-1:] * (len(rows) - len(laws))

    def copied_state(self) -> Any:
        """The sampler's state, to be changed freely. RequestError where a rule cannot be copied."""
        try:
            return deepcopy(self.sequence.sampler_state)
        except Exception as error:
            raise RequestError(
                f"acceptance {self.sequence.request.params.acceptance!r} looks ahead on a copy of "
                f"the request's processors, and one cannot be copied ({error}); use 'ratio'",
                "acceptance",
            ) from None

    def coin(self, number: int) -> float:
        """Coin `number` >= 0 of the next position, in (0, 1)."""
        return self.sampler.coin(self.sequence.sampler_state, self.sequence.num_output, number)

    def _law(self, row: Logits, params: SamplingParams) -> Law:
        sequence = self.sequence
        return self.sampler.law(row, params, sequence.sampler_state, sequence.num_output)


def exactness(name: str, config: Any, remark: str = "") -> str:
    """How results name an acceptor and the options in force."""
    values = [(item.name, getattr(config, item.name)) for item in fields(config)]
    said = [f"{key}={spelled(value)}" for key, value in values]
    return " ".join(["approximate:", name, *said, *([f"({remark})"] if remark else [])])


def spelled(value: Any) -> str:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, tuple):
        return ",".join(map(spelled, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
