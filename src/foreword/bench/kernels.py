"""`foreword bench kernels`: passes of the model's forward alone, with no engine around them."""

from __future__ import annotations

from functools import partial

from foreword.bench.report import Rates, Report, make_report
from foreword.bench.rounds import Case, Progress, interleave
from foreword.bench.session import Session


def measure(session: Session, rounds: int, progress: Progress | None = None) -> Report:
    """Time reading, decoding at every context, widths, a prompt and a batch, round by round."""
    scale, passes = session.scale, session.passes
    cases: dict[str, Case] = session.forward_cases()
    for context in (0, *scale.contexts):
        cases[f"decode {context}"] = partial(passes.decode, context)
    if scale.prompt is not None:
        cases["prefill"] = partial(passes.prefill, scale.prompt, session.chunk)
    if scale.batch is not None:
        cases["batch"] = partial(passes.batch, scale.batch, scale.batch_context)
    samples = interleave(cases, rounds, progress)
    return make_report(
        session,
        samples,
        Rates(
            decode={context: samples[f"decode {context}"] for context in (0, *scale.contexts)},
            prefill=samples.get("prefill"),
            batch=samples.get("batch"),
        ),
    )
