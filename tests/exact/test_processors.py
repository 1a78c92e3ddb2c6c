"""Processors with speculation on: each alone and all at once, whatever drafts, = plain decoding.

Right drafts show state that is advanced too late, wrong ones state that keeps what was rejected;
preemption and chunks show state that is recomputed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Job, plain_with, prompt, rig, smollm2

import apparatus
from foreword.build import make_sampler
from foreword.draft.scripted import chain, right_until
from foreword.errors import RequestError
from foreword.sample.sampler import GumbelSampler
from foreword.types import Choice, Request, SamplingParams

ENDS = frozenset(range(0, 512, 9))
KINDS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "bias": {"logit_bias": tuple((token, 2.5) for token in range(0, 512, 5))},
    "min-tokens": {"min_tokens": 12},
    "bad-words": {},
    "allowed": {"allowed_token_ids": tuple(range(0, 512, 3))},
    "dry": {  # few ids, or nothing would repeat itself
        "dry_multiplier": 3.0,
        "dry_allowed_length": 1,
        "allowed_token_ids": tuple(range(12)),
    },
    "typical": {"typical_p": 0.6},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.01},
    "mirostat": {"mirostat_mode": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.5},
}


def rolled(ids: list[int], row: np.ndarray) -> np.ndarray:
    return np.roll(row, len(ids) + ids[-1])


KINDS["user"] = {"logits_processors": (rolled,)}
KINDS["all"] = {
    name: value
    for kind in ("repetition", "presence", "frequency", "bias", "min-tokens", "dry", "typical",
                 "xtc", "user")
    for name, value in KINDS[kind].items()
}  # fmt: skip


def job(kind: str, number: int = 0, **fields: Any) -> Job:
    cold = fields.setdefault("temperature", 0.9)
    words = ((5,), (17, 200), tuple(range(3))) if kind in ("bad-words", "all") else ()
    if words:  # every second id, and pairs that would follow each other
        words += (*((token,) for token in range(1, 512, 2)), (10, 20), (20, 10))
    return Job(
        prompt(12, 3 - number),
        24,
        ends=ENDS if kind in ("min-tokens", "all") else frozenset(),
        more=tuple(KINDS[kind].items()),
        bad_words=words,
        breakers=frozenset({7, 11}),
        **{"top_p": 0.95 if kind not in ("mirostat",) and cold else 1.0, **fields},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_processor_with_every_kind_of_draft(kind: str) -> None:
    """A greedy and a sampled job together: noisy drafts in trees with too little memory, drafts
    that go wrong at depth 2, right ones, and the compiled chain; all the text of plain decoding."""
    target, noisy = rig(), rig(noise=apparatus.NOISE)
    jobs = [job(kind, 0, temperature=0.0), job(kind, 1, temperature=0.9)]
    plain = [plain_with(target, one) for one in jobs]  # `min_tokens` makes an EOS more than a cut
    left = jobs[0].more[1:] if kind == "dry" else ()
    bare = [target.plain(replace(one, more=left, bad_words=())) for one in jobs]
    filtering = kind in ("typical", "xtc", "mirostat")  # greedy choice knows no filter
    for expected, other in list(zip(plain, bare, strict=True))[filtering:]:
        assert expected.token_ids != other.token_ids

    def known(sequence: Any) -> Any:
        return plain[int(sequence.id)].token_ids

    for setting in (
        {"draft": noisy, "k": 8, "tree": "best_first", "slots": 64},
        {"script": chain(known, 5, right_until(2), 470), "k": 5, "rows": 16},
        {"script": chain(known, 8, right_until(9), 470), "k": 8},
        {"draft": noisy, "k": 4, "sampler": make_sampler(target.model)},
    ):
        results = target.run(jobs, **setting)
        for expected, got in zip(plain, results, strict=True):
            assert expected == got, (kind, setting)


@pytest.mark.parametrize("penalty", [-2.0, -0.5, 0.5, 2.0])
def test_v31_penalties_act_inside_a_block(penalty: float) -> None:
    """V31: a prompt that loops, greedy: presence and frequency penalties change what comes, as they
    do without drafts; the drafts of one block see each other."""
    target = rig()
    loop = tuple([65, 66] * 8)
    kinds = [(("frequency_penalty", penalty),), (("presence_penalty", penalty),)]
    jobs = [Job(loop, 32, more=more) for more in kinds]
    for draft in (target, rig(noise=apparatus.NOISE)):
        target.exact(jobs, draft=draft, k=4)
    opposite = [(("frequency_penalty", -penalty),)]
    texts = {target.plain(Job(loop, 32, more=more)).token_ids for more in (kinds[0], *opposite)}
    assert len(texts) == 2


@pytest.mark.parametrize("penalty", [0.8, 1.2, 2.0])
def test_v31_repetition_penalties(penalty: float) -> None:
    """V31: the same for the repetition penalty."""
    target = rig()
    loop = tuple([65, 66] * 8)
    one = Job(loop, 32, more=(("repetition_penalty", penalty),))
    for draft in (target, rig(noise=apparatus.NOISE)):
        target.exact([one, Job(loop, 32)], draft=draft, k=4)
    assert target.plain(one).token_ids != target.plain(Job(loop, 32)).token_ids


@pytest.mark.slow
def test_v31_penalties_on_smollm2() -> None:
    """V31: on SmolLM2 with each penalty, K = 4, its own drafts."""
    target = smollm2()
    text = tuple(target.tokenizer.encode("cat cat cat cat cat cat"))
    grid = [("frequency_penalty", value) for value in (-2.0, -0.5, 0.5, 2.0)]
    grid += [("presence_penalty", value) for value in (-2.0, -0.5, 0.5, 2.0)]
    grid += [("repetition_penalty", value) for value in (0.8, 1.2, 2.0)]
    jobs = [Job(text, 24, more=(pair,)) for pair in grid]
    target.exact(jobs, draft=target, k=4)
    target.exact(jobs, method="suffix", k=4)
    assert target.plain(jobs[0]).token_ids != target.plain(jobs[3]).token_ids


def test_v32_rejected_drafts_leave_no_trace() -> None:
    """V32: drafts that are all wrong, K from 1 to 8, each penalty: the text of plain decoding."""
    target = rig()
    for kind in ("presence", "frequency", "repetition", "dry"):
        jobs = [job(kind, number, temperature=0.0) for number in range(2)]
        wrong = chain(target.answers(jobs), 8, right_until(0), 470)
        for k in (1, 3, 8):
            results = target.exact(jobs, script=wrong, k=k)
            assert all(result.stats.num_accepted == 0 for result in results)


def test_v07_bias_and_masks_act_at_every_position() -> None:
    """V07: bias -100 on the token that greedy decoding would emit, wherever it is: never again,
    at accepted nodes and at corrected ones."""
    target = rig()
    free = target.plain(Job(prompt(8), 24)).token_ids
    for token in sorted(set(free))[::4]:
        one = Job(prompt(8), 24, more=(("logit_bias", ((token, -100.0),)),))
        for setting in (
            {"draft": target},
            {"script": chain(lambda _: free, 4, right_until(9), 470)},
        ):
            (result,) = target.exact([one], k=4, **setting)
            assert token not in result.token_ids
    assert (
        target.exact([Job(prompt(8), 24, temperature=1.0, top_k=1)], draft=target, k=4)[0].token_ids
        == free
    )


def test_v08_filters_hold_at_accepted_and_corrected_positions() -> None:
    """V08: every token that comes, accepted or corrected, is one its filters keep at its row; the
    same with min-p, and with a bias that makes another set."""
    target = rig()
    kinds = [{"min_p": 0.3}, {"min_p": 0.1, "more": (("logit_bias", tuple(
        (token, 4.0) for token in range(0, 470, 3))),)}]  # fmt: skip
    for fields in kinds:
        jobs = [Job(prompt(6 + n, n), 40, temperature=1.0, seed=n, **fields) for n in range(6)]
        accepted = corrected = 0
        for wrong in (9, 1):
            script = chain(target.answers(jobs), 4, right_until(wrong), 470)
            seen = Watched()
            results = target.run(jobs, script=script, k=4, sampler=seen)
            target.same(jobs, results)
            assert seen.outside == 0
            assert seen.choices == 6 * 40
            accepted += sum(result.stats.num_accepted for result in results)
            corrected += sum(result.stats.num_steps for result in results)
        assert accepted > 200
        assert corrected > 100


class Watched(GumbelSampler):
    """The specification's sampler; counts choices whose probability min-p forbids, by numpy."""

    def __init__(self) -> None:
        self.choices = self.outside = 0

    def choose(self, row: np.ndarray, params: Any, state: Any, position: int) -> Choice:
        choice = super().choose(row, params, state, position)
        logits = row.astype(np.float64)
        for token, bias in (params.logit_bias or {}).items():
            logits[token] += bias
        likely = np.exp(logits - logits.max())
        self.choices += 1
        self.outside += bool(likely[choice.token_id] < params.min_p * (1.0 - 1e-6))
        return choice


