"""The seams of the engine: small interfaces, each a folder of files or one file. No torch.

A file's name in the folder is its name on the command line; `build.py` finds it. `make` in each
file builds the object. tests/contract lists the folders and runs every promise below.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from collections.abc import Set
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from foreword.types import (
    Budget,
    Choice,
    DraftTree,
    Outcome,
    Request,
    SamplingParams,
    Sequence,
    TokenLogprobs,
    Trie,
    Verdict,
)

if TYPE_CHECKING:
    from foreword.model.batch import Batch
    from foreword.sample.law import Law

Logits = np.ndarray  # float32 [rows, vocab] or one row [vocab]


class Drafter(Protocol):
    """Guesses what comes next. May be wrong, never over budget; cannot change the text."""

    name: str

    def begin(self, sequence: Sequence) -> None:
        """A sequence enters (or re-enters after preemption). Called before its first propose."""

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        """One trie per sequence, of at most `budget[i]` nodes (0: an empty trie). Row i depends on
        row i and on what was openly learned, never on its neighbours. The budgets of a step
        together exceed what will be verified: propose what could come, tree/ decides what is
        affordable."""

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        """Tokens were committed; `outcome.sequence.token_ids` already holds them."""

    def end(self, sequence: Sequence) -> None:
        """The sequence leaves (finished, aborted or preempted); release everything held for it."""


@runtime_checkable
class DrawingDrafter(Protocol):
    """A drafter with a distribution of its own. For a sequence with `draws` it proposes one path:
    each node a draw, by a fresh coin, from a law written down in `Trie.laws`; whether a node is
    proposed, and with what score, may depend on the tokens above it, never on its own."""

    draws: bool  # true


@runtime_checkable
class PromptReader(Protocol):
    """A drafter that learns from the target's logits at the prompt, which cost an LM head of
    their own: nothing else needs them."""

    prompt_rows: int  # how many of a prompt's last rows it wants, the very last not counted

    def read_prompt(self, sequence: Sequence, start: int, logits: Logits) -> None:
        """The target's raw rows [rows, vocab] after prompt tokens `start` and on; a view, good
        until this returns. Rows that a prefix cache saved are not computed. The sequence may not
        have begun."""


class TreeBuilder(Protocol):
    """Spends a node budget over the whole batch."""

    name: str

    def build(
        self, roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget
    ) -> list[DraftTree]:
        """Parent-closed, topologically ordered trees within `budget`; `roots[i]` is node 0 of tree
        i."""


class Pace(Protocol):
    """How many draft nodes a step may verify and what they cost on this machine. Timings steer
    speed; no token depends on them."""

    def nodes(self, sequences: int) -> tuple[int, int]:
        """Draft nodes of the next step at most, over all running sequences and for each."""

    def budget(
        self,
        sequences: SequenceOf[Sequence],
        rows: int,
        total: int,
        per_sequence: SequenceOf[int],
    ) -> Budget:
        """The budget of these sequences' trees, in a pass with `rows` certain rows (roots and
        prompts) and at most `total` draft nodes."""

    def passed(self, segments: SequenceOf[tuple[int, int]], seconds: float) -> None:
        """A pass of such (rows, positions before them) took `seconds`; every row wanted logits."""

    def stepped(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        """A step is done; `seconds` of it were spent outside the pass."""


class Model(Protocol):
    """The target, or a draft model."""

    vocab_size: int  # rows of the logits

    def forward(self, batch: Batch, kv: KVStore) -> Logits:
        """Write K/V of every row of `batch` into its slot and return float32 logits of
        `batch.logit_rows`, [len(logit_rows), vocab]. Same row, same bits, whatever else is
        there."""


class PartialModel(Model, Protocol):
    """A model that can leave out units: 2 i is the attention of layer i, 2 i + 1 its MLP."""

    @property
    def num_layers(self) -> int: ...

    def forward(self, batch: Batch, kv: KVStore, skip: Set[int] = frozenset()) -> Logits:
        """As Model.forward; a unit in `skip` passes every row on as it is, and writes no K and V.
        What comes of it is a guess of the model's logits, and no more."""


