"""Cases of part E: what the log-probabilities are of, how many, and where; through the whole loop,
of output and prompt."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Job, Rig, drive, equal, prompt, rig, smollm2

import apparatus
from foreword.cli.as_json import output_json
from foreword.draft.scripted import chain, right_until
from foreword.echo import FLOOR, aligned
from foreword.errors import NonFiniteLogits, RequestError
from foreword.scheduler import READ_ROWS
from foreword.types import MAX_LOGPROBS, SamplingParams

slow = pytest.mark.slow
K = 4


class Unhelpful:
    """A scout that knows nothing."""

    num_read = 0

    def follow(self, tokens: Any) -> None:
        self.num_read += len(tokens)

    def legal(self, path: Any) -> int:
        return len(path)

    def forced(self, path: Any) -> list[int]:
        return []

    def likely(self, path: Any) -> tuple[list[int], list[float]]:
        return [], []


class Damping:
    """A grammar of no language: tokens of the output so far lose by how often they came, ids of one
    residue are ruled out at each position. Its state is a function of the emitted tokens."""

    def begin(self) -> Damping:
        fresh = Damping()
        fresh.seen = {}
        return fresh

    seen: dict[int, int]

    def scout(self) -> Unhelpful:
        return Unhelpful()

    def apply(self, row: np.ndarray, position: int) -> None:
        for token, times in self.seen.items():
            row[token] -= np.float32(1.5 * times)
        row[position % 7 :: 7] = -np.inf

    def advance(self, row: np.ndarray, token: int) -> None:
        self.seen[token] = self.seen.get(token, 0) + 1


class Only:
    """Leaves the given ids and nothing else."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)

    def begin(self) -> Only:
        return self

    def scout(self) -> Unhelpful:
        return Unhelpful()

    def apply(self, row: np.ndarray, position: int) -> None:
        kept = row[self.ids]
        row[:] = -np.inf
        row[self.ids] = kept

    def advance(self, row: np.ndarray, token: int) -> None:
        pass


class Spelling(Only):
    """The output is these ids, one after the other, then the last again and again."""

    def apply(self, row: np.ndarray, position: int) -> None:
        row[:] = -np.inf
        row[self.ids[min(position, len(self.ids) - 1)]] = 0.0


def by_hand(target: Rig, ids: tuple[int, ...], **how: Any) -> list[np.ndarray]:
    """float64 log-softmax of the target's own row after each of `ids`: one token after another, on
    an engine that decodes plainly, by numpy's functions."""
    rows: list[np.ndarray] = []
    engine = target.engine(prefix=False, slots=len(ids) + 48, rows=1, batch=1)
    inner = engine.parts.model

    class Keeping:
        vocab_size, kernels = target.vocab_size, target.model.kernels

        def forward(self, batch: Any, kv: Any) -> np.ndarray:
            every = replace(batch, logit_rows=np.arange(batch.num_rows))
            logits = inner.forward(every, kv)
            rows.extend(logits.astype(np.float64))
            return logits[batch.logit_rows]

    engine.parts = replace(engine.parts, model=Keeping())
    engine.add(Job(ids, max_tokens=1).request("0"))
    while engine.has_work:
        engine.step()
    return [row - row.max() - math.log(np.exp(row - row.max()).sum()) for row in rows]


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_v39_v40_logprobs_with_rules_on(numerics: str, mode: str) -> None:
    """V39 and V40: greedy and sampled, a rule with state on; drafts right, half right and wrong:
    the bits of plain decoding. Raw is of the model's own logits: of the first token as without the
    rule, where both list it; processed is not, and rules out what the rule does."""
    target = rig(numerics)
    for temperature in (0.0, 1.0):
        job = Job(prompt(10), 20, temperature, logprobs=MAX_LOGPROBS, logprobs_mode=mode)
        ruled = replace(job, grammar=Damping())
        answers = target.answers([ruled], K)
        for wrong in (0, 2, K):
            script = chain(answers, K, right_until(wrong), target.vocab_size)
            (result,) = target.exact([ruled], script=script, k=K)
        free, first = target.plain(job).logprobs[0], result.logprobs[0]
        assert first[0] % 7 != 0, "position 0 rules out ids 0, 7, 14, ..."
        if mode == "raw":
            assert first[2] == free[2]  # the same list, ruled-out ids in it
            assert dict(free[2]).get(first[0], first[1]) == first[1]
        else:
            assert all(token % 7 for token, _ in first[2])
        assert len(first[2]) == MAX_LOGPROBS


