"""Jobs, engines of any setting around one loaded model, and a comparison without tolerance.

A `Rig` loads a checkpoint once. `plain(job)` is the reference of the cases: the job alone, no
drafts, no prefix cache, its prompt in one chunk. `run(jobs, ...)` runs jobs together under whatever
setting a test asks for, and `same(jobs, results)` compares token ids, logprobs (every bit) and
finish reasons. What was compared is counted in COMPARED, per test file; conftest.py prints it.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import apparatus
from foreword.build import assemble, check_sources, make_drafter, make_store, member
from foreword.config import SchedulerConfig, SpeculativeConfig, from_options
from foreword.draft._ahead import Ahead
from foreword.draft._context import DraftContext
from foreword.draft.scripted import Reference, Script
from foreword.engine import Engine
from foreword.llm import LLM
from foreword.protocols import Sampler
from foreword.sample.sampler import GumbelSampler
from foreword.types import Request, SamplingParams, Sequence, SpeculationStats

ROOMY = 4096  # KV positions when a test does not care


@dataclass
class Compared:
    """What a test file has compared so far."""

    outputs: int = 0
    positions: int = 0
    logprobs: int = 0


COMPARED: dict[str, Compared] = {}


@dataclass(frozen=True)
class Job:
    """One request, fully decided. `ends` are its EOS ids; `more`: further SamplingParams fields,
    as pairs, so that a job can be a key; `bad_words` and `breakers` as Request has them."""

    prompt: tuple[int, ...]
    max_tokens: int = 40
    temperature: float = 0.0
    seed: int = 7
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    ends: frozenset[int] = frozenset()
    logprobs: int | None = 2
    priority: int = 0
    salt: str = ""
    more: tuple[tuple[str, Any], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    breakers: frozenset[int] = frozenset()
    logprobs_mode: str = "raw"
    prompt_logprobs: int | None = None
    grammar: Any = None  # protocols.Grammar: a rule of its own
    adapter: str | None = None
    adapter_sha256: str = ""

    def request(self, name: str) -> Request:
        params = SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            logprobs=self.logprobs,
            max_tokens=self.max_tokens,
            logprobs_mode=self.logprobs_mode,
            prompt_logprobs=self.prompt_logprobs,
            **{name: dict(value) if name == "logit_bias" else value for name, value in self.more},
        ).resolve({})
        return Request(
            id=name,
            prompt_ids=self.prompt,
            params=params,
            seed=self.seed,
            eos_ids=self.ends,
            max_tokens=self.max_tokens,
            priority=self.priority,
            salt=self.salt,
            bad_words=self.bad_words,
            dry_breakers=self.breakers,
            grammar=self.grammar,
            adapter=self.adapter,
            adapter_sha256=self.adapter_sha256,
        )

    @property
    def positions(self) -> int:
        return len(self.prompt) + self.max_tokens


@dataclass(frozen=True)
class Result:
    """An output as the contract sees it; floats are kept as hexadecimal text, so equal is equal."""

    token_ids: tuple[int, ...]
    logprobs: tuple[Any, ...]
    finish_reason: str | None
    prompt_logprobs: tuple[Any, ...]
    stats: SpeculationStats = field(compare=False)
    sequence: Sequence = field(compare=False, repr=False)

    @staticmethod
    def of(sequence: Sequence) -> Result:
        entries, before = (
            tuple(
                (one.token_id, one.logprob.hex(), tuple((token, p.hex()) for token, p in one.top))
                for one in found
            )
            for found in (sequence.logprobs, sequence.prompt_logprobs)
        )
        ids = tuple(sequence.output_ids)
        return Result(ids, entries, sequence.finish_reason, before, sequence.stats, sequence)

    def cut(self, job: Job) -> Result:
        """This output, ended where `job` ends it: at its first EOS, or at its max_tokens."""
        found = (at for at, token in enumerate(self.token_ids) if token in job.ends)
        end = next(found, job.max_tokens)
        stopped = end < job.max_tokens
        count = end + 1 if stopped else job.max_tokens
        assert count <= len(self.token_ids), (count, len(self.token_ids))
        return replace(
            self,
            token_ids=self.token_ids[:count],
            logprobs=self.logprobs[:count],
            finish_reason="stop" if stopped else "length",
        )


class Rig:
    """One model, loaded once."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.config = llm.built.config
        self.checkpoint = llm.built.checkpoint
        self.tokenizer = llm.tokenizer
        self.model: Any = llm.engine.parts.model
        self.vocab_size: int = self.model.vocab_size
        self._known: dict[Job, Result] = {}

    def engine(
        self,
        method: str = "none",
        *,
        k: int = 15,
        nodes: int | None = None,
        tree: str = "chain",
        draft: Rig | None = None,
        script: Script | None = None,
        options: dict[str, Any] | None = None,
        batch: int = 16,
        rows: int = 256,
        store: str = "paged",
        block: int = 16,
        slots: int = ROOMY,
        prefix: bool = True,
        threads: int = 1,
        model: Any = None,
        sampler: Sampler | None = None,
        learning: bool = True,
    ) -> Engine:
        """draft: the rig whose model drafts, for drafters with K and V of their own; by itself it
        means "model". k: longest draft path. nodes: draft nodes per pass, default k for each
        sequence. slots: KV positions. model: a stand-in for the target."""
        if script is not None or (draft is not None and method == "none"):
            method = "scripted" if script is not None else "model"
        target = model or self.model
        sampler = sampler or GumbelSampler()
        config = replace(
            self.config,
            scheduler=SchedulerConfig(batch, rows),
            cache=replace(
                self.config.cache,
                store=store,
                block_size=block,
                memory=None,
                enable_prefix_caching=prefix,
            ),
            speculative=SpeculativeConfig(
                method=method,
                tree=tree,
                num_speculative_tokens=k,
                node_budget=k * batch if nodes is None else nodes,
            ),
        )
        kv = make_store(config, self.checkpoint, slots)
        context = DraftContext(
            k, target.vocab_size, sampler=sampler, ahead=Ahead(target, kv), learning=learning
        )
        given = {"script": script} if script is not None else dict(options or {})
        module = member("draft", method)
        if check_sources(module, from_options(module.Config, given, method)):
            guide = draft or self
            room = make_store(config, guide.checkpoint, slots + 16 * block)
            context = replace(context, model=guide.model, kv=room)
        drafter = make_drafter(method, given, context)
        self.model.kernels.set_threads(threads)
        return assemble(config, target, kv, drafter, sampler)

    def door(self, engine: Engine) -> LLM:
        """The library's door on another engine of this model."""
        llm = copy.copy(self.llm)
        llm.engine = engine
        return llm

    def plain(self, job: Job) -> Result:
        """The reference: alone, one token at a time. Run once for each prompt and way of sampling,
        without an EOS; an EOS and a smaller max_tokens only cut it (test_naive.py checks that)."""
        kind = replace(job, priority=0, salt="", max_tokens=0, ends=frozenset())
        known = self._known.get(kind)
        if known is None or len(known.token_ids) < job.max_tokens:
            known = plain_with(self, replace(kind, max_tokens=job.max_tokens))
            self._known[kind] = known
        return known.cut(job)

    def answers(self, jobs: SequenceOf[Job], extra: int = 0) -> Reference:
        """For scripted drafters: what each job will emit, and `extra` tokens that could follow. The
        name of a sequence is its job's place."""
        longer = [
            replace(job, max_tokens=job.max_tokens + extra, ends=frozenset()) if extra else job
            for job in jobs
        ]
        known = [self.plain(job).token_ids for job in longer]
        return lambda sequence: known[int(sequence.id)]

    def run(self, jobs: SequenceOf[Job], **setting: Any) -> list[Result]:
        """All jobs together on a fresh engine; results in their order."""
        engine = self.engine(**setting)
        results = drive(engine, [(0, place, job) for place, job in enumerate(jobs)])
        engine.parts.kv.check()
        return results

    def same(self, jobs: SequenceOf[Job], results: SequenceOf[Result], note: object = "") -> None:
        """Assert that every result is the plain one of its job, bit for bit."""
        for job, result in zip(jobs, results, strict=True):
            equal(self.plain(job), result, f"{note} {job}")

    def exact(self, jobs: SequenceOf[Job], **setting: Any) -> list[Result]:
        """Run and compare."""
        results = self.run(jobs, **setting)
        self.same(jobs, results, setting)
        return results


