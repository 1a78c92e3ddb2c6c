"""`logit_bias`: adds a number to the logits of given ids (OpenAI's meaning), at every position."""

from __future__ import annotations

import numpy as np

from foreword.protocols import ADD, Edit
from foreword.sample.edits import EditRule
from foreword.types import Request


class Bias(EditRule):
    def __init__(self, bias: dict[int, float]) -> None:
        ids = np.array(sorted(bias), dtype=np.int64)
        values = np.array([bias[token] for token in ids.tolist()], dtype=np.float32)
        self._edit = Edit(ADD, ids, values)

    def edit(self, position: int) -> Edit:
        return self._edit


def rules(request: Request) -> list[EditRule]:
    bias = request.params.logit_bias
    return [Bias({int(token): float(value) for token, value in bias.items()})] if bias else []