def test_v40_processed_logprobs_are_those_of_what_is_chosen_from() -> None:
    """V40: by hand, with numpy: after temperature and filters a distribution over what is left, at
    temperature 0 that of the processed logits."""
    target = rig()
    ids = prompt(9)
    row = by_hand(target, ids)[-1]
    job = Job(ids, 1, temperature=0.7, top_k=12, min_p=0.1, logprobs=20, logprobs_mode="processed")
    order = np.argsort(-row, kind="stable")[:12]
    weights = np.exp((row[order] - row[order[0]]) / 0.7)
    left = weights >= 0.1
    expected = np.log(weights[left] / weights[left].sum())
    ((token, logprob, top),) = target.plain(job).logprobs
    assert [one for one, _ in top] == order[left].tolist()
    assert len(top) < 12
    assert np.allclose([float.fromhex(p) for _, p in top], expected, atol=1e-6)
    assert dict(top)[token] == logprob
    assert abs(sum(math.exp(float.fromhex(p)) for _, p in top) - 1.0) < 1e-12
    greedy = replace(job, temperature=0.0)
    ((_, logprob, top),) = target.plain(greedy).logprobs
    assert len(top) == 20
    assert (logprob, top) == target.plain(replace(greedy, logprobs_mode="raw")).logprobs[0][1:]


@pytest.mark.parametrize("count", [0, 1, 5, MAX_LOGPROBS])
def test_v41_v44_one_entry_for_each_token_and_exactly_n_alternatives(count: int) -> None:
    """V41 and V44: steps that bring several tokens; every token has its entry with itself and
    exactly N alternatives; 0 is the chosen one alone. Streamed in parts the entries join to the
    whole."""
    target = rig()
    job = Job(prompt(12), 24, 0.9, logprobs=count)
    known = target.plain(job).token_ids
    script = chain(lambda _: known, K, right_until(3), target.vocab_size)
    params = SamplingParams(temperature=0.9, seed=7, max_tokens=24, logprobs=count)
    llm = target.door(target.engine(script=script, k=K))
    (whole,) = llm.generate([list(job.prompt)], params)[0].outputs
    assert tuple(whole.token_ids) == known
    assert whole.logprobs is not None
    assert len(whole.logprobs) == len(whole.token_ids) == len(whole.text_offsets) == 24
    for token, row in zip(whole.token_ids, whole.logprobs, strict=True):
        listed = [entry for entry in row.values() if entry.rank is not None]
        assert [entry.rank for entry in listed] == list(range(1, count + 1))
        assert sorted(listed, key=lambda entry: -entry.logprob) == listed
        assert len(row) == count + (row[token].rank is None)
    deltas = [delta for delta, _ in llm.deltas(list(job.prompt), params)]
    assert max(len(delta.token_ids) for delta in deltas) == 4  # three drafts and the bonus
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert [row for delta in deltas for row in delta.logprobs or ()] == whole.logprobs
    assert [at for delta in deltas for at in delta.text_offsets] == whole.text_offsets
    assert "".join(delta.text for delta in deltas) == whole.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("logprobs", value) for value in (-1, MAX_LOGPROBS + 1, 10**6, 1.5, True)),
        *(("prompt_logprobs", value) for value in (-1, MAX_LOGPROBS + 1, 10**6, "all")),
        *(("logprobs_mode", value) for value in ("logits", "RAW")),
    ],
)
def test_v44_more_than_the_published_limit_is_refused_by_name(field: str, value: Any) -> None:
    """V44: before anything is computed, and the message says what the limit is."""
    with pytest.raises(RequestError, match=field) as found:
        SamplingParams(**{field: value})
    if value in (-1, MAX_LOGPROBS + 1, 10**6):
        assert str(MAX_LOGPROBS) in str(found.value)