@pytest.mark.parametrize("end", [0, 5, 9])
def test_v26_no_end_before_min_tokens(end: int) -> None:
    """V26: an id that greedy decoding emits first at step j is an EOS; with min_tokens m it cannot
    come before m tokens, and ends the text at once from index m on; whatever is drafted."""
    target = rig()
    free = target.plain(Job(prompt(12, 3), 40)).token_ids  # distinct up to step 10
    token = free[end]
    first = free.index(token)
    for least in (0, 1, 4, 5, 6, 9, 10, 11):
        one = Job(
            prompt(12, 3),
            40,
            ends=frozenset({token}),
            more=(("min_tokens", least), ("stop_token_ids", (free[0],) if end else ())),
        )
        plain = plain_with(target, one)
        ending = {token, free[0]} if end else {token}
        assert not ending & set(plain.token_ids[:least])
        assert not ending & set(plain.token_ids[least:-1])
        if least == 0:
            assert len(plain.token_ids) == (1 if end else first + 1)
        for setting in (
            {"draft": target},
            {"script": chain(lambda _: free, 4, right_until(9), 470)},
        ):
            (got,) = target.run([one], k=4, **setting)
            assert got == plain, (least, setting)
    ignoring = replace(one, ends=frozenset(), more=(("min_tokens", 5),))
    assert target.plain(ignoring).token_ids == free


