"""The only file that turns names into objects: it reads an EngineConfig and puts an engine
together.

A name is a file: `--drafter ngram` is draft/ngram.py, `--tree chain` is tree/chain.py, and so on.
An unknown name is an error that lists the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from foreword import machine
from foreword.accept import exact
from foreword.acceptance import acceptor_of
from foreword.adapters import Adapters
from foreword.config import EngineConfig, from_options
from foreword.cost import measure
from foreword.draft import _bigrams, _forms
from foreword.draft._ahead import Ahead
from foreword.draft._context import DraftContext
from foreword.engine import Engine, Parts
from foreword.errors import ConfigError, KernelUnavailable
from foreword.families import member as member
from foreword.families import names as names
from foreword.fit import context_of, kv_format, slots_of
from foreword.kernels import _defaults
from foreword.kernels.cpu import CpuKernels, native_rows
from foreword.kernels.ops import QUANTISED, Kernels, RotaryTable, WholePass, require_device
from foreword.kv.pool import FORMATS, KVPool
from foreword.model.llama import Decoder
from foreword.model.rope import inverse_frequencies
from foreword.model.weights.checkpoint import Checkpoint
from foreword.model.weights.open import open_checkpoint
from foreword.model.weights.quantize import quantised
from foreword.pace import MOST, FixedPace, MeasuredPace, fill_last_tile
from foreword.protocols import CompiledRows, Drafter, KVStore, Pace, Sampler, TreeBuilder
from foreword.sample.compiled import CompiledSampler
from foreword.sample.named import NamedSamplers
from foreword.sample.rows import NumpyRows
from foreword.sample.sampler import GumbelSampler
from foreword.scheduler import Scheduler
from foreword.text.compatible import compatible
from foreword.text.folder import load_folder
from foreword.text.gguf_vocabulary import load_gguf
from foreword.text.tokenizer import Tokenizer
from foreword.types import SourceClock

NUMERICS_VERSION = 1  # raised by any change that moves a bit of the logits

Progress = Callable[[str, int, int], None]  # (what, done, total; 0 = unknown)


@dataclass(frozen=True, slots=True)
class Built:
    """An engine and what its doors need to know about it."""

    engine: Engine
    config: EngineConfig
    checkpoint: Checkpoint
    fingerprint: str  # sha256 of the weights and shape that were loaded
    tokenizer: Tokenizer
    context: int  # positions a request may use, prompt and output together
    vocab_size: int  # ids with a text
    kv_format: str
    isa: str | None  # instruction set of the kernels, where the backend chooses one
    defaults: dict[str, float | int]  # sampling defaults in force for unset fields
    close: Callable[[], None]  # ends worker threads
    fresh: Callable[[], Drafter]  # a drafter like the engine's that has learned nothing
    adapters: Adapters  # of the engine's model

    @property
    def backend(self) -> str:
        assert self.config.backend is not None
        return self.config.backend

    @property
    def numerics(self) -> str:
        assert self.config.numerics is not None
        return self.config.numerics


def build(config: EngineConfig, progress: Progress | None = None) -> Built:
    """Check names and options, open, fit, load: every error comes before anything is served."""
    config = with_backend(config)
    drafting, drafter_config = check_names(config)
    config, checkpoint = open_target(config, progress)
    tokenizer = load_tokenizer(checkpoint)
    context = context_of(config, checkpoint.config)
    draft = (
        open_draft(config, checkpoint, tokenizer, progress) if config.speculative.model else None
    )
    shared = draft is not None and draft.files == checkpoint.files
    slots = slots_of(config, context, [checkpoint] + ([draft] if draft else []), shared)
    fingerprint = checkpoint.fingerprint()  # of the files as they are now, while they are loaded

    model = load_model(config, checkpoint, tokenizer.vocab_size, context, progress)
    sampler = make_sampler(model)
    kv = make_store(config, checkpoint, slots)
    draft_model = None
    draft_context = DraftContext(
        config.speculative.num_speculative_tokens,
        model.vocab_size,
        sampler=sampler,
        ahead=Ahead(model, kv),
        row_ops=compiled_rows(model) or NumpyRows(),
        learning=config.speculative.learning,
        bigrams=bigram_source(config, checkpoint, tokenizer, model, progress),
    )
    if draft is not None:
        draft_model = model
        if not shared:
            draft_model = load_model(config, draft, tokenizer.vocab_size, context, progress)
        draft_kv = make_store(config, draft, slots)
        draft_context = replace(draft_context, model=draft_model, kv=draft_kv)
    drafter = assemble_drafter(drafting, drafter_config, draft_context)
    return Built(
        engine=assemble(config, model, kv, drafter, sampler, draft_context.clock),
        config=config,
        checkpoint=checkpoint,
        fingerprint=fingerprint,
        tokenizer=tokenizer,
        context=context,
        vocab_size=model.vocab_size,
        kv_format=kv_format(config),
        isa=getattr(model.kernels, "isa", None),
        close=closing(model, draft_model),
        fresh=partial(assemble_drafter, drafting, drafter_config, draft_context),
        defaults=checkpoint.generation if config.generation_config == "auto" else {},
        adapters=Adapters(model, config.device, config.adapters),
    )


def check_names(config: EngineConfig) -> tuple[Any, Any]:
    """Every name and drafter option, before a file is opened: the drafter's module and config."""
    plan = config.speculative
    assert config.backend is not None
    for family, name in (
        ("tree", plan.tree),
        ("kv", config.cache.store),
        ("kernels", config.backend),
    ):
        member(family, name)
    require_device(config.device)
    drafting = member("draft", plan.method)
    options = from_options(drafting.Config, plan.options, f"drafter {plan.method!r}")
    users = check_sources(drafting, options)
    if plan.model is not None and not users:
        more = ' or name "model" among its sources' if hasattr(drafting, "sources") else ""
        raise ConfigError(f"drafter {plan.method!r} takes no draft model; drop --draft-model{more}")
    wanted = plan.method in users or "sources" in plan.options  # not merely used where there is one
    if plan.model is None and users and wanted:
        raise ConfigError(f"drafter {users[0]!r} needs a draft model; name one with --draft-model")
    return drafting, options