def plain_with(rig: Rig, job: Job, **setting: Any) -> Result:
    rows = max(256, len(job.prompt))
    quiet = {"batch": 1, "rows": rows, "prefix": False, "slots": job.positions + 48}
    return rig.run([job], **{**quiet, **setting})[0]


def drive(engine: Engine, timed: Iterable[tuple[int, int, Job]]) -> list[Result]:
    """Run (step of arrival, place, job) to the end; results in the order of the places."""
    waiting = sorted(timed, key=lambda entry: entry[0])
    done: dict[int, Sequence] = {}
    step, limit = 0, 200 + 4 * sum(job.positions for _, _, job in waiting)
    while waiting or engine.has_work:
        while waiting and waiting[0][0] <= step:
            _, place, job = waiting.pop(0)
            done[place] = engine.add(job.request(str(place)))
        engine.step()
        step += 1
        assert step < limit, f"no end after {step} steps"
    return [Result.of(done[place]) for place in sorted(done)]


def equal(expected: Result, got: Result, note: object = "") -> None:
    """No tolerance. Names the first position that differs; counts what it compared."""
    pairs = zip(expected.token_ids, got.token_ids, strict=False)
    first = next((i for i, (left, right) in enumerate(pairs) if left != right), None)
    assert first is None, (
        f"token {first}: {expected.token_ids[first:]} became {got.token_ids[first:]}; {note}"
    )
    assert len(expected.token_ids) == len(got.token_ids), (
        f"{len(expected.token_ids)} tokens became {len(got.token_ids)}; {note}"
    )
    for position, (left, right) in enumerate(zip(expected.logprobs, got.logprobs, strict=True)):
        assert left == right, f"logprobs at position {position}: {left} became {right}; {note}"
    assert expected.finish_reason == got.finish_reason, (
        f"{expected.finish_reason} became {got.finish_reason}; {note}"
    )
    assert expected.prompt_logprobs == got.prompt_logprobs, f"prompt logprobs differ; {note}"
    entries = (*expected.prompt_logprobs, *expected.logprobs)
    count(1, len(expected.token_ids), sum(1 + len(top) for _, _, top in entries))