def test_v43_fewer_candidates_than_asked_for_are_valid_numbers() -> None:
    """V43: 20 asked for, three ids left: raw lists 20 numbers of the model's own, processed three;
    a token that the model itself rules out is -9999.0 in JSON, and nothing is NaN or infinite."""
    target, ids = rig(), list(prompt(8))
    job = Job(tuple(ids), 6, 1.0, logprobs=20, grammar=Only(5, 80, 400))
    llm = target.door(target.engine("ngram", k=K))
    for mode, listed in (("raw", 20), ("processed", 3)):
        result = target.plain(replace(job, logprobs_mode=mode))
        target.exact([replace(job, logprobs_mode=mode)], method="ngram", k=K)
        assert {len(top) for _, _, top in result.logprobs} == {listed}
        assert all(math.isfinite(float.fromhex(p)) for _, p, _ in result.logprobs)

    class Masking:
        vocab_size, kernels = target.vocab_size, target.model.kernels

        def forward(self, batch: Any, kv: Any) -> np.ndarray:
            logits = target.model.forward(batch, kv).copy()
            logits[:, 7:] = -np.inf
            return logits

    llm = target.door(target.engine("ngram", k=K, model=Masking()))
    params = SamplingParams(temperature=1.0, max_tokens=6, logprobs=20, prompt_logprobs=20, seed=1)
    (result,) = llm.generate([ids], params)
    (output,) = result.outputs
    assert output.logprobs is not None
    assert {len(row) for row in output.logprobs} == {7}
    text = json.dumps(
        output_json(0, result, output), allow_nan=False
    )  # strict: no NaN, no Infinity
    prompt_rows = json.loads(text)["prompt_logprobs"]
    assert [row["logprob"] == FLOOR for row in prompt_rows[1:]] == [token >= 7 for token in ids[1:]]
    whole = aligned(result, output, target.tokenizer, echo=True)
    numbers = [p for p in whole.token_logprobs if p is not None]
    numbers += [p for row in whole.top_logprobs for p in (row or {}).values()]
    assert all(math.isfinite(p) for p in numbers)
    assert FLOOR in numbers


PARROT = (240, 159, 166, 156)  # the bytes of U+1F99C, one id each


def test_v42_text_offsets_of_multi_byte_text() -> None:
    """V42: a parrot of four tokens in the output, one begun in the prompt, two in a row, one cut
    in the middle: offsets in characters, never falling, inside the text, with and without echo."""
    target = rig()
    before = tuple(b"Say: ")
    spelt = {
        "one": (before, (*PARROT, *b" ok"), "\U0001f99c ok", [0, 0, 0, 0, 1, 2, 3]),
        "two": (before, (*PARROT, *PARROT, 33), "\U0001f99c\U0001f99c!", [0] * 4 + [1] * 4 + [2]),
        "begun": ((*before, 240, 159), (166, 156, 33), "\U0001f99c!", [0, 0, 1]),
        "cut": (before, (*b"a", *PARROT[:3]), "a\ufffd", [0, 1, 1, 1]),
    }
    for name, (ids, output, text, offsets) in spelt.items():
        job = Job(ids, len(output), logprobs=0, grammar=Spelling(*output))
        engine = target.engine("ngram", k=K)
        llm = target.door(engine)
        add = engine.add
        engine.add = lambda request, job=job, add=add: add(replace(request, grammar=job.grammar))  # type: ignore[method-assign]
        params = SamplingParams(
            temperature=0.0, max_tokens=len(output), logprobs=0, prompt_logprobs=0
        )
        (result,) = llm.generate([list(ids)], params)
        (made,) = result.outputs
        assert (tuple(made.token_ids), made.text, made.text_offsets) == (output, text, offsets), (
            name
        )
        alone = aligned(result, made, target.tokenizer)
        assert alone.text == text
        assert alone.text_offsets == [5 + offset for offset in offsets]
        echoed = aligned(result, made, target.tokenizer, echo=True)
        assert echoed.text == "Say: " + text == target.tokenizer.decode([*ids, *output])
        assert echoed.text_offsets == [0, 1, 2, 3, 4, 5, 5][: len(ids)] + alone.text_offsets
        assert echoed.text_offsets == sorted(echoed.text_offsets)
        assert all(0 <= offset <= len(echoed.text) for offset in echoed.text_offsets)
        assert echoed.token_ids == [*ids, *output]
        assert echoed.tokens[0] == "S"
        assert r"bytes:\xf0" in echoed.tokens


