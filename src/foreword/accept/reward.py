"""Reward-guided steps: what the drafter wrote stays if the user's scorer likes it.

RSD (arXiv 2501.19324): the drafter writes a step of reasoning, a reward model scores it, and only
a step below the threshold is written by the target. Here a step is the drafted path of one pass, up
to and with the first id of `step_ends`: make it long enough with num_speculative_tokens. A refused
step is written by the target, exactly as plain decoding would go on, until an id of `step_ends`
has come (without any: until this pass ends). After a kept step the target adds its own token.

Of a tree the first path counts. A token that processors or filters forbid ends the step there.

Gives up: the target's distribution, for the drafter's where the scorer agrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from foreword.accept._odds import Odds, exactness
from foreword.accept._walk import children, walk
from foreword.errors import ConfigError, RequestError
from foreword.protocols import Choose, Logits
from foreword.types import DraftTree, Verdict

needs: frozenset[str] = frozenset()
draws = True
keeps = False

Scorer = Callable[[SequenceOf[int], SequenceOf[int]], float]
"""(prompt ids + emitted ids, ids of the step) -> its reward, higher is better."""


@dataclass(frozen=True, slots=True)
class Config:
    """scorer: a Python function, see Scorer; it is called once for each step. threshold: the least
    reward that is kept. step_ends: ids that end a step, such as that of a blank line."""

    scorer: Scorer | None = None
    threshold: float = 0.7
    step_ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.scorer):
            raise ConfigError(
                "acceptance 'reward' needs the option scorer, a function of (ids so far, ids of "
                f"the step) that returns a number; got {self.scorer!r}"
            )
        if not _number(self.threshold):
            raise ConfigError(f"threshold must be a finite number, got {self.threshold!r}")
        ends = self.step_ends
        if not isinstance(ends, (tuple, list)) or not all(
            isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ends
        ):
            raise ConfigError(f"step_ends must list token ids, got {ends!r}")
        object.__setattr__(self, "step_ends", tuple(ends))


class RewardAcceptor:
    """Implements protocols.Approximate."""

    name = "reward"

    def __init__(self, config: Config, odds: Odds) -> None:
        self.exactness = exactness(self.name, config)
        self.draws = odds.draws
        self._config = config
        self._odds = odds
        self._refused = False  # the target writes until the step ends

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        """Raises RequestError where the scorer fails: this request ends with it."""
        following = self._kept_step(tree)

        def pick(node: int) -> int | None:
            token = following.get(node)
            if token is not None and self._odds.soft_law(rows[node]).of(token) > 0.0:
                return token
            following.clear()
            return None

        verdict = walk(tree, rows, choose, pick)
        if self._refused:
            self._refused = not set(self._config.step_ends) & set(verdict.tokens)
        return verdict

    def _kept_step(self, tree: DraftTree) -> dict[int, int]:
        """Node -> the token to emit after it, along the drafted step; empty: the target writes."""
        step = {} if self._refused else first_step(tree, self._config.step_ends)
        if step and self._reward(list(step.values())) < self._config.threshold:
            self._refused = bool(self._config.step_ends)
            return {}
        return step

    def _reward(self, step: list[int]) -> float:
        assert self._config.scorer is not None
        try:
            reward = self._config.scorer(list(self._odds.sequence.token_ids), step)
        except Exception as error:
            raise RequestError(
                f"the scorer failed with {type(error).__name__}: {error}", "acceptance_options"
            ) from error
        if not _number(reward):
            raise RequestError(
                f"the scorer must return a finite number, got {reward!r}", "acceptance_options"
            )
        return float(reward)


def first_step(tree: DraftTree, ends: SequenceOf[int]) -> dict[int, int]:
    """Node -> token after it, from the root down the first path, the end of the step included."""
    step: dict[int, int] = {}
    node = 0
    while below := children(tree, node):
        step[node] = tree.tokens[below[0]]
        if step[node] in ends:
            break
        node = below[0]
    return step


def _number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except TypeError:
        return False


def make(config: Config, odds: Odds) -> RewardAcceptor:
    return RewardAcceptor(config, odds)
