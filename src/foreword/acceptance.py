"""The acceptor a request asks for: checks the name, its options and what it needs, by name.

A member of accept/ other than `exact` declares at module level:

    needs    frozenset of words: "law", drafts that are draws from a distribution the drafter writes
             down; "temperature", one above 0
    draws    whether such drafts are wanted where the drafter can give them
    keeps    whether the text has the distribution of plain sampling
    Config   small frozen dataclass of its own options; ConfigError for a bad one
    make     make(config, odds) -> Approximate
"""

from __future__ import annotations

from typing import Any

from foreword.accept._odds import Odds
from foreword.config import from_options
from foreword.errors import ConfigError, RequestError
from foreword.families import member, names
from foreword.protocols import Approximate, Drafter, DrawingDrafter, Sampler
from foreword.types import SamplingParams, Sequence


def acceptor_of(sequence: Sequence, sampler: Sampler, drafter: Drafter) -> Approximate | None:
    """A fresh acceptor for one request; None: exact. Raises RequestError naming the parameter."""
    params = sequence.request.params
    if params.acceptance == "exact":
        return None
    module, config = checked(params, drafter)
    draws = module.draws and isinstance(drafter, DrawingDrafter)
    made: Approximate = module.make(config, Odds(sampler, sequence, draws))
    return made


def checked(params: SamplingParams, drafter: Drafter) -> tuple[Any, Any]:
    """The module and the config of `params.acceptance`, which is not exact; RequestError where it
    cannot be had with this drafter."""
    module, config = named(params)
    if "law" in module.needs and not isinstance(drafter, DrawingDrafter):
        raise RequestError(
            f"acceptance {params.acceptance!r} needs a drafter with a distribution of its own "
            f"(drafter 'model', with a draft model); this engine drafts with {drafter.name!r}",
            "acceptance",
        )
    if "law" in module.needs and params.structured_outputs is not None:
        raise RequestError(
            f"acceptance {params.acceptance!r} needs the distribution that drafts were drawn from, "
            "which structured_outputs changes; use 'typical' or 'conditional', or drop one of them",
            "acceptance",
        )
    if "temperature" in module.needs and params.temperature == 0.0:
        raise RequestError(
            f"acceptance {params.acceptance!r} needs temperature > 0; at 0 use 'exact' or "
            "'conditional'",
            "acceptance",
        )
    return module, config


def named(params: SamplingParams) -> tuple[Any, Any]:
    """The module behind the name, and its config."""
    try:
        module = member("accept", params.acceptance)
    except ConfigError:
        known = ", ".join(names("accept"))
        raise RequestError(
            f"no acceptance {params.acceptance!r}; there is: {known}", "acceptance"
        ) from None
    given = dict(params.acceptance_options or {})
    try:
        return module, from_options(module.Config, given, f"acceptance {params.acceptance!r}")
    except ConfigError as error:
        raise RequestError(str(error), "acceptance_options") from None
