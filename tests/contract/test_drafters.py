"""Promises of every drafter in the folder, on drafters alone: a wrong draft never changes a token,
so nothing downstream would notice a drafter that forgets, mixes up rows, or never helps.

A new file is tested without touching this one, unless it needs something new of its context or,
like `scripted`, has an option without which it cannot be made.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import itertools
import pkgutil
import random
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import pytest

import foreword.draft
from drafting import (
    VOCAB,
    TapeAhead,
    TapeModel,
    assert_sound,
    by_model,
    by_period,
    copy_of,
    new_sequence,
    plain,
    rows_of,
    step,
    tape_store,
)
from foreword.build import assemble_drafter, build
from foreword.config import CacheConfig, EngineConfig, SpeculativeConfig
from foreword.draft import scripted
from foreword.draft._context import DraftContext
from foreword.sample import sampler
from foreword.tree import best_first, chain
from foreword.types import (
    DraftTree,
    Outcome,
    Request,
    SamplingParams,
    SourceClock,
    Verdict,
)

NAMES = sorted(
    module.name
    for module in pkgutil.iter_modules(foreword.draft.__path__)
    if not module.name.startswith("_")
)
DEPTH = 4
TARGET = TapeModel()
PERIOD = 3
# Bounds on what is remembered across requests, so low that tests run into them.
SMALL = {"suffix": {"shared_tokens": 300}, "recycle": {"capacity": 64}}


def module_of(name):
    return importlib.import_module(f"foreword.draft.{name}")


def names_in(name):
    """Who may be named in a trie of this drafter: itself, or the sources it is handed."""
    module = module_of(name)
    if not hasattr(module, "sources"):
        return {name}
    return {name}.union(*(names_in(source) for source in module.sources(module.Config())))


def easy(name):
    """The target this drafter should find easy: its own model, else a text that repeats itself."""
    return by_model(TARGET) if module_of(name).needs else by_period(PERIOD)


def script_for(target):
    def reference(sequence):
        emitted = list(sequence.output_ids)
        for _ in range(DEPTH):
            emitted.append(target(sequence, emitted))
        return emitted

    return scripted.chain(reference, DEPTH, scripted.right_until(DEPTH), VOCAB)


def make(name, depth=DEPTH, vocab_size=VOCAB, drift=0.0, store=None, learning=True):
    module = module_of(name)
    options = SMALL.get(name, {})
    if name == "scripted":
        options = {"script": script_for(easy(name))}
    own = {"sampler": sampler.make(), "ahead": TapeAhead(TapeModel(drift=drift))}
    if "own_kv" in module.needs:
        own |= {"model": TapeModel(drift=drift), "kv": store or tape_store()}
    context = DraftContext(depth, vocab_size, learning=learning, **own)
    return assemble_drafter(module, module.Config(**options), context)


def ragged():
    """Prompts of 1 to 64 ids: random, of one id only, periodic, greedy and sampled."""
    numbers = random.Random(5)
    prompts = [[7], [3, 3], [1, 2, 3] * 2 + [1]]
    prompts += [[numbers.randrange(VOCAB) for _ in range(size)] for size in (7, 31, 64)]
    prompts += [[9] * 20, [4, 5, 6, 7] * 12]
    return [
        new_sequence(f"r{row}", prompt, temperature=row % 2 * 0.8)
        for row, prompt in enumerate(prompts)
    ]


def proposals(drafter, sequences, budgets):
    for sequence in sequences:
        drafter.begin(sequence)
    return [plain(trie) for trie in drafter.propose(sequences, budgets)]


def test_the_folder_lists_its_drafters():
    assert {"none", "ngram", "model", "scripted"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_declarations(name):
    module = module_of(name)
    assert module.needs <= {"own_kv", "layers"}, "teach make() above to provide it"
    assert module.acceptance_floor >= 1.0
    assert dataclasses.is_dataclass(module.Config)
    assert module.Config.__dataclass_params__.frozen
    assert make(name).name == name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("depth", [1, DEPTH, 15])
def test_ragged_batches_stay_within_budget_and_vocabulary(name, depth):
    sequences = ragged()
    drafter = make(name, depth=depth)
    for sequence in sequences:
        drafter.begin(sequence)
    for budgets in ([0, 1, 2, 3, 4, 8, 15, 64], [64, 15, 8, 4, 3, 2, 1, 0], [0] * 8, [5] * 8):
        tries = drafter.propose(sequences, budgets)
        assert len(tries) == len(sequences)
        for trie, budget in zip(tries, budgets, strict=True):
            assert_sound(trie, budget, depth, VOCAB)
            assert set(trie.sources) <= names_in(name)


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_at_all(name):
    drafter = make(name)
    assert drafter.propose([], []) == []
    drafter.observe([])


@pytest.mark.parametrize("name", NAMES)
def test_v49_ids_the_target_cannot_emit_are_never_proposed(name):
    """Histories may hold such ids (a padded row in a prompt); drafts may not."""
    drafter, sequences = make(name, vocab_size=5), ragged()
    for sequence in sequences:
        drafter.begin(sequence)
    for trie in drafter.propose(sequences, [8] * 8):
        assert_sound(trie, 8, DEPTH, 5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [1e-3, 1e-9, 50.0])
def test_any_temperature(name, temperature):
    """Scores stay chances where shares to the power of 1 / temperature would all be nothing."""
    drafter = make(name)
    sequences = [
        new_sequence(f"t{row}", [1, 2, 3] * 4 + [1], temperature=temperature) for row in range(2)
    ]
    for sequence in sequences:
        drafter.begin(sequence)
    for _ in range(6):
        step(drafter, chain.make(), sequences, easy(name), 4)
    for trie in drafter.propose(sequences, [16] * 2):
        assert_sound(trie, 16, DEPTH, VOCAB)
        assert all(0.0 < score <= 1.0 for score in trie.scores)


@pytest.mark.parametrize("name", NAMES)
def test_permuting_the_rows_permutes_the_answers(name):
    sequences, budgets = ragged(), [0, 1, 2, 3, 4, 8, 15, 64]
    answers = proposals(make(name), sequences, budgets)
    rows = list(range(len(sequences)))
    for shuffle in range(5):
        random.Random(shuffle).shuffle(rows)
        moved = [sequences[row] for row in rows]
        again = proposals(make(name), moved, [budgets[row] for row in rows])
        assert again == [answers[row] for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_same_history_same_drafts_in_any_batch(name):
    sequences, budgets = ragged(), [8] * 8
    together = proposals(make(name), sequences, budgets)
    alone = [proposals(make(name), [sequence], [8])[0] for sequence in sequences]
    assert together == alone


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("verified", [0, 1, 2, 8])
def test_observe_after_partial_acceptance_equals_a_fresh_begin(name, verified):
    """12 steps of ragged acceptance (the draft model drifts, histories repeat in part), learning
    frozen; the trees may also verify less than was proposed. After each step a newcomer with the
    same history gets the same drafts."""
    target = by_model(TARGET) if module_of(name).needs else _nearly_periodic
    sequences = ragged()
    drafter = make(name, drift=0.4, learning=False)
    for sequence in sequences:
        drafter.begin(sequence)
    for _ in range(12):
        step(drafter, best_first.make(), sequences, target, 8, verified)
        copies = [copy_of(sequence) for sequence in sequences]
        expected = proposals(make(name, drift=0.4, learning=False), copies, [8] * 8)
        assert [plain(trie) for trie in drafter.propose(sequences, [8] * 8)] == expected


def _nearly_periodic(sequence, emitted):
    """Repeats with period 3, and every seventh token is new."""
    if len(emitted) % 7 == 6:
        return (11 * len(emitted)) % VOCAB
    return [*sequence.request.prompt_ids, *emitted][-min(3, 1 + len(emitted))]


@pytest.mark.parametrize("name", NAMES)
def test_steps_it_was_not_asked_about(name):
    """A composite, or a step without a budget, may verify what others guessed, or nothing: three
    such steps after each one of its own."""
    sequences = ragged()
    drafter = make(name)
    for sequence in sequences:
        drafter.begin(sequence)
    for _ in range(4):
        step(drafter, best_first.make(), sequences, easy(name), 8)
        for size in (0, 1, 3):
            outcomes = []
            for sequence in sequences:
                tokens: list[int] = []
                while len(tokens) <= size:
                    emitted = [*sequence.output_ids, *tokens]
                    tokens.append(easy(name)(sequence, emitted))
                nodes = (sequence.token_ids[-1], *tokens[:size])
                tree = DraftTree(nodes, tuple(range(-1, size)), ("", *["other"] * size))
                logits = rows_of(sequence, tree, easy(name))
                sequence.token_ids.extend(tokens)
                verdict = Verdict(tuple(tokens), tuple(range(1, size + 1)), size, False)
                outcomes.append(Outcome(sequence, tree, verdict, logits))
            drafter.observe(outcomes)
    for trie in drafter.propose(sequences, [8] * 8):
        assert_sound(trie, 8, DEPTH, VOCAB)


@pytest.mark.parametrize("name", NAMES)
def test_preemption_and_return_give_the_same_drafts(name):
    sequences = ragged()
    drafter = make(name, learning=False)
    for sequence in sequences:
        drafter.begin(sequence)
    for _ in range(3):
        step(drafter, best_first.make(), sequences, easy(name), 8)
    before = [plain(trie) for trie in drafter.propose(sequences, [8] * 8)]
    for sequence in sequences[::2]:
        drafter.end(sequence)
    for sequence in sequences[::2]:
        drafter.begin(sequence)
    assert [plain(trie) for trie in drafter.propose(sequences, [8] * 8)] == before


def reachable(start) -> int:
    """Objects that can be reached from `start`; classes, functions, modules and the clock, which
    only counts, are left out."""
    seen, todo = {id(start)}, [start]
    while todo:
        for item in gc.get_referents(todo.pop()):
            code = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
            if not isinstance(item, (*code, SourceClock)) and id(item) not in seen:
                seen.add(id(item))
                todo.append(item)
    return len(seen)


@pytest.mark.parametrize("name", NAMES)
def test_end_releases_everything_1000_requests(name):
    store = tape_store(400, prefix_caching=False)
    drafter = make(name, store=store, learning=False)  # what is learned: test_drafters_learning.py
    sizes = {}
    for number in range(1, 1001):
        sequence = new_sequence(f"q{number}", [1, 2, 3, 1, 2], max_tokens=40)
        drafter.begin(sequence)
        if number % 10:  # every tenth leaves before its first step
            step(drafter, chain.make(), [sequence], easy(name), 2)
        drafter.end(sequence)
        if "own_kv" in module_of(name).needs:
            drafter._own.model.num_rows.clear()
        sizes[number] = reachable(drafter) if number in (100, 1000) else 0
    assert sizes[1000] <= sizes[100]
    assert store.usage == 0.0
    store.check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 5])
def test_acceptance_length_reaches_the_declared_floor(name, rows):
    """Paths of 4 on an easy history, 25 steps: a drafter that never helps is a bug."""
    sequences = [
        new_sequence(f"e{row}", [10 + row, 20 + row, 30 + row] * 3, temperature=row % 2)
        for row in range(rows)
    ]
    drafter = make(name)
    for sequence in sequences if name != "siblings" else with_elders(drafter, sequences):
        drafter.begin(sequence)
    for _ in range(25):
        step(drafter, chain.make(), sequences, easy(name), DEPTH)
    for sequence in sequences:
        assert sequence.stats.mean_acceptance_length >= module_of(name).acceptance_floor


def with_elders(drafter, sequences):
    """The same sequences, each the younger of two samples; the elder has written 200 tokens."""
    for number, sequence in enumerate(sequences):
        sequence.request = dataclasses.replace(sequence.request, group=f"g{number}")
        elder = copy_of(sequence)
        elder.request = dataclasses.replace(sequence.request, id=f"elder{number}")
        for _ in range(200):
            elder.token_ids.append(by_period(PERIOD)(elder, elder.output_ids))
        drafter.begin(elder)
    return sequences


@pytest.mark.parametrize("name", [name for name in NAMES if name != "scripted"])
def test_no_draft_longer_than_what_may_still_be_emitted(name):
    """A path of d drafts emits up to d + 1 tokens. `scripted` overruns on purpose."""
    drafter = make(name, depth=15)
    for remaining in (1, 2, 3):
        sequence = new_sequence(f"s{remaining}", [1, 2, 3] * 5, max_tokens=remaining)
        drafter.begin(sequence)
        [trie] = drafter.propose([sequence], [64])
        assert_sound(trie, 64, remaining - 1, VOCAB)


def generated(path, name, rows):
    """Output ids of `rows` requests on the tiny target, greedy and sampled by turns. The store
    has room for about two of them. Returns the engine as well."""
    options = {}
    if name == "scripted":  # a draft that is sometimes right: the history repeats
        options["script"] = scripted.chain(
            lambda sequence: sequence.token_ids * 2, DEPTH, scripted.right_by_chance(0.8), 470
        )
    own = {"model": str(path)} if "own_kv" in module_of(name).needs else {}
    memory = 160 * 512 * (2 if own else 1)  # positions, bytes of K and V, stores
    speculative = SpeculativeConfig(
        name, num_speculative_tokens=DEPTH, node_budget=16, options=options, **own
    )
    cache = CacheConfig(memory=memory, enable_prefix_caching=False)
    config = EngineConfig(str(path), numerics="float32", max_model_len=64, threads=1, cache=cache)
    built = build(dataclasses.replace(config, speculative=speculative))
    sequences = []
    for row in range(rows):
        params = SamplingParams(row % 2 * 0.9, 1.0, 0, 0.0, max_tokens=30)
        prompt = tuple(itertools.islice(itertools.cycle(range(row, row + 3)), 1 + 5 * row))
        request = Request(f"x{row}", prompt, params, row, max_tokens=30, group="samples")
        sequences.append(built.engine.add(request))
    while built.engine.has_work:
        built.engine.step()
    built.close()
    return [sequence.output_ids for sequence in sequences], built.engine


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 7])
def test_end_to_end_the_output_is_that_of_no_drafts(tiny_path, name, rows):
    expected, _ = generated(tiny_path, "none", rows)
    got, engine = generated(tiny_path, name, rows)
    assert got == expected
    assert [len(output) for output in got] == [30] * rows
    if name != "input_copy":  # these outputs never meet a token of their prompts
        silent = {"none"} | ({"siblings"} if rows == 1 else set())
        assert (engine.stats.num_drafted > 0) == (name not in silent)
    assert (engine.parts.scheduler.num_preemptions > 0) == (rows == 7)
