"""`generate --explain`: the text by who guessed each token, and a table of the sources.

On a terminal each source has a colour and the target's own tokens are plain; with NO_COLOR set,
guessed tokens stand in braces behind the name of their source. For a program that reads stdout the
text stays as it is: it has the table on stderr, or --json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from foreword.cli.show import table

if TYPE_CHECKING:
    from foreword.engine import Engine
    from foreword.outputs import CompletionOutput
    from foreword.text.tokenizer import Tokenizer

TARGET = "target"
PLAIN_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")
COLOURS = (*PLAIN_COLOURS, *(f"bright_{colour}" for colour in PLAIN_COLOURS))

Piece = tuple[str, str]  # text that became certain with a token, and its source ("" = target)


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One source over a whole run. Of the target: passes, and the tokens nobody had guessed."""

    source: str
    calls: int
    drafted: int  # nodes the target verified
    accepted: int
    tokens: int  # emitted, of all outputs
    seconds: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Pieces of each output, in order, and the rows of the table, the target's last."""

    outputs: list[list[Piece]]
    rows: list[SourceRow]

    def texts(self) -> list[str]:
        """What to print for each output."""
        return [painted(pieces, self.rows, style()) for pieces in self.outputs]

    def as_json(self) -> dict[str, Any]:
        return {
            "sources": [asdict(row) for row in self.rows],
            "outputs": [
                [{"text": text, "source": source or TARGET} for text, source in pieces]
                for pieces in self.outputs
            ],
        }


def explain(
    engine: Engine, tokenizer: Tokenizer, outputs: Iterable[tuple[list[int], CompletionOutput]]
) -> Explanation:
    """Of all (prompt ids, output) of an engine that has run nothing else."""
    return Explanation([pieces_of(tokenizer, *pair) for pair in outputs], rows_of(engine))


def rows_of(engine: Engine) -> list[SourceRow]:
    """The most accepted first; a source that was only measured, such as a mix itself, too."""
    stats, clock = engine.stats, engine.parts.clock
    names = {name for name in (*clock.calls, *stats.drafted_by) if name not in ("", "none")}
    rows = []
    for name in names:
        accepted = stats.accepted_by.get(name, 0)
        drafted = stats.drafted_by.get(name, 0)
        seconds = clock.seconds.get(name, 0.0)
        rows.append(SourceRow(name, clock.calls.get(name, 0), drafted, accepted, accepted, seconds))
    rows.sort(key=lambda row: (-row.accepted, row.source))
    own = stats.num_emitted - stats.num_accepted
    passes, seconds = clock.calls.get("", 0), clock.seconds.get("", 0.0)
    return [*rows, SourceRow(TARGET, passes, 0, 0, own, seconds)]


def pieces_of(tokenizer: Tokenizer, prompt_ids: list[int], output: CompletionOutput) -> list[Piece]:
    """The text of an output token by token; a character of several tokens belongs to its last."""
    from foreword.text.stream import TextStream

    stream, left = TextStream(tokenizer, prompt_ids), output.text
    pieces = []
    for token, source in zip(output.token_ids, output.sources, strict=True):
        stream.push(token)
        pieces.append((stream.take(), source))
    stream.finish()
    if rest := stream.take():
        pieces.append((rest, output.sources[-1]))
    shown = []
    for text, source in pieces:  # a stop string is not part of the text
        shown.append((left[: len(text)], source))
        left = left[len(text) :]
    assert not left, left
    return shown


def style() -> str:
    """How tokens are told apart on this stdout: colours, braces, or plain (a program reads it)."""
    if not sys.stdout.isatty():
        return "plain"
    quiet = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return "braces" if quiet else "colours"


def painted(pieces: Iterable[Piece], rows: Sequence[SourceRow], how: str) -> str:
    """The text, tokens of one source that follow each other joined."""
    runs = groupby(pieces, key=lambda piece: piece[1])
    parts = []
    for source, run in runs:
        text = "".join(piece for piece, _ in run)
        if source and text and how == "colours":
            text = typer.style(text, fg=colour_of(source, rows))
        elif source and text and how == "braces":
            text = f"{{{source}:{text}}}"
        parts.append(text)
    return "".join(parts)


def colour_of(source: str, rows: Sequence[SourceRow]) -> str:
    """By place in the table, the target's row left out."""
    names = [row.source for row in rows]
    return COLOURS[names.index(source) % len(COLOURS)]


def show_table(rows: Sequence[SourceRow]) -> None:
    """Legend and table in one, on stderr: names have their colours."""
    colours = {}
    if style() == "colours":
        guessing = [row.source for row in rows if row.source != TARGET]
        colours = {name: colour_of(name, rows) for name in guessing}
    titles = ("source", "calls", "drafted", "accepted", "tokens", "time")
    table(titles, [_cells(row) for row in rows], err=True, colours=colours)


def _cells(row: SourceRow) -> tuple[str, ...]:
    counts: tuple[str, ...] = ("-", "-")
    if row.source != TARGET:
        share = f" ({row.accepted / row.drafted:.0%})" if row.drafted else ""
        counts = (str(row.drafted), f"{row.accepted}{share}")
    time = f"{row.seconds * 1e3:.1f} ms"
    return (row.source, str(row.calls), *counts, str(row.tokens), time)