class KVStore(Protocol):
    """Where keys and values live. Slot 0 is never handed out and always zero.

    Of a sequence with L committed tokens the store holds content 0..L-2: the last token (root) has
    no K/V until the next pass. `reserve` hands out room for the rows of one pass; `commit` keeps
    the accepted ones and frees the rest.
    """

    pool: Any  # kv.pool.KVPool: the tensors themselves, for kernels
    block_size: int  # tokens of a page; prefill chunks like to end on a page end
    shares_prefixes: bool  # whether `begin` may find what another sequence has committed
    capacity: int  # positions one sequence could hold if it were alone
    prefix_queries: int  # tokens looked up in the prefix cache so far
    prefix_hits: int  # and found there

    @property
    def num_free_tokens(self) -> int:
        """Positions that could be handed out now, evictable cache included."""

    def begin(self, sequence_id: str, token_ids: SequenceOf[int], salt: str = "") -> int:
        """Register a sequence, attach the longest cached prefix of `token_ids[:-1]`, return its
        length. `salt`: whom it may share with, such as Request.scope."""

    def reserve(self, sequence_id: str, rows: int) -> bool:
        """Room for `rows` rows after the committed ones; all or nothing. Replaces the last
        reservation."""

    def slots(self, sequence_id: str) -> np.ndarray:
        """int64 [committed + reserved]: the slot of each committed position, then of each reserved
        row."""

    def commit(self, sequence_id: str, path: SequenceOf[int], token_ids: SequenceOf[int]) -> None:
        """Keep reserved rows `path` (ascending indices), in this order, as the next positions; free
        the other reserved rows. `token_ids`: content of *all* positions now held, for prefix
        hashes."""

    def length(self, sequence_id: str) -> int:
        """Positions committed."""

    def truncate(self, sequence_id: str, length: int) -> None:
        """Forget positions >= length (draft models roll back)."""

    def free(self, sequence_id: str) -> None:
        """The sequence leaves. Its full hashed blocks may stay as cache until room is needed. An id
        that holds nothing is fine."""

    def keep(self, sequence_id: str, token_ids: SequenceOf[int]) -> None:
        """As `free`, and the positions after the last full block stay as cache as well: `begin`
        finds them for sequences that go on from exactly here. `token_ids`: content, at least of the
        positions committed."""

    def check(self) -> None:
        """Assert free + held + cached == total and every count right; AssertionError names the
        slot."""


class Sampler(Protocol):
    """Processors -> noise -> token, for one row at one position. Pure given `state`."""

    def begin(self, request: Request) -> Any:
        """The state of a request before its first token."""

    def choose(
        self,
        row: Logits,
        params: SamplingParams,
        state: Any,
        position: int,
        token: int | None = None,
    ) -> Choice:
        """The token at output position `position` (0-based): the sampler's own, or `token`, which
        an approximate acceptor lets through. Raises NonFiniteLogits."""

    def advance(self, row: Logits, state: Any, token: int) -> None:
        """`token`, chosen from `row`, has been emitted; called once for each, in order."""

    def law(self, row: Logits, params: SamplingParams, state: Any, position: int) -> Law:
        """The chance of each token at this position over all seeds; 0 for what rules mask or
        filters drop. Raises NonFiniteLogits."""

    def coin(self, state: Any, position: int, number: int, since: int = 0) -> float:
        """A number in (0, 1), a function of the request's seed and of these, uniform over seeds;
        independent of every other and of the noise of `choose`."""

    def rank(
        self, row: Logits, params: SamplingParams, state: Any, position: int, count: int
    ) -> list[tuple[int, float]]:
        """Up to `count` (token, probability-like score in (0, 1]), best first; the first is what
        `choose` would return, were there no user-supplied processors: a guess does not run them.
        For drafters that share the target's noise."""

    def open_row(
        self, row: Logits, params: SamplingParams, state: Any, position: int
    ) -> np.ndarray:
        """The float32 [vocab] that the choice is made from, an own copy: after every processor,
        and -inf at the ids that the filters drop (none at temperature 0). Raises as `choose`."""

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        """Raw log-probabilities of `tokens`, one for each row [rows, vocab], whatever a request
        asks for, and of the `count` highest. Raises NonFiniteLogits."""


class Rule(Protocol):
    """Changes the logits of one request, by what it has emitted, before a token is chosen. Made
    when the request begins; its state is a function of the emitted tokens and their rows."""

    def apply(self, row: Logits, position: int) -> None:
        """In place, on the request's own copy: float32 [vocab]. Changes nothing else. -inf: may
        not be chosen."""

    def advance(self, row: Logits, token: int) -> None:
        """`token` has been emitted; `row`: the target's raw logits it was chosen from."""


class Grammar(Protocol):
    """A form that a text must have, compiled; shared by the requests that ask for it."""

    def begin(self) -> Rule:
        """The state of one request's text, before its first token."""

    def scout(self) -> Scout:
        """A second reader of one request's text, for drafts."""


class Scout(Protocol):
    """Says what a form thinks of tokens that may come; shares nothing with the request's rule, so
    that no draft can leave a trace there. Its answers are hints."""

    num_read: int  # output tokens it has followed

    def follow(self, tokens: SequenceOf[int]) -> None:
        """The next tokens that were emitted."""

    def legal(self, path: SequenceOf[int]) -> int:
        """How many tokens of `path` may come, one after the other."""

    def forced(self, path: SequenceOf[int]) -> list[int]:
        """The tokens that must follow after `path`, which is legal: each the only one that may
        come."""

    def likely(self, path: SequenceOf[int]) -> tuple[list[int], list[float]]:
        """The tokens that probably follow after `path`, since the form leaves little choice, and
        the chance of each, given the one before it."""


