"""`foreword bench drafting`: are the chances of drafter auto what they say?

Sixteen prompts are answered greedily, two at a time, so that later ones meet what earlier ones
taught. Every guess whose parent was emitted is an observation, verified or not. The expected
calibration error is the mean of |said - came| over ten bands of the chance said, by guesses.
"""

from __future__ import annotations

from foreword.bench.rounds import Progress
from foreword.bench.texts import mixed_prompts
from foreword.draft._calibration import Reliability
from foreword.draft.auto import AutoDrafter
from foreword.errors import ConfigError
from foreword.llm import LLM
from foreword.types import SamplingParams

WIDTH = 40  # characters of the plot


def measure(llm: LLM, tokens: int, progress: Progress | None = None) -> dict[str, Reliability]:
    """By source, and "mix" for what they said together. ConfigError for another drafter."""
    drafter = llm.engine.parts.drafter
    if not isinstance(drafter, AutoDrafter):
        raise ConfigError(
            f"drafter {drafter.name!r} is not calibrated; leave its name out: auto is"
        )
    room = llm.built.context - tokens
    if room < 1:
        raise ConfigError(f"{tokens} tokens do not fit the context {llm.built.context}; lower it")
    talks = [[{"role": "user", "content": text}] for text in mixed_prompts()]
    prompts = [llm.encode_chat(talk)[-room:] for talk in talks]
    params = SamplingParams(temperature=0.0, max_tokens=tokens)
    for place in range(0, len(prompts), 2):
        if progress is not None:
            progress("answering", place, len(prompts))
        llm.generate(prompts[place : place + 2], params)
    found: dict[str, Reliability] = {}
    for calibration in drafter.calibrations.values():
        found |= calibration.reliability
    return found


def plot(name: str, found: Reliability) -> list[str]:
    """Lines: per band the guesses, what was said (|) and what came (#)."""
    lines = [f"{name}: {sum(found.counts)} guesses, expected calibration error {found.error:.3f}"]
    for count, said, right in zip(found.counts, found.said, found.right, strict=True):
        if not count:
            continue
        bar = list(("#" * round(WIDTH * right / count)).ljust(WIDTH + 1))
        bar[round(WIDTH * said / count)] = "|"
        lines.append(f"  said {said / count:.2f}  came {right / count:.2f}  {''.join(bar)} {count}")
    return lines