LENGTHS = (1, 2, 5, 16, 17, 150)


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_v45_prompt_logprobs_are_those_of_the_rows_before(numerics: str) -> None:
    """V45: prompts of one token to several chunks: P - 1 entries, by hand and, in float32, those of
    transformers; their bits do not move with chunks, cache hits, drafts, neighbours."""
    target = rig(numerics)
    jobs = [Job(prompt(n), 4, logprobs=1, prompt_logprobs=3) for n in LENGTHS]
    for job in jobs:
        plain = target.plain(job)
        assert [token for token, _, _ in plain.prompt_logprobs] == list(job.prompt[1:])
        assert plain.token_ids == target.plain(replace(job, prompt_logprobs=None)).token_ids
    longest = jobs[-1]
    rows = by_hand(target, longest.prompt)
    for row, (token, logprob, top) in zip(
        rows, target.plain(longest).prompt_logprobs, strict=False
    ):
        assert abs(float.fromhex(logprob) - row[token]) < 1e-5
        assert len(top) == 3
        assert abs(float.fromhex(top[0][1]) - row.max()) < 1e-5
    for rows_of_a_pass in (7, 40, 256):
        target.exact(jobs, method="ngram", k=K, rows=rows_of_a_pass, block=4)
    engine = target.engine("ngram", k=K, block=4)
    warm = [replace(job, prompt_logprobs=None) for job in jobs]
    drive(engine, [(0, place, job) for place, job in enumerate(warm)])
    again = drive(engine, [(place, place, job) for place, job in enumerate(jobs)])
    target.same(jobs, again, "warm cache")
    hits = engine.parts.kv.prefix_hits
    after = drive(engine, [(0, place, job) for place, job in enumerate(warm)])
    target.same(warm, after, "after")
    assert engine.parts.kv.prefix_hits > hits  # their pages serve those who need no rows


