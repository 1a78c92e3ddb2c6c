"""The nouns that travel between rooms: parameters, requests, sequences, tries, trees, verdicts.

Plain data, no torch, no behaviour beyond keeping itself consistent. Who fills a field is said next
to the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from foreword.errors import RequestError
from foreword.params import MAX_LOGPROBS as MAX_LOGPROBS
from foreword.params import MAX_SEED as MAX_SEED
from foreword.params import SamplingParams as SamplingParams
from foreword.params import check, check_int

if TYPE_CHECKING:
    import numpy as np

    from foreword.protocols import Approximate, Grammar
    from foreword.sample.law import Law

FinishReason = Literal["stop", "length", "timeout", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate, checked and complete: the door has resolved every default.

    `eos_ids` are the model's own end tokens (empty when the user ignores them). `watch` sees each
    emitted id and says when a stop string is complete (None: ids only). `group` ties samples of one
    prompt together, `salt` bounds prefix-cache sharing and what drafters learn across requests,
    lower `priority` runs first.
    """

    id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    eos_ids: frozenset[int] = frozenset()
    max_tokens: int = 16  # already cut to the context length
    priority: int = 0
    group: str | None = None
    salt: str = ""
    deadline: float | None = None  # time.monotonic() by which it should end; a wish, not a limit
    expires: float | None = None  # time.monotonic() from which it is cut at its last token
    watch: Callable[[int], bool] | None = None  # token id -> a stop string is complete
    bad_words: tuple[tuple[int, ...], ...] = ()  # each as the ids that may not follow each other
    dry_breakers: frozenset[int] = frozenset()  # ids that end a DRY match
    grammar: Grammar | None = None  # the form its text must have, compiled
    adapter: str | None = None  # name of a loaded LoRA adapter
    expand: int = 0  # > 0: a beam, of whose next token so many candidates are wanted (expansion.py)
    adapter_sha256: str = ""  # of its weights and scales
    draft_limit: int | None = None  # draft nodes a step at most; None = as the engine does

    @property
    def scope(self) -> str:
        """Whom it shares K and V and what drafters learn with: requests of its adapter and its
        salt. No other pair of these makes the same text."""
        assert (self.adapter is None) == (not self.adapter_sha256), self.adapter
        return f"{len(self.adapter_sha256)}:{self.adapter_sha256}{self.salt}"


@dataclass(frozen=True, slots=True)
class Handling:
    """How a request wants to be served; none of it can change its text. See `Request`."""

    salt: str = ""
    priority: int = 0
    deadline: float | None = None
    draft_limit: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.salt, str):
            raise RequestError(f"salt must be a text, got {self.salt!r}", "salt")
        check_int(self.priority, "priority", -(2**31), 2**31 - 1)
        check(self.deadline, "deadline", 0.0, math.inf)
        check_int(self.draft_limit, "draft_limit", 0, None)
        if self.priority is None:
            raise RequestError("priority must be a whole number, got None", "priority")


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token's and the highest ones'. -inf: of a token that
    the model rules out and a rule of the request let in."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (id, logprob), logprob descending, id ascending


@dataclass(slots=True)
class SourceClock:
    """How often each source was asked and how long it took, over the life of an engine. The engine
    measures its drafter and, as "", the target's passes; a composite each of its sources: time
    inside another's is its own only."""

    calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _inner: float = 0.0  # measured inside the measurement that is open

    def measure(self, name: str, calls: int = 1) -> Measurement:
        """Times the block on account of `name`."""
        return Measurement(self, name, calls)


class Measurement:
    """What SourceClock.measure enters; a class, because a generator would take longer than some of
    what is measured."""

    __slots__ = ("_around", "_calls", "_clock", "_name", "_started")

    def __init__(self, clock: SourceClock, name: str, calls: int) -> None:
        self._clock, self._name, self._calls = clock, name, calls

    def __enter__(self) -> None:
        clock = self._clock
        self._around, clock._inner = clock._inner, 0.0
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        spent, clock, name = perf_counter() - self._started, self._clock, self._name
        clock.calls[name] = clock.calls.get(name, 0) + self._calls
        clock.seconds[name] = clock.seconds.get(name, 0.0) + spent - clock._inner
        clock._inner = self._around + spent