def make_sampler(model: Decoder) -> Sampler:
    """The samplers by name; Gumbel's is the compiled chain where the extension is built, else its
    specification: same tokens."""
    rows = compiled_rows(model)
    return NamedSamplers(GumbelSampler() if rows is None else CompiledSampler(rows))


def compiled_rows(model: Decoder) -> CompiledRows | None:
    """Row operations on the threads of the model's own backend, or else on the caller's; None
    where the extension is not built."""
    kernels = model.kernels
    if isinstance(kernels, CpuKernels):
        return kernels.row_ops()
    try:
        return native_rows()
    except KernelUnavailable:
        return None


def closing(*models: Decoder | None) -> Callable[[], None]:
    """What ends the worker threads of these models."""

    def close() -> None:
        for model in filter(None, models):
            model.kernels.close()

    return close


def assemble(
    config: EngineConfig,
    model: Decoder,
    kv: KVStore,
    drafter: Drafter,
    sampler: Sampler,
    clock: SourceClock | None = None,
) -> Engine:
    """The loop around given parts; `clock` is the one the drafter was made with."""
    builder: TreeBuilder = member("tree", config.speculative.tree).make()
    drafts = drafter.name != "none"
    return Engine(
        Parts(
            model=model,
            kv=kv,
            scheduler=Scheduler(config.scheduler, kv.capacity, config.cache.block_size),
            drafter=drafter,
            builder=builder,
            sampler=sampler,
            acceptor=exact.make(),
            approximate=partial(acceptor_of, sampler=sampler, drafter=drafter),
            pace=_pace(config, builder, model, kv) if drafts else FixedPace(lambda _: 0),
            guide=_forms.FormGuide(),
            guard=model.kernels.step_guard,
            clock=clock or SourceClock(),
        )
    )


def make_drafter(method: str, options: dict[str, Any], context: DraftContext) -> Drafter:
    """A drafter by name; its Config dataclass checks the options."""
    module = member("draft", method)
    config = from_options(module.Config, options, f"drafter {method!r}")
    return assemble_drafter(module, config, context)


def assemble_drafter(module: Any, config: Any, context: DraftContext) -> Drafter:
    """A drafter with the sources it names, each with its default options. A source that needs a
    draft model is left out where there is none."""
    sources: dict[str, Drafter] = {}
    for name, source in named_sources(module, config).items():
        if context.model is not None or "own_kv" not in source.needs:
            sources[name] = assemble_drafter(source, source.Config(), context)
    drafter: Drafter = module.make(config, replace(context, sources=sources))
    return drafter


def named_sources(module: Any, config: Any) -> dict[str, Any]:
    """The modules a composite names in `sources(config)`; empty for the others."""
    names: tuple[str, ...] = module.sources(config) if hasattr(module, "sources") else ()
    return {name: member("draft", name) for name in names}


def check_sources(module: Any, config: Any, above: tuple[Any, ...] = ()) -> list[str]:
    """Names of the drafters, this one and below, that need a draft model. ConfigError for a
    composite that is its own source, and for two that would share one draft model's store."""
    name = module.__name__.rpartition(".")[2]
    if module in above:
        raise ConfigError(f"drafter {name!r} cannot be a source of itself; leave it out of sources")
    found = [name] if "own_kv" in module.needs else []
    for source in named_sources(module, config).values():
        found += check_sources(source, source.Config(), (*above, module))
    if len(found) > 1:
        raise ConfigError(
            f"sources {', '.join(found)} need a draft model each; keep one of them in sources"
        )
    return found


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.metadata:
        return load_gguf(checkpoint.metadata)
    return load_folder(checkpoint.path)


