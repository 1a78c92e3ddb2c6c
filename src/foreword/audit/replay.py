"""Re-derive results from their receipts with plain decoding: same tokens, or where they part.

A file is what `generate --json` prints, one entry of it, or a bare receipt with the prompt given
beside it. What the tokens depend on is checked first: a result of another machine type, model or
numerics version cannot be re-derived here, and the mismatch is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword import machine
from foreword.audit.compare import LOGIC, NUMERICS, ROUNDING
from foreword.beam.params import SHARED, BeamSearchParams
from foreword.build import NUMERICS_VERSION, Progress, load_tokenizer
from foreword.config import from_options
from foreword.errors import ConfigError, ForewordError, RequestError
from foreword.kernels._host import arithmetic_build
from foreword.llm import LLM
from foreword.model.weights.adapter import open_adapter
from foreword.model.weights.checkpoint import Checkpoint
from foreword.model.weights.open import open_checkpoint
from foreword.outputs import CompletionOutput, Logprob, RequestOutput
from foreword.receipt import ids_sha256, logprobs_sha256
from foreword.text.forms import FORM_COMPILER
from foreword.text.template import encode_chat
from foreword.text.tokenizer import Tokenizer
from foreword.types import SamplingParams, TokenLogprobs
from foreword.version import __version__

TYPICAL_LOGIT = 10.0  # magnitude that ROUNDING is taken of where only log-probabilities are known
CUT = ("timeout", "abort", "error")  # finish reasons that a replay cannot have
SEARCHED = ("beam_width", "length_penalty", "early_stopping", "best_first")  # in its receipt


@dataclass(frozen=True, slots=True)
class Record:
    """One result to re-derive. `token_ids` is None for a bare receipt."""

    name: str
    receipt: Mapping[str, Any]
    prompt_ids: list[int] | None
    token_ids: list[int] | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """How it went: `problem` is None when everything agreed; `notes` do not count as problems."""

    name: str
    num_tokens: int
    problem: str | None = None
    notes: tuple[str, ...] = ()


def read_records(path: Path) -> list[Record]:
    """Raises ConfigError naming the file when it holds no receipt."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text; give a file of generate --json") from None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{path}: is not JSON ({error}); give a file of generate --json"
        ) from None
    records = [_record(entry, number) for number, entry in enumerate(_entries(content))]
    if not records:
        raise ConfigError(f"{path}: holds no receipt; give a file of generate --json")
    return records


def _entries(content: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, list):
        for item in content:
            yield from _entries(item)
    elif isinstance(content, dict):
        if isinstance(content.get("receipt"), dict) or "tokens_sha256" in content:
            yield content
        else:
            yield from _entries(content.get("outputs"))


def _record(entry: Mapping[str, Any], number: int) -> Record:
    receipt = entry.get("receipt", entry)
    for key in ("numerics_version", "model", "numerics", "machine", "build", "seed", "sampling",
                "max_model_len", "prompt_sha256", "num_tokens", "tokens_sha256"):  # fmt: skip
        if key not in receipt:
            raise ConfigError(f"the receipt of output {number} has no {key!r}; it is not complete")
    return Record(
        f"output {number}", receipt, entry.get("prompt_token_ids"), entry.get("token_ids")
    )


def replay(
    model: str,
    records: SequenceOf[Record],
    prompt: str | None = None,
    revision: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    adapters: Mapping[str, str] | None = None,
) -> Iterator[Replayed]:
    """Yields one outcome per record; results of one numerics share a loaded model. adapters: name
    -> folder of those that the receipts speak of."""
    checkpoint, adapters = open_checkpoint(model, revision, progress), adapters or {}
    here = facts(checkpoint)
    known = {
        name: open_adapter(Path(folder), checkpoint.config).sha256
        for name, folder in adapters.items()
    }
    llm, loaded = None, None
    try:
        for record in records:
            named = record.receipt.get("exactness", "exact")
            if named != "exact":
                problem = f"cannot be re-derived: it is {named}; only exact results can"
                yield Replayed(record.name, 0, problem, notes(record.receipt))
                continue
            found = mismatches(record.receipt, here) + adapter_mismatch(record.receipt, known)
            if "not_replayable" in record.receipt:
                found.append(f"the tokens depend on {record.receipt['not_replayable']}, which no "
                             "receipt can hold")  # fmt: skip
            if found:
                problem = "cannot be re-derived here: " + "; ".join(found)
                yield Replayed(record.name, 0, problem, notes(record.receipt))
                continue
            wanted = engine_options(record.receipt)
            if wanted != loaded:
                if llm is not None:
                    llm.close()
                llm, loaded = None, None  # released before the next is loaded
                llm = LLM(
                    model,
                    **wanted,
                    revision=revision,
                    threads=threads,
                    adapters=adapters,
                    progress=progress,
                )
                loaded = wanted
            assert llm is not None
            yield _replay_one(llm, record, prompt, adapter_of(record.receipt, known))
    finally:
        if llm is not None:
            llm.close()


