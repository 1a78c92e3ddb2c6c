"""Cases of part G, and refused models: which drafters fit a target, and what happens if none
does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import Job, prompt, rig

import apparatus
from foreword.errors import ConfigError, UnsupportedModel
from foreword.llm import LLM
from foreword.types import SamplingParams

SAME_BITS: Any = {"numerics": "float32", "backend": "torch", "kv_cache_memory": 32 << 20}  # as rig
ONE_BRANCH = {"num_branches": 1, "confidence_threshold": 0.0}


@pytest.mark.parametrize(("ours", "theirs"), [(512, 480), (512, 544), (480, 512), (544, 512)])
def test_v49_padded_vocabularies_of_different_size(ours: int, theirs: int) -> None:
    """V49: the same tokenizer of 470 entries, other numbers of rows: the text is the plain one, and
    only ids the target can emit are drafted. Greedy and sampled."""
    target, draft = rig(vocab_size=ours), rig(vocab_size=theirs, noise=apparatus.NOISE)
    jobs = [Job(prompt(4 + 9 * n, n), 12, temperature=n % 2, seed=n) for n in range(4)]
    engine = target.engine(draft=draft, k=4, tree="best_first", batch=4)
    drafter, drafted = engine.parts.drafter, []
    propose = drafter.propose

    def noting(*arguments: Any) -> Any:
        tries = propose(*arguments)
        drafted.extend(token for trie in tries for token in trie.tokens)
        return tries

    drafter.propose = noting  # type: ignore[method-assign]
    from harness import drive

    results = drive(engine, [(0, place, job) for place, job in enumerate(jobs)])
    target.same(jobs, results, (ours, theirs))
    assert drafted
    assert 0 <= min(drafted) <= max(drafted) < target.vocab_size == 470


def test_v49_ids_the_draft_model_has_no_embedding_for() -> None:
    """V49: a draft model that knows fewer ids than the target emits: it drafts on, harmlessly."""
    target, draft = rig(num_tokens=512), rig(num_tokens=512, vocab_size=400)
    jobs = [Job((500, 410, *prompt(5, n, 512)), 12, temperature=1.0, seed=n) for n in range(4)]
    target.exact(jobs, draft=draft, k=4)


def edited_tokenizer(tmp_path: Path, name: str, edit: Any) -> Path:
    folder = tmp_path / name
    shutil.copytree(apparatus.drafter_noise(), folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return folder


def swap(content: dict[str, Any]) -> None:
    """Bytes "A" and "B" change places: the vocabulary is the same set of texts."""
    vocabulary = content["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]


def rename_unused(content: dict[str, Any]) -> None:
    for entry in content["added_tokens"]:
        if entry["content"] == "<|special_265|>":
            entry["content"] = "<|reserved_9|>"


def test_v50_a_tokenizer_with_two_ids_swapped_is_refused(tmp_path: Path) -> None:
    """V50: the first differing id is named at start-up, before anything runs."""
    draft = edited_tokenizer(tmp_path, "swapped", swap)
    with pytest.raises(ConfigError, match=r"\b65\b") as caught:
        LLM(str(apparatus.target()), speculative_config={"model": str(draft)})
    assert "draft model" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_v50_a_pair_that_differs_in_an_unused_special_loads(tmp_path: Path) -> None:
    """V50: and its text is the plain one."""
    draft = edited_tokenizer(tmp_path, "renamed", rename_unused)
    llm = LLM(str(apparatus.target()), speculative_config={"model": str(draft)}, **SAME_BITS)
    expected = rig(max_position=apparatus.CONTEXT).plain(Job(prompt(6), 16, logprobs=None))
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    (out,) = llm.generate([list(prompt(6))], params)[0].outputs
    assert tuple(out.token_ids) == expected.token_ids
    assert out.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    llm.close()


def test_v52_the_target_file_as_its_own_drafter() -> None:
    """V52: through the library's door, 64 tokens: the plain text, every draft accepted, and the
    weights in memory once (the documented behaviour)."""
    path = str(apparatus.target())
    speculation = {"model": path, "num_speculative_tokens": 4, "node_budget": 4, "tree": "chain"}
    llm = LLM(path, speculative_config={**speculation, **ONE_BRANCH}, **SAME_BITS)
    assert llm.engine.parts.drafter._own.model is llm.engine.parts.model
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    (out,) = llm.generate([list(prompt(10))], params)[0].outputs
    expected = rig(max_position=apparatus.CONTEXT).plain(Job(prompt(10), 64, logprobs=None))
    assert tuple(out.token_ids) == expected.token_ids
    assert out.metrics["speculative_decoding"]["draft_acceptance_rate"] == 1.0
    llm.close()


@pytest.mark.parametrize("kind", ["mamba", "jamba", "recurrent_gemma"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_v65_recurrent_models_are_refused_by_name(kind: str, role: str, tmp_path: Path) -> None:
    """V65: state that cannot be rolled back, as target or as draft: an error that names the
    type."""
    folder = tmp_path / "recurrent"
    shutil.copytree(apparatus.target(), folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": kind, "architectures": [kind.title() + "ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    model = str(folder) if role == "target" else str(apparatus.target())
    speculation = {"model": str(folder)} if role == "draft" else None
    with pytest.raises(UnsupportedModel, match=kind):
        LLM(model, speculative_config=speculation)