def count(outputs: int, positions: int, logprobs: int = 0) -> None:
    """Add to what the calling test file has compared."""
    frame = inspect.currentframe()
    name = ""
    while frame is not None and not name.startswith("test_"):
        name, frame = Path(frame.f_code.co_filename).name, frame.f_back
    compared = COMPARED.setdefault(name, Compared())
    compared.outputs += outputs
    compared.positions += positions
    compared.logprobs += logprobs


@cache
def rig(
    numerics: str = "float32",
    backend: str = "torch",
    generation_config: str = "none",
    kv_cache_dtype: str = "auto",
    isa: str | None = None,
    quantization: str | None = None,
    **options: Any,
) -> Rig:
    """A rig over a tiny checkpoint; the defaults are T with a context of 512."""
    options = {"max_position": 512, **options}
    options.setdefault("dtype", "float32" if numerics == "float32" else "bfloat16")
    path = apparatus.tiny_checkpoint(**options)
    more = {"isa": isa, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
    return Rig(open_llm(path, numerics, backend, generation_config, **more))


def open_llm(
    path: Path,
    numerics: str = "float32",
    backend: str = "torch",
    generation: str = "none",
    **more: Any,
) -> LLM:
    """Plain decoding, one thread, a small KV cache."""
    return LLM(
        str(path),
        numerics=numerics,
        backend=backend,
        generation_config=generation,
        speculative_config={"method": "none"},
        threads=1,
        kv_cache_memory=more.pop("kv_cache_memory", 32 << 20),
        **more,
    )


@cache
def smollm2(numerics: str = "float32") -> Rig:
    """SmolLM2-135M-Instruct, loaded once."""
    path = apparatus.smollm2_path()
    return Rig(open_llm(path, numerics, max_model_len=1024, kv_cache_memory=256 << 20))


def prompt(length: int, seed: int = 0, vocab: int = 256) -> tuple[int, ...]:
    """`length` random ids."""
    return tuple(random.Random(f"{seed}/{length}").choices(range(vocab), k=length))


def declared(rig: Rig, job: Job, step: int) -> Job:
    """The declared-EOS trick: the same job, whose token first produced at output position >= `step`
    (an id not seen before it) is an EOS. AssertionError if the output has none."""
    ids = rig.plain(job).token_ids
    for position in range(step, len(ids)):
        if ids[position] not in ids[:position]:
            return replace(job, ends=frozenset({ids[position]}))
    raise AssertionError(f"no fresh token from position {step} on in {ids}")
