"""One model, loaded once, and engines of any setting around it.

The parts come from build.py, as they do for every other door: an audit runs what users run.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from foreword.adapters import Adapters
from foreword.audit.cases import Case
from foreword.audit.scripts import SCRIPTS
from foreword.audit.settings import Setting
from foreword.build import (
    Progress,
    assemble,
    load_model,
    load_tokenizer,
    make_drafter,
    make_sampler,
    make_store,
    member,
    open_draft,
    open_target,
)
from foreword.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from foreword.draft._ahead import Ahead
from foreword.draft._context import DraftContext
from foreword.draft.scripted import Reference
from foreword.engine import Engine
from foreword.fit import weight_bytes
from foreword.kv.pool import available_bytes
from foreword.model.weights.memory import require_memory
from foreword.protocols import Drafter, Grammar, KVStore, Sampler
from foreword.sample.form_rule import request_form
from foreword.text.forms import Forms
from foreword.types import SamplingParams

CONTEXT = 1024  # positions an audited request may use at most


class Laboratory:
    """Opens and loads `config.model` (and `config.speculative.model`, if named: the drafter `model`
    then uses it, else the target drafts for itself). Raises what build.build raises."""

    def __init__(self, config: EngineConfig, progress: Progress | None = None) -> None:
        config, checkpoint = open_target(config, progress)
        self.config = config
        self.checkpoint = checkpoint
        self.tokenizer = load_tokenizer(checkpoint)
        self.context = min(config.max_model_len or CONTEXT, checkpoint.config.max_position)
        self.draft_checkpoint = checkpoint
        if config.speculative.model is not None:
            self.draft_checkpoint = open_draft(config, checkpoint, self.tokenizer, progress)
        shared = self.draft_checkpoint.files == checkpoint.files
        opened = [checkpoint] if shared else [checkpoint, self.draft_checkpoint]
        weights = sum(weight_bytes(config, one) for one in opened)
        require_memory(weights, available_bytes(config.device), config.model)
        num_tokens = self.tokenizer.vocab_size
        self.models = [
            load_model(config, one, num_tokens, self.context, progress) for one in opened
        ]
        self.adapters = Adapters(self.models[0], config.device, config.adapters)
        self.isa: str | None = getattr(self.models[0].kernels, "isa", None)
        self.sampler = make_sampler(self.models[0])
        self.vocab_size = self.models[0].vocab_size
        self.forms = Forms(self.tokenizer, self.vocab_size, checkpoint.eos_ids)

    def engine(
        self,
        setting: Setting,
        slots: int,
        reference: Reference | None = None,
        sampler: Sampler | None = None,
    ) -> Engine:
        """A fresh engine with a fresh KV cache of `slots` positions; `reference` gives the scripted
        drafters the output ids of a sequence."""
        scripted = setting.drafter in SCRIPTS
        config = replace(
            self.config,
            scheduler=SchedulerConfig(setting.batch, setting.rows),
            cache=CacheConfig(
                store=setting.store, block_size=setting.block, dtype=self.config.cache.dtype
            ),
            speculative=SpeculativeConfig(
                method="scripted" if scripted else setting.drafter,
                tree=setting.tree,
                node_budget=setting.nodes,
            ),
        )
        for model in self.models:
            model.kernels.set_threads(setting.threads)
        sampler = sampler or self.sampler
        kv = make_store(config, self.checkpoint, slots)
        drafter = self._drafter(config, setting, slots, reference, sampler, kv)
        return assemble(config, self.models[0], kv, drafter, sampler)

    def slots(self, setting: Setting, cases: SequenceOf[Case]) -> int:
        """KV positions for `cases`: plenty, or too few for all of them at once."""

        def pages(positions: int) -> int:
            return -(-positions // setting.block)

        if setting.preemption == "memory":
            return (max(pages(case.num_positions) for case in cases) + 2) * setting.block
        needed = sum(pages(case.num_positions + setting.nodes) + 2 for case in cases)
        return (needed + 1) * setting.block

    def grammar(self, params: SamplingParams) -> Grammar | None:
        """The form that `params` ask for, compiled."""
        return request_form(self.forms, params, self.checkpoint.eos_ids)

    def close(self) -> None:
        for model in self.models:
            model.kernels.close()

    def _drafter(
        self,
        config: EngineConfig,
        setting: Setting,
        slots: int,
        reference: Reference | None,
        sampler: Sampler,
        kv: KVStore,
    ) -> Drafter:
        depth = config.speculative.num_speculative_tokens
        ahead = Ahead(self.models[0], kv)
        context = DraftContext(depth, self.vocab_size, sampler=sampler, ahead=ahead)
        if setting.drafter in SCRIPTS:
            assert reference is not None
            script = SCRIPTS[setting.drafter](reference, self.vocab_size)
            return make_drafter("scripted", {"script": script}, context)
        if "own_kv" in member("draft", setting.drafter).needs:
            store = make_store(config, self.draft_checkpoint, slots)
            context = replace(context, model=self.models[-1], kv=store)
        return make_drafter(setting.drafter, {}, context)