def test_v45_echo_compares_with_transformers() -> None:
    """V45: 5 tokens, echo, max_tokens 0 and 1: 5 (+1) entries, the first none, the others
    log-softmax shifted by one; the text starts with the prompt. With a cache hit on the same prompt
    and speculation on, twice."""
    target = rig()
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ids = list(b"Hello")
    llm = target.door(target.engine("ngram", k=K, block=1))
    seen = []
    for count in (1, 0, 1, 0):
        params = SamplingParams(
            temperature=0.0, max_tokens=count, logprobs=1, prompt_logprobs=1, seed=1
        )
        (result,) = llm.generate(["Hello"], params)
        (output,) = result.outputs
        assert (len(output.token_ids), output.finish_reason) == (count, "length")
        found = aligned(result, output, target.tokenizer, echo=True)
        assert found.text.startswith("Hello")
        assert found.token_ids[:5] == ids
        assert len(found.token_logprobs) == len(found.top_logprobs) == 5 + count
        assert found.token_logprobs[0] is None
        assert found.top_logprobs[0] is None
        assert all(row is not None and 1 <= len(row) <= 2 for row in found.top_logprobs[1:])
        seen.append(found)
    assert seen[0] == seen[2]
    assert seen[1] == seen[3]
    assert seen[0].token_logprobs[:5] == seen[1].token_logprobs
    model = transformers.AutoModelForCausalLM.from_pretrained(
        target.checkpoint.path, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits = model(torch.tensor([seen[0].token_ids])).logits[0].double()
    rows = logits[:-1, : target.vocab_size].log_softmax(-1)
    expected = rows[torch.arange(5), torch.tensor(seen[0].token_ids[1:])].numpy()
    assert np.abs(np.array(seen[0].token_logprobs[1:], dtype=float) - expected).max() < 1e-4


def test_v45_no_pass_scores_more_rows_than_fit_in_bounded_memory() -> None:
    """V45: passes of up to 512 rows; three long prompts at once, preempted for want of room: no
    pass asks the LM head for more than READ_ROWS prompt rows, and no row is scored twice."""
    target = rig()
    jobs = [Job(prompt(200, n), 6, 1.0, seed=n, prompt_logprobs=2) for n in range(3)]
    jobs.append(replace(jobs[0], prompt_logprobs=None))
    widest, scored = 0, 0

    class Watching:
        vocab_size, kernels = target.vocab_size, target.model.kernels

        def forward(self, batch: Any, kv: Any) -> np.ndarray:
            nonlocal widest, scored
            certain = sum(
                sum(segment.cached + row < 199 for row in segment.logit_rows)
                for segment in batch.segments
            )
            widest, scored = max(widest, certain), scored + certain
            return target.model.forward(batch, kv)

    engine = target.engine("ngram", k=K, rows=512, block=4, slots=4 + 460, model=Watching())
    results = drive(engine, [(0, place, job) for place, job in enumerate(jobs)])
    target.same(jobs, results)
    assert widest == READ_ROWS
    assert scored == 3 * 199


def test_a_drafter_reads_the_same_rows_beside_a_scored_prompt() -> None:
    """recycle wants the prompt's last 20 rows: it gets these, whether or not others are read."""
    target = rig()
    ids = prompt(90)
    seen: list[dict[int, bytes]] = []
    for scored in (None, 2):
        rows: dict[int, bytes] = {}
        engine = target.engine("recycle", k=K, rows=32, options={"prompt_rows": 20})
        reader: Any = engine.parts.drafter
        read = reader.read_prompt

        def reading(sequence: Any, start: int, logits: np.ndarray, rows=rows, read=read) -> None:
            rows.update((start + n, row.tobytes()) for n, row in enumerate(logits))
            read(sequence, start, logits)

        reader.read_prompt = reading
        jobs = [Job(ids, 8, prompt_logprobs=scored), Job(prompt(3, 1), 8, prompt_logprobs=scored)]
        target.same(jobs, drive(engine, [(n * 9, n, job) for n, job in enumerate(jobs)]))
        assert set(rows) == {0, 1, *range(69, 89)}
        seen.append(rows)
        engine = target.engine("recycle", k=K, batch=1, prefix=False, options={"prompt_rows": 20})
        long, urgent = replace(jobs[0], priority=1, max_tokens=12), jobs[1]
        results = drive(engine, [(0, 0, long), (4, 1, urgent)])  # read again, scored once
        target.same([long, urgent], results)
        assert engine.parts.scheduler.num_preemptions == 1
    assert seen[0] == seen[1]


def test_prompt_logprobs_survive_preemption() -> None:
    """A more urgent request takes the seat while the prompt is being read: what was scored is kept,
    the rest is read, the bits are the same."""
    target = rig()
    job = Job(prompt(150), 8, 1.0, prompt_logprobs=2, priority=1)
    urgent = Job(prompt(20, 1), 6, prompt_logprobs=0)
    for step in range(1, 8):
        engine = target.engine("ngram", k=K, batch=1, rows=40, block=4)
        results = drive(engine, [(0, 0, job), (step, 1, urgent)])
        target.same([job, urgent], results, f"step {step}")
        assert engine.parts.scheduler.num_preemptions == 1
        engine.parts.kv.check()


def test_a_bad_row_inside_a_prompt_ends_its_own_request() -> None:
    """NaN at one prompt row that is scored: an error that says where; neighbours and pages are as
    if it had not been there."""
    target = rig()

    class Poisoned:
        vocab_size, kernels = target.vocab_size, target.model.kernels

        def forward(self, batch: Any, kv: Any) -> np.ndarray:
            logits = target.model.forward(batch, kv).copy()
            for place, row in enumerate(batch.logit_rows.tolist()):
                if batch.token_ids[row] == 250:
                    logits[place, 3] = np.nan
            return logits

    good = Job(prompt(30, 1, 240), 6, prompt_logprobs=1)
    bad = Job((*prompt(9, 2, 240), 250, *prompt(9, 3, 240)), 6, prompt_logprobs=1)
    unread = replace(bad, prompt_logprobs=None)
    engine = target.engine("ngram", k=K, block=4, model=Poisoned())
    results = drive(engine, [(0, n, job) for n, job in enumerate((good, bad, unread))])
    equal(target.plain(good), results[0])
    equal(target.plain(unread), results[2])
    assert results[1].finish_reason == "error"
    assert isinstance(results[1].sequence.error, NonFiniteLogits)
    assert "inside the prompt" in str(results[1].sequence.error)
    engine.parts.kv.check()
    assert engine.parts.kv.num_free_tokens == engine.parts.kv.capacity


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=slow) for n in range(1, 40))])
def test_random_requests_for_logprobs_in_random_engines(seed: int) -> None:
    """Modes, counts, rules, scored prompts with common beginnings, salts and priorities, drawn; on
    engines with little room, small chunks and few seats: every bit is that of plain decoding."""
    target, chance = rig(), random.Random(seed)
    trunks = [prompt(40, n) for n in range(2)]
    damping = Damping()
    jobs = [
        Job(
            (*chance.choice(trunks)[: chance.randrange(1, 40)], *prompt(chance.randrange(1, 6), n)),
            chance.randrange(1, 14),
            chance.choice((0.0, 0.7, 1.3)),
            seed=chance.randrange(3),
            top_k=chance.choice((0, 0, 9)),
            top_p=chance.choice((1.0, 1.0, 0.8)),
            logprobs=chance.choice((None, 0, 3, MAX_LOGPROBS)),
            logprobs_mode=chance.choice(("raw", "processed")),
            prompt_logprobs=chance.choice((None, None, 0, 4)),
            grammar=chance.choice((None, damping)),
            priority=chance.choice((0, 0, 1)),
            salt=chance.choice(("", "", "x")),
        )
        for n in range(10)
    ]
    longest = max(job.positions for job in jobs)
    block = chance.choice((1, 4, 16))
    slots = block * (3 + -(-chance.choice((longest, 2 * longest, 1000)) // block))
    engine = target.engine(
        chance.choice(("none", "ngram", "siblings", "suffix", "recycle")),
        k=chance.choice((1, 4, 15)),
        tree=chance.choice(("chain", "best_first")),
        batch=chance.choice((1, 3, 16)),
        rows=chance.choice((6, 24, 256)),
        store=chance.choice(("paged", "paged", "dense")),
        block=block,
        slots=slots,
        prefix=chance.random() < 0.8,
    )
    results = drive(engine, [(chance.randrange(12), n, job) for n, job in enumerate(jobs)])
    target.same(jobs, results, f"seed {seed}")
    engine.parts.kv.check()
    assert engine.parts.kv.num_free_tokens == engine.parts.kv.capacity


@slow
def test_v39_v45_on_a_real_model() -> None:
    """V39 and V45: SmolLM2, prompts of several chunks, rules and modes mixed in a batch."""
    target = smollm2()
    texts = apparatus.spec_bench_prompts(6)
    jobs = [
        Job(
            tuple(target.tokenizer.encode(text))[:200],
            24,
            float(n % 2),
            logprobs=5,
            logprobs_mode=("raw", "processed")[n % 2],
            prompt_logprobs=(None, 2)[n < 4],
            grammar=(None, Damping())[n % 3 == 0],
        )
        for n, text in enumerate(texts)
    ]
    target.exact(jobs, method="ngram", k=8, rows=96)