def test_v33_repetition_penalty_counts_the_prompt() -> None:
    """V33: logits [2, -2, 1, .5], seen {0, 1}, penalty 2: [1, -4, 1, .5]; 0 is refused; presence
    and frequency look at the output alone."""
    row = np.array([2.0, -2.0, 1.0, 0.5], dtype=np.float32)
    for sampler in (GumbelSampler(), make_sampler(rig().model)):
        for fields, want in (
            ({"repetition_penalty": 2.0}, [1.0, -4.0, 1.0, 0.5]),
            ({"presence_penalty": 2.0, "frequency_penalty": 1.0}, [2.0, -2.0, 1.0, 0.5]),
        ):
            params = SamplingParams(temperature=0.0, **fields).resolve({})
            state = sampler.begin(Request("", (0, 1, 0), params, 1))
            assert sampler.open_row(row, params, state, 0).tolist() == want
        sampler.advance(row, state, 3)
        sampler.advance(row, state, 3)
        assert sampler.open_row(row, params, state, 2).tolist() == [2.0, -2.0, 1.0, -3.5]
    for bad in (0.0, -1.0, 1e300, float("nan"), True):
        with pytest.raises(RequestError, match="repetition_penalty"):
            SamplingParams(repetition_penalty=bad)
    assert SamplingParams(repetition_penalty=1e9).repetition_penalty == 1e9


def test_v34_edge_values_of_top_p_and_top_k() -> None:
    """V34: p = (.5, .25, .25) at top_p .5 keeps token 0 alone; temperature comes before top_p;
    top_p 0 is refused, 1 keeps all; top_k -1, 0 and above the vocabulary are off."""
    for sampler in (GumbelSampler(), make_sampler(rig().model)):

        def kept(row: Any, sampler: Any = sampler, **fields: Any) -> list[int]:
            params = SamplingParams(**{"temperature": 1.0, **fields}).resolve({})
            state = sampler.begin(Request("", (), params, 1))
            logits = np.array(row, dtype=np.float32)
            open_row = sampler.open_row(logits, params, state, 0)
            return np.flatnonzero(open_row > -np.inf).tolist()

        halves = np.log([0.5, 0.25, 0.25])
        assert kept(halves - halves[0], top_p=0.5) == [0]
        assert kept([3.0, 2.0, 1.0], temperature=0.5, top_p=0.8) == [0]
        assert kept([3.0, 2.0, 1.0], temperature=1.0, top_p=0.8) == [0, 1]
        assert kept([3.0, 2.0, 1.0], top_p=1.0) == [0, 1, 2]
        for top_k in (-1, 0, 3, 4, 9_999_999):
            assert kept([3.0, 2.0, 1.0], top_k=top_k) == [0, 1, 2]
        assert kept([3.0, 2.0, 1.0], top_k=2, top_p=0.7) == [0]
    with pytest.raises(RequestError, match="top_p"):
        SamplingParams(top_p=0.0)
