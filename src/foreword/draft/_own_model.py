"""A draft model and its KV store, for drafters that need "own_kv": it reads without a hole.

    store     [ committed, K/V known | rows of this step, reserved and not committed ]
               0 .. length-1           certain tokens not yet held, then drafted ones: a tree

The store alone says what is held (`kv.length`). After full acceptance that is two tokens short of
the history, after a prefix hit or preemption any number: `start` feeds whatever is missing, so
there is never a hole. Drafted tokens may branch; each sees its own ancestors. `keep` commits the
rows the target agreed with. Knows no drafter and no tries.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np

from foreword.model.batch import Batch, Segment
from foreword.protocols import KVStore, Logits, Model
from foreword.types import Sequence

ROOT = -1  # "after" the last committed token, where drafted rows are numbered from 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What to read of one sequence: `tokens[i]` follows `parents[i]`, an index into `tokens` or -1:
    what they all hang on. `room`: rows that later feeds may add."""

    sequence: Sequence
    tokens: SequenceOf[int] = ()
    parents: SequenceOf[int] = ()
    room: int = 0


@dataclass(slots=True)
class _Read:
    """Rows of one sequence in this step, in the order of the reservation."""

    held: int  # positions committed before them
    certain: int  # of these rows, how many are tokens of the history
    room: int  # drafted rows that are reserved
    tokens: list[int] = field(default_factory=list)  # drafted
    parents: list[int] = field(default_factory=list)  # drafted row -> drafted row or ROOT

    def path(self, row: int) -> list[int]:
        """Drafted rows from the first to `row`."""
        rows: list[int] = []
        while row != ROOT:
            rows.append(row)
            row = self.parents[row]
        return rows[::-1]


class OwnModel:
    """Reads for a drafter; sequences without room in the store are left out."""

    def __init__(self, model: Model, kv: KVStore) -> None:
        self.model = model
        self.kv = kv
        self._read: dict[str, _Read] = {}

    def begin(self, sequence: Sequence) -> None:
        self.kv.begin(sequence.id, self._readable(sequence.token_ids), sequence.request.salt)

    def end(self, sequence: Sequence) -> None:
        self._read.pop(sequence.id, None)
        self.kv.free(sequence.id)

    def room(self, sequence: Sequence) -> int:
        """Drafted rows that may still be fed in this step."""
        read = self._read[sequence.id]
        return read.room - len(read.tokens)

    def start(self, asks: SequenceOf[Ask], chunk_size: int) -> list[Logits | None]:
        """Read every token not yet held, and the drafted ones of each ask. Per ask: float32
        [1 + tokens, columns], the rows after the last token of the history and after each drafted
        one; None where the store has no room, and only the first row where it has none for
        drafts."""
        answers: list[Logits | None] = [None] * len(asks)
        waiting = list(range(len(asks)))
        while waiting:
            segments: list[Segment] = []
            final: list[tuple[int, int]] = []  # place among the asks, logit rows
            going_on: list[tuple[int, int]] = []  # place, length after this pass
            for place in waiting:
                ask = asks[place]
                held, total = self.kv.length(ask.sequence.id), len(ask.sequence.token_ids)
                if total - held > chunk_size:
                    if self.kv.reserve(ask.sequence.id, chunk_size):
                        segments.append(self._chunk(ask.sequence, held, held + chunk_size))
                        going_on.append((place, held + chunk_size))
                elif (segment := self._last(ask, held, total)) is not None:
                    segments.append(segment)
                    final.append((place, len(segment.logit_rows)))
            rows = self._forward(segments)
            for place, end in going_on:
                self._commit(asks[place].sequence, range(chunk_size), end)
            first = 0
            for place, count in final:
                answers[place] = rows[first : first + count]
                first += count
            waiting = [place for place, _ in going_on]
        return answers

    def feed(self, asks: SequenceOf[tuple[Ask, int]]) -> list[Logits]:
        """Read the tokens of each ask after its drafted row `after`; float32 [tokens, columns]."""
        segments = []
        for ask, after in asks:
            read = self._read[ask.sequence.id]
            slots = self.kv.slots(ask.sequence.id)
            start = read.held + read.certain
            seen = [start + row for row in read.path(after)]
            first = len(read.tokens)
            own = range(start + first, start + first + len(ask.tokens))
            places = np.concatenate((slots[:start], slots[[*seen, *own]]))
            read.tokens += self._readable(list(ask.tokens))
            read.parents += [after if parent == ROOT else first + parent for parent in ask.parents]
            assert len(read.tokens) <= read.room, (len(read.tokens), read.room)
            segments.append(
                Segment(
                    tuple(read.tokens[first:]),
                    tuple(ask.parents),
                    start + len(seen),
                    places,
                    tuple(range(len(ask.tokens))),
                )
            )
        rows = self._forward(segments)
        ends = np.cumsum([len(ask.tokens) for ask, _ in asks]).tolist()
        return [rows[end - len(ask.tokens) : end] for (ask, _), end in zip(asks, ends, strict=True)]

    def keep(self, sequence: Sequence) -> None:
        """Commit the rows the target agreed with; one token at least stays to be fed."""
        read = self._read.pop(sequence.id, None)
        if read is None:
            return
        known = {pair: row for row, pair in enumerate(zip(read.parents, read.tokens, strict=True))}
        row, path = ROOT, list(range(read.certain))
        for token in self._readable(sequence.token_ids[read.held + read.certain : -1]):
            found = known.get((row, token))
            if found is None:
                break
            row = found
            path.append(read.certain + row)
        self._commit(sequence, path, read.held + len(path))

    def _chunk(self, sequence: Sequence, held: int, end: int) -> Segment:
        tokens = self._readable(sequence.token_ids[held:end])
        return Segment.chain(tokens, self.kv.slots(sequence.id), logits=False)

    def _last(self, ask: Ask, held: int, total: int) -> Segment | None:
        """The rest of the history and the drafted tokens, or as much of it as there is room for."""
        key, certain = ask.sequence.id, total - held
        drafted, room = len(ask.tokens), len(ask.tokens) + ask.room
        if not self.kv.reserve(key, certain + room):
            drafted = room = 0
            if not self.kv.reserve(key, certain):
                self._read.pop(key, None)
                return None
        guesses = self._readable(list(ask.tokens[:drafted]))
        parents = list(ask.parents[:drafted])
        self._read[key] = _Read(held, certain, room, guesses, parents)
        tokens = [*self._readable(ask.sequence.token_ids[held:]), *guesses]
        return Segment(
            tuple(tokens),
            (*range(-1, certain - 1), *(certain + parent for parent in parents)),
            held,
            self.kv.slots(key)[: held + len(tokens)],
            tuple(range(certain - 1, len(tokens))),
        )

    def _commit(self, sequence: Sequence, path: SequenceOf[int], end: int) -> None:
        self.kv.commit(sequence.id, path, self._readable(sequence.token_ids[:end]))

    def _readable(self, token_ids: list[int]) -> list[int]:
        """Ids as the draft model is fed them: id 0 stands for one it has no embedding for."""
        limit = self.model.vocab_size
        if max(token_ids, default=0) < limit:
            return token_ids
        return [token if token < limit else 0 for token in token_ids]

    def _forward(self, segments: list[Segment]) -> Logits:
        if not segments:
            return np.zeros((0, self.model.vocab_size), dtype=np.float32)
        return self.model.forward(Batch.of(segments), self.kv)