class Guide(Protocol):
    """Fits drafts to the forms that requests ask for. Cannot change the text."""

    def fit(
        self, sequences: SequenceOf[Sequence], tries: SequenceOf[Trie], budget: SequenceOf[int]
    ) -> list[Trie]:
        """The tries without the nodes that a sequence's form forbids and with the tokens that it
        forces; as they are where there is no form, or no budget. A trie may hold more nodes than
        `budget[i]`: the builder takes the ones most likely to be reached."""


class RowOps(Protocol):
    """Questions about whole logit rows, float32 [rows, vocab] in C order, and about the sampler's
    noise; for drafters and tools."""

    def top_k(self, rows: Logits, k: int) -> tuple[np.ndarray, Logits]:
        """The first k of each row by (logit descending, id ascending): ids int32 [rows, k] and
        their values float32 [rows, k]; -inf comes last. ValueError on NaN or a bad k."""

    def gumbel(self, seed: int, position: int, ids: list[int]) -> list[float]:
        """The sampler's noise for some ids >= 0 at an output position."""

    def log_softmax(self, rows: Logits, ids: np.ndarray) -> np.ndarray:
        """Raw log-probability of `ids` int64 [rows], one of each row: float64 [rows], the bits of
        `TokenLogprobs`. NaN for a row that holds NaN, +inf or nothing but -inf."""


class Edit(NamedTuple):
    """One change of a logit row, at distinct `ids` >= 0 (int64, contiguous); ids outside the row
    are passed over. float32 throughout.

    ADD: row[id] += values[id]. REPEAT: row[id] is divided by `factor` where positive, else
    multiplied. MASK: row[id] = -inf. ONLY: all others become -inf.
    """

    kind: int
    ids: np.ndarray  # int64 [n]
    values: np.ndarray | None = None  # float32 [n], contiguous; ADD's
    factor: float = 1.0  # rounded to float32; REPEAT's


ADD, REPEAT, MASK, ONLY = range(4)  # kinds of Edit


class RowAsk(NamedTuple):
    """What a compiled chain is asked about one row. The fields have the meaning and the ranges of
    SamplingParams, resolved."""

    row: Logits  # contiguous float32 [vocab], before its edits
    raw: Logits  # the target's own row, for log-probabilities; `row` itself where nothing differs
    seed: int
    position: int
    temperature: float
    top_k: int = 0  # at most the row's length
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mu: float = float("inf")  # mirostat's, bits; inf = off
    logprobs: int = -1  # how many of the highest log-probabilities; -1: none at all
    edits: tuple[Edit, ...] = ()  # in order


class CompiledRows(RowOps, Protocol):
    """What a compiled sampling chain does beyond: bit for bit what sample/ says."""

    def choose(
        self, asks: SequenceOf[RowAsk]
    ) -> list[tuple[int, int, float, list[tuple[int, float]]]]:
        """Of each row (all of one length) a fault, the token, its logprob, the highest ones. With a
        fault other than 0 the rest means nothing."""

    def rank(self, ask: RowAsk, count: int) -> tuple[int, list[tuple[int, float]]]:
        """A fault, and up to `count` (id, perturbed score), best first; temperature > 0."""

    def open_row(self, ask: RowAsk) -> tuple[int, np.ndarray]:
        """A fault, and Sampler.open_row."""

    def surprise(self, ask: RowAsk, token: int) -> tuple[int, float]:
        """A fault, and the bits of mirostat.surprise for `token`; temperature > 0, finite mu."""


# Faults of a row: NaN or +inf in the target's own, nothing but -inf there; the same after its
# processors.
NON_FINITE, ALL_MASKED, OVERFLOWED, NONE_LEFT = 1, 2, 3, 4


class Choose(Protocol):
    """Emits the next token of a sequence."""

    def __call__(self, row: Logits, token: int | None = None) -> tuple[int, bool]:
        """The token that plain decoding chooses from `row`, or `token` in its place; and whether
        the request ends with it."""


class Acceptor(Protocol):
    """Walks a tree with the target's own choice."""

    name: str

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        """`rows` [nodes, vocab]: logits after each node. `choose(row)` emits the next token and
        says whether the request ends with it; called once per emitted token, in order. At least one
        token."""


class Approximate(Acceptor, Protocol):
    """The acceptor of one request that asked for it: lets through tokens that the target did not
    choose, by `choose(row, token)`. Never one that `Sampler.law` gives no chance (at temperature 0:
    of temperature 1). May keep a state from tree to tree."""

    exactness: str  # "approximate: ..." as receipts and results name it
    draws: bool  # wants drafts that are draws, see DrawingDrafter
