"""Structured output with speculation: the same tokens as without, whatever drafts and shares.

Cases V46, V47 and V48, and how a form meets ends, stops, limits and errors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from harness import Job, Result, Rig, drive, equal, plain_with, prompt, rig

from foreword.build import compiled_rows, make_sampler, names
from foreword.draft.scripted import chain, planting, right_until
from foreword.errors import NoTokenAllowed
from foreword.params import StructuredOutput
from foreword.sample.form_rule import request_form
from foreword.text.forms import Forms
from foreword.types import Request, SamplingParams

slow = pytest.mark.slow
EOS = 256
SCHEMA = StructuredOutput(
    json={
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "colour": {"enum": ["red", "green"]},
            "numbers": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0, "maximum": 99},
                "maxItems": 2,
            },
        },
        "required": ["name", "colour", "numbers"],
        "additionalProperties": False,
    }
)
CHOICE = StructuredOutput(choice=["the red cat", "the green door", "yes"])
REGEX = StructuredOutput(regex="[a-c]{3,9}(-[0-9]{2}){1,3}")
LARK = StructuredOutput(grammar='start: "(" (item ",")* item ")"\nitem: /[a-z]{1,4}/ | start')


@cache
def forms(of: Rig) -> Forms:
    return Forms(of.tokenizer, of.vocab_size, {EOS})


@dataclass(frozen=True)
class FormJob(Job):
    """A job whose text must have a form."""

    form: StructuredOutput | None = None
    stops: tuple[int, ...] = ()
    ignoring: bool = False

    def request(self, name: str) -> Request:
        request = super().request(name)
        params = replace(
            request.params,
            structured_outputs=self.form,
            stop_token_ids=self.stops,
            ignore_eos=self.ignoring,
        )
        grammar = request_form(forms(rig()), params, frozenset({EOS}))
        ends = frozenset() if self.ignoring else frozenset({EOS})
        return replace(request, params=params, eos_ids=ends, grammar=grammar)


JOBS = [
    FormJob(prompt(6), 60, form=SCHEMA),
    FormJob(prompt(9, 1), 60, temperature=1.0, form=SCHEMA),
    FormJob(prompt(7, 2), 30, temperature=0.8, top_p=0.9, form=CHOICE),
    FormJob(prompt(5, 3), 30, temperature=1.0, seed=5, form=REGEX),
    FormJob(prompt(8, 4), 30, temperature=1.0, min_p=0.05, form=LARK),
    FormJob(prompt(6, 5), 30, temperature=1.0),
    FormJob(prompt(6, 6), 40, temperature=1.0, form=CHOICE, ignoring=True),
]


@cache
def plain(job: FormJob) -> Result:
    """Alone, one token at a time."""
    return plain_with(rig(), job)


def same(jobs: list[FormJob], results: list[Result], note: object = "") -> None:
    for job, result in zip(jobs, results, strict=True):
        equal(plain(job), result, f"{note} {job}")


def text_of(result: Result) -> str:
    return rig().tokenizer.decode(result.token_ids)


def test_plain_decoding_keeps_to_the_form():
    schema, sampled, choice, regex, lark, free, ignoring = map(plain, JOBS)
    for result in (schema, sampled):
        if result.finish_reason == "stop":
            value = json.loads(text_of(result))
            assert list(value) == ["name", "colour", "numbers"]
    assert "stop" in (schema.finish_reason, sampled.finish_reason)
    assert text_of(choice) in CHOICE.choice
    assert choice.token_ids[-1] == EOS
    assert text_of(ignoring) in CHOICE.choice
    assert ignoring.finish_reason == "length"
    assert set(ignoring.token_ids[-10:]) == {EOS}
    assert set(text_of(regex)) <= set("abc-0123456789")
    assert text_of(lark).startswith("(")
    assert free.finish_reason is not None


DRAFTERS = [name for name in names("draft") if name not in ("none", "scripted")]
TREES = ["chain", "best_first", "goodput", "template", "bastion"]
GRID = [(drafter, TREES[place % len(TREES)]) for place, drafter in enumerate(DRAFTERS)]
REST = [(drafter, tree) for drafter in DRAFTERS for tree in TREES if (drafter, tree) not in GRID]


@pytest.mark.parametrize(
    ("drafter", "tree"), [*GRID, *(pytest.param(*pair, marks=slow) for pair in REST)]
)
def test_a_form_with_any_drafter_and_tree(drafter, tree, compiled_sampler):
    """Batches of seven and of one; the compiled sampler takes the second."""
    target, k = rig(), 8
    setting: dict[str, Any] = {"method": drafter, "tree": tree, "k": k}
    results = target.run(JOBS, **setting, batch=4)
    same(JOBS, results, setting)
    drafted = sum(result.stats.drafted_by.get("grammar", 0) for result in results)
    assert drafted > 0
    alone = target.run(JOBS[:1], **setting, batch=1, sampler=compiled_sampler)
    same(JOBS[:1], alone, setting)


@pytest.fixture(scope="module")
def compiled_sampler():
    return make_sampler(rig().model)


def test_the_compiled_sampler_follows_forms_too(compiled_sampler):
    if compiled_rows(rig().model) is None:
        pytest.skip("the extension is not built")
    same(JOBS, rig().run(JOBS, method="ngram", sampler=compiled_sampler))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("illegal", [9, 271, EOS], ids=["tab", "special", "end"])
def test_v46_illegal_tokens_in_drafts(illegal, temperature):
    """V46: an illegal token at each index of otherwise right drafts is dropped before the tree is
    built, with what is below it; the state of the form is that of the accepted text."""
    target, k = rig(), 4
    job = FormJob(prompt(6), 40, temperature=temperature, form=SCHEMA)
    known = plain(job).token_ids
    assert illegal == EOS or illegal not in known

    def answers(sequence) -> tuple[int, ...]:
        return (*known, *[0] * k)

    for index in range(k):
        right = chain(answers, k, right_until(k), target.vocab_size)
        (result,) = target.run([job], script=planting(right, index, illegal), k=k)
        equal(plain(job), result, f"index {index}")
        drafted = result.stats.drafted_by
        assert drafted.get("scripted", 0) <= index * result.stats.num_steps + 1


def test_v47_forms_through_preemption():
    """V47: memory for one request and a half, three requests with a schema: each is sent back and
    resumes; drafts end, the form goes on where it was."""
    target = rig()
    jobs = [FormJob(prompt(20, n), 60, temperature=1.0, seed=n, form=SCHEMA) for n in range(3)]
    engine = target.engine("ngram", k=4, slots=136, block=4, prefix=False)
    results = drive(engine, [(0, place, job) for place, job in enumerate(jobs)])
    same(jobs, results)
    assert engine.parts.scheduler.num_preemptions > 0
    engine.parts.kv.check()


class LikesBlanks:
    """The target, which would always rather write blanks."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.vocab_size = model.vocab_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: Any, kv: Any) -> np.ndarray:
        rows = self._model.forward(batch, kv).copy()
        rows[:, [9, 10, 13, 32]] += 40.0
        return rows


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v48_copied_templates_and_blanks_without_end(temperature):
    """V48: prompt lookup over a prompt that holds the tool's own template, and a model that likes
    blanks: as without drafts, no run of blanks without end, and max_tokens is the limit."""
    target = rig()
    template = json.dumps({"name": "x", "colour": "red", "numbers": [1, 2]}) + "\n\n\n\n   "
    job = FormJob(tuple(template.encode() * 2), 150, temperature=temperature, form=SCHEMA)
    likes = LikesBlanks(target.model)
    before = plain_with(target, job, model=likes)
    (result,) = target.run([job], method="ngram", options={"prompt_lookup_min": 2}, model=likes)
    equal(before, result)
    text = text_of(result)
    outside = text.split('"')[::2]  # between strings
    assert max(len(run) for part in outside for run in blanks(part)) <= 65
    assert result.finish_reason in ("stop", "length")
    if result.finish_reason == "length":
        assert len(result.token_ids) == 150
    (short,) = target.run([replace(job, max_tokens=20)], method="ngram", model=likes)
    assert short.finish_reason == "length"
    assert short.token_ids == result.token_ids[:20]


