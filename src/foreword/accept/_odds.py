"""What an approximate acceptor may ask about its sequence, always at the next output position.

Each emitted token moves the position on and the sampler's state with it, so the law of a row may
only be asked for when the walk has come to its node.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

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

    def coin(self, number: int) -> float:
        """Coin `number` >= 0 of the next position, in (0, 1)."""
        return self.sampler.coin(self.sequence.sampler_state, self.sequence.num_output, number)

    def _law(self, row: Logits, params: SamplingParams) -> Law:
        sequence = self.sequence
        return self.sampler.law(row, params, sequence.sampler_state, sequence.num_output)


def exactness(name: str, config: Any, remark: str = "") -> str:
    """How results name an acceptor and the options in force."""
    values = [(item.name, getattr(config, item.name)) for item in fields(config)]
    said = [f"{key}={spelled(value)}" for key, value in values if value != ()]
    return " ".join(["approximate:", name, *said, *([f"({remark})"] if remark else [])])


def spelled(value: Any) -> str:
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return f"{value:g}" if isinstance(value, float) else str(value)