@dataclass(slots=True)
class SpeculationStats:
    """Counts over one request or one engine; the engine adds to them once per verify pass."""

    num_steps: int = 0  # verify passes that emitted tokens
    num_emitted: int = 0  # tokens emitted
    num_drafted: int = 0  # draft nodes verified
    num_accepted: int = 0  # draft nodes whose token was emitted
    histogram: dict[int, int] = field(default_factory=dict)  # accepted per step -> steps
    drafted_by: dict[str, int] = field(default_factory=dict)  # source -> draft nodes verified
    accepted_by: dict[str, int] = field(default_factory=dict)  # source -> of these, emitted

    def add(self, drafted: int, accepted: int, emitted: int) -> None:
        self.num_steps += 1
        self.num_emitted += emitted
        self.num_drafted += drafted
        self.num_accepted += accepted
        self.histogram[accepted] = self.histogram.get(accepted, 0) + 1

    def credit(self, guessed: SequenceOf[str], right: SequenceOf[str]) -> None:
        """Count by source the nodes of a tree and the tokens emitted; "" (the target) is nobody."""
        for counts, names in ((self.drafted_by, guessed), (self.accepted_by, right)):
            for name in names:
                if name:
                    counts[name] = counts.get(name, 0) + 1

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per verify pass, bonus included."""
        return self.num_emitted / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way: what has been emitted and what the engine must remember of it.

    `token_ids` = prompt + emitted. The engine alone appends. `sampler_state` is a function of the
    emitted tokens and survives preemption. Drafters read `token_ids`, `request`, `sampler_state`.
    """

    request: Request
    token_ids: list[int]
    sampler_state: Any = None  # filled by engine from Sampler.begin
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of prompt tokens 1, 2, ...
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    sources: list[str] = field(
        default_factory=list
    )  # per emitted token: who guessed it, "" = target
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    scout: Any = None  # filled by the guide from Grammar.scout, for a request with a form
    acceptor: Approximate | None = None  # its own one, where it asked for it; filled by engine

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def exactness(self) -> str:
        """ "exact", or "approximate: ..." and how."""
        return "exact" if self.acceptor is None else self.acceptor.exactness

    @property
    def draws(self) -> bool:
        """Its drafts should be draws from the drafter's own distribution (Trie.laws)."""
        return self.acceptor is not None and self.acceptor.draws

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def first_unread(self) -> int:
        """The first row of the prompt whose logprobs are wanted and not known; the prompt's last
        row if there is none. Survives preemption."""
        if self.request.params.prompt_logprobs is None:
            return self.num_prompt - 1
        return len(self.prompt_logprobs)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.max_tokens - self.num_output