def blanks(text: str) -> list[str]:
    found, run = [""], ""
    for character in text:
        run = run + character if character.isspace() else ""
        found.append(run)
    return found


# Forced tokens -------------------------------------------------------------------------------


def test_forced_tokens_are_all_accepted_and_save_passes():
    """A form that forces its text: one source, never wrong, whatever the drafter says."""
    target = rig()
    job = FormJob(prompt(6), 60, form=StructuredOutput(choice=["a long text that is forced"]))
    for tree in TREES:
        (result,) = target.run([job], method="ngram", tree=tree, k=8, batch=1)
        equal(plain(job), result)
        stats = result.stats
        assert stats.drafted_by["grammar"] == stats.accepted_by["grammar"]
        assert stats.num_steps <= (9 if tree == "template" else 4) < len(result.token_ids)


def test_plain_decoding_drafts_nothing():
    (result,) = rig().run([JOBS[2]], method="none")
    assert result.stats.num_drafted == 0
    assert result.sequence.scout is None


def test_scores_of_other_sequences_do_not_matter():
    """A batch in which one sequence has no form: its drafts stay as they are."""
    jobs = [JOBS[2], FormJob(tuple(b"abcabcabcabc"), 20)]
    results = rig().run(jobs, method="ngram")
    same(jobs, results)
    assert "grammar" not in results[1].stats.drafted_by