def engine_options(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of LLM: what the receipt says decides bits, and plain decoding."""
    numerics = receipt["numerics"]
    return {
        "numerics": numerics["mode"],
        "quantization": numerics.get("quantization"),
        "kv_cache_dtype": numerics["kv_format"],
        "backend": numerics["backend"],
        "isa": numerics.get("isa"),
        "device": numerics["device"],
        "max_model_len": receipt["max_model_len"],
        "max_num_seqs": 1,
        "enable_prefix_caching": False,
        "generation_config": "none",  # the receipt's sampling parameters are complete
        "speculative_config": {"method": "none"},
    }


def facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a receipt says of its model, of the model given now."""
    num_tokens = load_tokenizer(checkpoint).vocab_size
    return {
        "sha256": checkpoint.fingerprint(),
        "vocab_size": min(num_tokens, checkpoint.config.vocab_size),
        "eos_ids": sorted(checkpoint.eos_ids),
    }


def mismatches(receipt: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """What the tokens depend on and is not the same here, one line each."""
    build = arithmetic_build(receipt["numerics"]["device"])
    theirs, ours = receipt["build"], dict(build)
    pairs = [
        ("numerics version", receipt["numerics_version"], NUMERICS_VERSION),
        ("machine type", receipt["machine"], machine.machine_type()),
        *((f"model {key}", receipt["model"].get(key), value) for key, value in model.items()),
        *((key, theirs.get(key), ours.get(key)) for key in sorted({*theirs, *ours})),
    ]
    return [f"{what} is {old} in the receipt, {new} here" for what, old, new in pairs if old != new]


def adapter_of(receipt: Mapping[str, Any], known: Mapping[str, str]) -> str | None:
    """What the adapter of a receipt is called here, by its sha256; its own name goes first."""
    wanted = receipt.get("adapter")
    if wanted is None:
        return None
    named = sorted(known, key=lambda name: name != wanted["name"])
    return next((name for name in named if known[name] == wanted["sha256"]), None)


def adapter_mismatch(receipt: Mapping[str, Any], known: Mapping[str, str]) -> list[str]:
    """One line when the adapter of a receipt is not among those given."""
    wanted = receipt.get("adapter")
    if wanted is None or adapter_of(receipt, known) is not None:
        return []
    name = wanted["name"]
    if name not in known:
        return [f"adapter {name!r} is needed; give it with --lora-modules {name}=FOLDER"]
    return [f"adapter {name!r} sha256 is {wanted['sha256']} in the receipt, {known[name]} here"]


def notes(receipt: Mapping[str, Any]) -> tuple[str, ...]:
    """Another version of the code may give the same bits: said, not held against it."""
    pairs = [(f"foreword {receipt.get('foreword')}", f"foreword {__version__}")]
    if "form_compiler" in receipt:
        pairs.append((receipt["form_compiler"], FORM_COMPILER))
    return tuple(f"made by {made}, this is {here}" for made, here in pairs if made != here)


def _replay_one(
    llm: LLM, record: Record, prompt: str | None, adapter: str | None = None
) -> Replayed:
    receipt = record.receipt

    def outcome(problem: str | None, num_tokens: int = 0) -> Replayed:
        return Replayed(record.name, num_tokens, problem, notes(receipt))

    try:
        prompt_ids = find_prompt(llm.tokenizer, record, prompt)
    except RequestError as error:
        return outcome(str(error))
    if record.token_ids is not None and ids_sha256(record.token_ids) != receipt["tokens_sha256"]:
        return outcome("the token ids in the file are not those of its receipt: one was edited")
    if receipt["num_tokens"] == 0 and not has_prompt_logprobs(receipt):
        return outcome(None)
    try:
        result = again(llm, prompt_ids, receipt, adapter)
    except ForewordError as error:
        return outcome(f"plain decoding failed: {error}")
    (output,) = result.outputs
    problem = compare(record, output) or compare_logprobs(receipt, result)
    return outcome(problem, receipt["num_tokens"])


def has_prompt_logprobs(receipt: Mapping[str, Any]) -> bool:
    """Whether it has them all: a request that was cut before its first token may not."""
    whole = receipt["num_tokens"] > 0 or receipt.get("finish_reason") not in CUT
    return whole and "prompt_logprobs" in receipt


def again(
    llm: LLM, prompt_ids: list[int], receipt: Mapping[str, Any], adapter: str | None = None
) -> RequestOutput:
    """The result that the receipt is of, with its one output. RequestError where a search gives
    fewer than there were."""
    params = sampling_params(receipt)
    beams = receipt.get("beam_search")
    if beams is None:
        (result,) = llm.generate([prompt_ids], params, adapter=adapter)
        return result
    given = {name: getattr(params, name) for name in SHARED}
    given |= {name: beams[name] for name in SEARCHED}
    (found,) = llm.beam_search([prompt_ids], BeamSearchParams(**given), adapter=adapter)
    if beams["index"] >= len(found.outputs):
        many = f"output {beams['index']} in the receipt, {len(found.outputs)} outputs here"
        raise RequestError(f"{many}: {found.error}" if found.error else many)
    found.outputs = [found.outputs[beams["index"]]]
    return found


def sampling_params(receipt: Mapping[str, Any]) -> SamplingParams:
    """The parameters of the one sample; a result that was cut is re-derived as far as it went."""
    asked = receipt.get("logprobs", {"count": 0, "mode": "raw"})
    options = {
        **receipt["sampling"],
        "seed": receipt["seed"],
        "n": 1,
        "logprobs": max(2, asked["count"]),  # two show how close a choice was
        "logprobs_mode": asked["mode"],
    }
    if has_prompt_logprobs(receipt):
        options["prompt_logprobs"] = receipt["prompt_logprobs"]["count"]
    if _was_cut(receipt):
        options["max_tokens"] = receipt["num_tokens"]
        least = options.get("min_tokens", 0)
        options["min_tokens"] = min(least, receipt["num_tokens"])  # it decides what is before
    params: SamplingParams = from_options(SamplingParams, options, "the sampling of a receipt")
    return params


def _was_cut(receipt: Mapping[str, Any]) -> bool:
    """Whether something outside the tokens ended it: a limit, or the reader of its tool calls."""
    return receipt.get("finish_reason") in CUT or receipt.get("ended_by") == "tool_call"


def find_prompt(tokenizer: Tokenizer, record: Record, prompt: str | None) -> list[int]:
    """The prompt ids whose hash the receipt holds: the file's, or those of `prompt` as plain text
    or as a user message. Raises RequestError when none fits."""
    candidates: list[Callable[[], list[int]]] = []
    if record.prompt_ids is not None:
        ids = record.prompt_ids
        candidates.append(lambda: ids)
    if prompt is not None:
        date = record.receipt.get("chat_date")
        message = [{"role": "user", "content": prompt}]
        candidates.append(lambda: tokenizer.encode(prompt))
        if tokenizer.chat_template is not None:
            candidates.append(lambda: encode_chat(tokenizer, message, date=date))
    for candidate in candidates:
        found = candidate()
        if ids_sha256(found) == record.receipt["prompt_sha256"]:
            return found
    if not candidates:
        raise RequestError("the file holds no prompt ids; give the prompt with --prompt", "prompt")
    raise RequestError("the prompt is not the one of the receipt: its sha256 differs", "prompt")


def compare(record: Record, output: CompletionOutput) -> str | None:
    """What differs, or None. With the token ids in the file, the first position is named."""
    receipt = record.receipt
    if ids_sha256(output.token_ids) == receipt["tokens_sha256"]:
        reason, beams = receipt.get("finish_reason"), receipt.get("beam_search")
        if beams is not None and beams["cumulative_logprob"] != output.cumulative_logprob:
            old, new = beams["cumulative_logprob"], output.cumulative_logprob
            return f"the score is {old!r} in the receipt, {new!r} here"
        if _was_cut(receipt) or reason == output.finish_reason:
            return None
        return f"finish reason is {reason} in the receipt, {output.finish_reason} here"
    if record.token_ids is None:
        return "the tokens differ (the file holds no token ids to say where)"
    pairs = enumerate(zip(record.token_ids, output.token_ids, strict=False))
    place = next((at for at, (left, right) in pairs if left != right), None)
    if place is None:
        ends = f"{len(record.token_ids)} tokens in the file, {len(output.token_ids)} here"
        return f"the tokens agree until one ends: {ends}: {LOGIC}"
    assert output.logprobs is not None
    margin = _margin(output.logprobs[place])
    close = margin <= ROUNDING[receipt["numerics"]["mode"]] * TYPICAL_LOGIT
    return (
        f"first difference at output position {place}: {record.token_ids[place]} in the file, "
        f"{output.token_ids[place]} here; top-2 margin {margin:.6g}: {NUMERICS if close else LOGIC}"
    )


def compare_logprobs(receipt: Mapping[str, Any], result: RequestOutput) -> str | None:
    """Whether the bits of the log-probabilities are those of the receipt; the tokens agree."""
    output = result.outputs[0]
    pairs = [
        ("logprobs", output.token_ids, output.logprobs),
        ("prompt_logprobs", result.prompt_token_ids[1:], (result.prompt_logprobs or [None])[1:]),
    ]
    for name, token_ids, rows in pairs:
        if name not in receipt or (name == "prompt_logprobs" and not has_prompt_logprobs(receipt)):
            continue
        entries = [_entry(token, row) for token, row in zip(token_ids, rows or (), strict=True)]
        if logprobs_sha256(entries, receipt[name]["count"]) != receipt[name]["sha256"]:
            return f"the {name} differ, all tokens agree"
    return None


def _entry(token: int, row: Mapping[int, Logprob] | None) -> TokenLogprobs:
    assert row is not None, "only a prompt's first token has none"
    top = tuple((other, one.logprob) for other, one in row.items() if one.rank is not None)
    return TokenLogprobs(token, row[token].logprob, top)


def _margin(row: Mapping[int, Logprob]) -> float:
    """Log-probability of the best minus that of the second best: the margin of their logits."""
    top = sorted((entry.logprob for entry in row.values() if entry.rank is not None), reverse=True)
    return top[0] - top[1] if len(top) > 1 else float("inf")