@dataclass(slots=True)
class Trie:
    """Scored candidates for what follows one sequence; the root (last committed token) is implicit.

    Node i holds `tokens[i]`; `parents[i]` is -1 (child of the root) or an index < i. `scores[i]` in
    (0, 1] is the chance that i is accepted *given that its parent is*; `add` merges equal siblings.
    `evidence[i]`: what the score rests on, in the source's own small whole numbers (a match length,
    a rank); calibration keeps a count for each. Who fills the columns at once sees to all that.
    `laws[i]`: what i was drawn from, where it was.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    evidence: list[int] = field(default_factory=list)
    laws: dict[int, Law] = field(default_factory=dict)
    _index: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, score: float, source: str, evidence: int = 0) -> int:
        """Add a child, or raise an equal sibling's score; returns the node's index."""
        tokens = self.tokens
        node = len(tokens)
        assert -1 <= parent < node, (parent, node)
        if not 1e-9 <= score <= 1.0:
            score = min(max(score, 1e-9), 1.0)
        if len(self._index) < node:  # made by whoever filled the columns
            self._fill()
        found = self._index.setdefault((parent, token), node)
        if found != node:
            if score > self.scores[found]:
                self.scores[found], self.sources[found] = score, source
                self.evidence[found] = evidence
            return found
        tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.sources.append(source)
        self.evidence.append(evidence)
        return len(self.tokens) - 1

    def child(self, parent: int, token: int) -> int | None:
        """The child of `parent` (-1: of the root) that holds `token`."""
        if len(self._index) < len(self.tokens):
            self._fill()
        return self._index.get((parent, token))

    def _fill(self) -> None:
        self._index.update(zip(zip(self.parents, self.tokens, strict=True), count()))

    def add_chain(self, tokens: SequenceOf[int], scores: SequenceOf[float], source: str) -> None:
        """Add a path below the root."""
        node = -1
        for token, score in zip(tokens, scores, strict=True):
            node = self.add(node, token, score, source)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """What one sequence verifies in this step. Node 0 is the root; parents precede children."""

    tokens: tuple[int, ...]  # [nodes]; tokens[0] = last committed token
    parents: tuple[int, ...]  # [nodes]; parents[0] = -1, parents[i] < i
    sources: tuple[str, ...]  # [nodes]; sources[0] = ""
    laws: dict[int, Law] = field(default_factory=dict, compare=False, repr=False)  # as Trie.laws
    _index: dict[tuple[int, int], int] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_drafted(self) -> int:
        return len(self.tokens) - 1

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that holds `token`; siblings are distinct."""
        if not self._index:  # made by the first question
            self._index.update(zip(zip(self.parents, self.tokens, strict=True), count()))
        return self._index.get((node, token))

    def guessed(self, tokens: SequenceOf[int]) -> list[str]:
        """Per emitted token: the source of the node that held it, "" for the target's own."""
        node: int | None = 0
        sources = []
        for token in tokens:
            node = None if node is None else self.child(node, token)
            sources.append("" if node is None else self.sources[node])
        return sources

    def with_laws(self, trie: Trie) -> DraftTree:
        """This tree with what the nodes it took from `trie` were drawn from."""
        moved: list[int | None] = [-1]
        laws = {}
        for node in range(1, len(self)):
            above = moved[self.parents[node]]
            found = None if above is None else trie.child(above, self.tokens[node])
            moved.append(found)
            if found in trie.laws:
                laws[node] = trie.laws[found]
        return replace(self, laws=laws)

    @staticmethod
    def root(token: int) -> DraftTree:
        return DraftTree((token,), (-1,), ("",))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of verifying one tree.

    `tokens` are emitted, in order, at least one. `path` are the nodes below the root whose rows
    stay in the KV cache: content of the sequence up to, not including, the last emitted token.
    `num_accepted` counts emitted tokens that a draft node had guessed.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]  # len(path) == len(tokens) - 1
    num_accepted: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `Drafter.observe` learns about one sequence after a step; its token_ids are extended.

    `logits` float32 [nodes, vocab]: the target's raw rows after each node of `tree`, whether it was
    accepted or not. A view, good until `observe` returns.
    """

    sequence: Sequence
    tree: DraftTree
    verdict: Verdict
    logits: np.ndarray


@dataclass(frozen=True, slots=True)
class Choice:
    """A sampler's answer for one logit row."""

    token_id: int
    logprobs: TokenLogprobs | None = None  # when the request asks for them


@dataclass(frozen=True, slots=True)
class Budget:
    """How many draft nodes a step may verify, in total and per sequence (roots not counted), and
    what they cost. Without `costs` a node is free.

    costs: seconds of the step with 0, 1, ... `total` draft nodes. row_costs: what a node of each
    sequence costs beyond, for its context. weights: what a token of each sequence is worth.
    rate: weighted tokens a second that steps bring at their best lately; 0 = unknown.
    """

    total: int
    per_sequence: tuple[int, ...]
    costs: SequenceOf[float] = ()
    row_costs: SequenceOf[float] = ()
    weights: SequenceOf[float] = ()
    rate: float = 0.0