# Ends and errors -----------------------------------------------------------------------------


def test_stop_ids_of_text_end_a_form_in_the_middle():
    job = FormJob(prompt(6), 40, form=SCHEMA, stops=(ord(":"),))
    (result,) = rig().run([job], method="ngram")
    equal(plain(job), result)
    assert text_of(result).endswith(":")
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("method", ["none", "ngram", "model"])
def test_a_dead_end_is_the_error_of_one_request(method):
    """No token of the model continues the form: that request ends, the others are as they were."""
    dead = FormJob(prompt(5), 20, form=StructuredOutput(grammar='start: "ab" <[271]> "c"'))
    jobs = [JOBS[0], dead, JOBS[3]]
    results = rig().run(jobs, method=method, batch=3)
    equal(plain(JOBS[0]), results[0])
    equal(plain(JOBS[3]), results[2])
    assert results[1].finish_reason == "error"
    assert text_of(results[1]) == "ab"
    error = results[1].sequence.error
    assert isinstance(error, NoTokenAllowed)
    assert "grammar leaves no token at output position 2" in str(error)


def test_a_limit_strikes_at_the_same_token_with_and_without_drafts(monkeypatch):
    """Drafts look ahead with a matcher of their own: what they find out does not use up, or save,
    anything of the request's."""
    from foreword.text import forms as forms_module

    monkeypatch.setattr(forms_module, "MAX_STATES", 40)
    job = FormJob(prompt(6), 60, form=StructuredOutput(regex="(([a-z]{2,9}[0-9]{3,9}){2,9}x){1,9}"))
    before = plain_with(rig(), job)
    assert before.finish_reason == "error"
    assert 3 < len(before.token_ids) < 60
    for method in ("ngram", "auto", "model"):
        results = rig().run([job, job, job], method=method, batch=3)
        for result in results:
            equal(before, result, method)
            assert str(result.sequence.error) == str(before.sequence.error)


def test_the_door_compiles_and_the_receipt_tells():
    target = rig()
    params = SamplingParams(
        temperature=0, max_tokens=60, structured_outputs={"choice": ["red cat", "red dog"]}
    )
    llm = target.door(target.engine("ngram"))
    (output,) = llm.generate("colour?", params)[0].outputs
    assert output.text in ("red cat", "red dog")
    assert output.finish_reason == "stop"
    receipt = json.loads(json.dumps(output.receipt))
    assert receipt["sampling"]["structured_outputs"]["choice"] == ["red cat", "red dog"]
    assert receipt["form_compiler"].startswith("llguidance ")
    cut = llm.generate("colour?", replace(params, stop=["d "]))[0].outputs[0]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ("re", "stop", "d ")
    cut = llm.generate("colour?", replace(params, max_tokens=3))[0].outputs[0]
    assert (cut.text, cut.finish_reason) == ("red", "length")
    many = llm.generate("colour?", replace(params, n=3, temperature=1.0, seed=1))[0].outputs
    assert all(one.text in ("red cat", "red dog") for one in many)