def load_model(
    config: EngineConfig,
    checkpoint: Checkpoint,
    num_tokens: int,
    context: int,
    progress: Progress | None = None,
) -> Decoder:
    """Pack a checkpoint's weights into the kernels' layout, tensor by tensor."""
    shape = checkpoint.config
    frequencies, factor = inverse_frequencies(shape.rope, shape.head_dim, shape.max_position)
    rotary = RotaryTable.build(frequencies, factor, context)
    threads = config.threads or machine.num_threads()
    options = {} if config.isa is None else {"isa": config.isa}
    assert config.backend is not None, "open_target decides it"
    assert config.numerics is not None
    kernels: Kernels | WholePass = member("kernels", config.backend).make(
        shape, config.numerics, rotary, config.device, threads, **options
    )
    name = checkpoint.path.name

    def loaded(done: int, total: int) -> None:
        if progress is not None:
            progress(f"loading {name}", done, total)

    load = checkpoint.weight if config.numerics in QUANTISED else checkpoint.tensor
    return Decoder(shape, kernels, load, num_tokens, loaded)


def _pace(config: EngineConfig, builder: TreeBuilder, model: Decoder, kv: KVStore) -> Pace:
    """Measured, for a builder that looks at costs and no fixed number of nodes; else the number
    given, or what fills up the last matrix tile, at least half of one."""
    fixed = config.speculative.node_budget
    if fixed is None and getattr(member("tree", builder.name), "priced", False):
        most = min(MOST, config.scheduler.max_num_batched_tokens)
        positions = config.max_model_len or model.config.max_position
        with model.kernels.step_guard():
            return MeasuredPace(measure(model, kv, most, positions), most)

    return FixedPace(fill_last_tile if fixed is None else lambda _: fixed)


def with_backend(config: EngineConfig) -> EngineConfig:
    """The config with its backend decided; only backend cpu has instruction sets to choose from."""
    if config.backend is not None:
        return config
    backend = "cpu" if config.isa is not None else _defaults.default_backend(config.device)
    return replace(config, backend=backend)


def open_target(
    config: EngineConfig, progress: Progress | None = None
) -> tuple[EngineConfig, Checkpoint]:
    """The model's checkpoint, and the config with its backend and numerics decided: the defaults
    are static tables (kernels/_defaults.py). Raises KernelUnavailable before a file is opened."""
    config = with_backend(config)
    isa = _defaults.instruction_set(config.backend, config.isa)
    checkpoint = open_model(config, config.model, config.revision, progress)
    numerics = config.numerics or _defaults.default_numerics(isa, checkpoint.groups())
    for remark in _defaults.remarks(isa, numerics, not config.numerics, checkpoint.groups()):
        _defaults.log.warning(remark)
    return replace(config, numerics=numerics), checkpoint


def open_model(
    config: EngineConfig, name: str, revision: str | None, progress: Progress | None
) -> Checkpoint:
    """A checkpoint as it is stored, or its matrices quantised when they are read."""
    checkpoint = open_checkpoint(name, revision, progress)
    return quantised(checkpoint, config.quantization) if config.quantization else checkpoint


def open_draft(
    config: EngineConfig, target: Checkpoint, tokenizer: Tokenizer, progress: Progress | None
) -> Checkpoint:
    """The draft checkpoint, its vocabulary checked against the target's."""
    assert config.speculative.model is not None
    draft = open_model(config, config.speculative.model, None, progress)
    if draft.files != target.files:
        difference = compatible(tokenizer, load_tokenizer(draft))
        if difference is not None:
            raise ConfigError(
                f"draft model {config.speculative.model} does not fit {config.model}: "
                f"{difference}; use a draft model with the target's tokenizer"
            )
    return draft


def make_store(config: EngineConfig, checkpoint: Checkpoint, slots: int) -> KVStore:
    shape = checkpoint.config
    pool = KVPool(
        shape.num_layers,
        slots,
        shape.num_kv_heads,
        shape.head_dim,
        FORMATS[kv_format(config)],
        config.device,
    )
    identity = f"{checkpoint.fingerprint()} {config.backend} {config.numerics} {kv_format(config)}"
    store: KVStore = member("kv", config.cache.store).make(
        pool,
        block_size=config.cache.block_size,
        identity=identity,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    return store


def bigram_source(
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    model: Decoder,
    progress: Progress | None,
) -> _bigrams.Source:
    """Where drafters get the target's bigrams; nothing is computed before one asks."""
    block = config.cache.block_size
    slots = (_bigrams.ROWS // block + 3) * block
    cache = replace(config.cache, enable_prefix_caching=False)
    begin = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    return _bigrams.Source(
        model=model,
        store=lambda: make_store(replace(config, cache=cache), checkpoint, slots),
        row_ops=compiled_rows(model) or NumpyRows(),
        begin=begin if begin is not None and begin < model.vocab_size else None,
        identity=f"{checkpoint.fingerprint()} {config.numerics} {kv_format(config)}",
        guard=model.kernels.step_guard,
        progress=progress,
    )
