"""Samples -> tables for a person and one JSON object for a program, each figure beside its ceiling.

Medians throughout; the best repetition is told beside each. A share compares the median with the
median of reading memory in the same rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foreword.bench.rounds import Samples
from foreword.bench.session import Session

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: Row
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of a step by context, of the prompt, of a step of the batch; None: did not fit.
    forward: of the pass alone, where steps were timed. grown: positions that the context had
    gained, on average, while steps were timed."""

    decode: Mapping[int, Samples]
    prefill: Samples | None
    batch: Samples | None
    forward: Samples | None = None
    grown: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    tables: list[Table]
    figures: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def make_report(session: Session, samples: Mapping[str, Samples], rates: Rates) -> Report:
    maker = _Maker(session, samples, rates)
    tables = [maker.machine(), maker.decode(), maker.widths()]
    rest = maker.rest()
    if rest.rows:
        tables.insert(2, rest)
    notes = [f"not measured, the model's context is too short: {one}" for one in session.left_out]
    return Report(tables, maker.figures(), notes)


class _Maker:
    def __init__(self, session: Session, samples: Mapping[str, Samples], rates: Rates) -> None:
        self.session = session
        self.demand = session.demand
        self.rates = rates
        self.read = samples["read"]
        self.read_bytes = session.limits.read_bytes
        self.width = {width: samples[f"width {width}"] for width in session.scale.widths}

    # -- derived ------------------------------------------------------------------------------

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.read_bytes / self.read.median

    def ceiling(self, context: int) -> float:
        """Steps a second of one sequence that reading alone would allow."""
        return self.bandwidth / self.demand.bytes_at(context + self.rates.grown)

    def share(self, context: int) -> float:
        return 1 / self.rates.decode[context].median / self.ceiling(context)

    def attention(self, context: int) -> tuple[float, float]:
        """Seconds that the context adds to a step; and as a multiple of reading its K and V."""
        extra = self.rates.decode[context].median - self.rates.decode[0].median
        return extra, extra / (context * self.demand.kv_bytes / self.bandwidth)

    def peak_share(self, rows: int, logit_rows: int, seconds: float) -> float | None:
        """Share of the matrix rate; None where the numerics mode has none."""
        peak = self.session.peak_tops
        if peak is None:
            return None
        return self.demand.operations(rows, logit_rows) / seconds / 1e12 / peak

    # -- tables -------------------------------------------------------------------------------

    def machine(self) -> Table:
        limits, demand = self.session.limits, self.demand
        rows: list[Row] = [
            ("threads", str(limits.threads)),
            ("kernels", self.session.llm.built.isa or self.session.llm.built.backend),
            (f"reads {self.read_bytes / 1e6:.0f} MB at", f"{self.bandwidth / 1e9:.1f} GB/s"),
            ("at best", f"{self.read_bytes / self.read.best / 1e9:.1f} GB/s"),
        ]
        for kind, tops in self.session.matrix_tops.items():
            rows.append((f"{kind} products of {limits.isa}", f"{tops:.3f} TOP/s"))
        rows += [
            ("a step reads", f"{demand.weight_bytes / 1e6:.1f} MB of weights"),
            ("and of each position", f"{demand.kv_bytes / 1e3:.1f} kB of keys and values"),
            ("ceiling of plain decoding", f"{self.ceiling(0):.1f} tokens/s at an empty context"),
        ]
        return Table("this machine", ("limit", "measured"), rows)

    def decode(self) -> Table:
        columns = (
            "context",
            "ms",
            "best",
            "tokens/s",
            "ceiling",
            "share",
            "context adds",
            "of K, V",
        )
        rows: list[Row] = []
        for context, one in self.rates.decode.items():
            extra, multiple = self.attention(context) if context else (0.0, 0.0)
            rows.append(
                (
                    str(context),
                    ms(one.median),
                    ms(one.best),
                    f"{1 / one.median:.1f}",
                    f"{self.ceiling(context):.1f}",
                    percent(self.share(context)),
                    f"{ms(extra)} ms" if context else "-",
                    f"{multiple:.2f}x" if context else "-",
                )
            )
        return Table("plain decoding, one sequence", columns, rows)

    def rest(self) -> Table:
        """The prompt, the batch, and what is around the pass."""
        scale, rates, demand = self.session.scale, self.rates, self.demand
        rows: list[Row] = []
        if scale.prompt is not None and rates.prefill is not None:
            passes = -(-scale.prompt // self.session.chunk)
            share = self.peak_share(scale.prompt, 1, rates.prefill.median)
            least = passes * demand.weight_bytes / self.bandwidth
            rows.append(
                _line(f"prompt of {scale.prompt}", rates.prefill, scale.prompt, least, share)
            )
        if scale.batch is not None and rates.batch is not None:
            share = self.peak_share(scale.batch, scale.batch, rates.batch.median)
            cached = scale.batch * scale.batch_context * demand.kv_bytes
            least = (demand.weight_bytes + cached) / self.bandwidth
            name = f"step of {scale.batch} sequences"
            rows.append(_line(name, rates.batch, scale.batch, least, share))
        if rates.forward is not None:
            one = rates.forward
            rows.append(("pass of one row alone", ms(one.median), ms(one.best), "-", "-", "-"))
        columns = ("what", "ms", "best", "tokens/s", "share of reading", "share of the matrix rate")
        return Table("prompt and batch", columns, rows)

    def widths(self) -> Table:
        """The cost curve; a share of reading near 100 % means bound by memory."""
        context = self.session.scale.width_context
        rows: list[Row] = []
        for width, one in self.width.items():
            least = self.demand.bytes_at(context) / self.bandwidth
            rows.append(
                (
                    str(width),
                    ms(one.median),
                    ms(one.best),
                    f"{one.median / self.width[1].median:.2f}x",
                    f"{one.best / self.width[1].best:.2f}x",
                    percent(least / one.median),
                    _or(self.peak_share(width, width, one.median)),
                )
            )
        columns = (
            "rows",
            "ms",
            "best",
            "of one row",
            "best",
            "share of reading",
            "share of the matrix rate",
        )
        return Table(f"one verify pass at context {context}, logits at every row", columns, rows)

    # -- JSON ---------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        scale, rates = self.session.scale, self.rates
        decode = {context: one for context, one in rates.decode.items() if context}
        found: dict[str, Any] = {
            **self.session.setting(),
            "read_gb_s": self.bandwidth / 1e9,
            "matrix_tops": dict(self.session.matrix_tops),
            "step_bytes": self.demand.weight_bytes,
            "ceiling_tokens_per_s": self.ceiling(0),
            "decode_tokens_per_s": 1 / rates.decode[0].median,
            "share_of_ceiling": self.share(0),
            "decode_at_context": {str(key): 1 / one.median for key, one in decode.items()},
            "attention_of_kv_read": {str(key): self.attention(key)[1] for key in decode},
            "prefill_tokens_per_s": _rate(scale.prompt, rates.prefill),
            "batch8_tokens_per_s": _rate(scale.batch, rates.batch),
            "width_ms": {str(key): one.median * 1e3 for key, one in self.width.items()},
        }
        if rates.forward is not None:
            found["pass_share_of_step"] = rates.forward.median / rates.decode[0].median
        return {key: rounded(value) for key, value in found.items()}


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def percent(share: float) -> str:
    return f"{share:.1%}"


def _line(what: str, one: Samples, tokens: int, least: float, share: float | None) -> Row:
    """`least`: seconds that reading alone would take."""
    rate = f"{tokens / one.median:.1f}"
    return (what, ms(one.median), ms(one.best), rate, percent(least / one.median), _or(share))


def _or(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _rate(count: int | None, samples: Samples | None) -> float | None:
    return None if count is None or samples is None else count / samples.median


def rounded(value: Any) -> Any:
    """Five digits are more than a timing has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value
