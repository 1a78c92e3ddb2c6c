"""Fields that both endpoints share: OpenAI's, and the further ones that vLLM's users send.

null is a field not given. What a field does to the logits is said in `SamplingParams`, whose names
these are; the descriptions make docs/openai_fields.md.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

OPENAI, VLLM, OURS = "OpenAI", "vLLM", "Foreword"


def field(meaning: str, source: str = OPENAI, default: Any = None) -> Any:
    """A field with its line in the table; `source`: whose clients send it."""
    return Field(default, description=meaning, json_schema_extra={"source": source})


class Strict(BaseModel):
    """No conversion between types, no unknown names."""

    model_config = ConfigDict(strict=True, extra="forbid")


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(Strict):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Structured(Strict):
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Speculative(Strict):
    """How this request is to be drafted: can change speed only."""

    enabled: bool | None = None
    method: str | None = None
    num_speculative_tokens: int | None = Field(None, ge=0)


class CommonRequest(Strict):
    model: str | None = field("the served model's name, or an adapter's")
    temperature: float | None = field("0 is greedy; default: the model's generation config")
    top_p: float | None = field("nucleus")
    n: int | None = field("samples; sample i uses the i-th seed derived from `seed`")
    seed: int | None = field("0 .. 2^64-1; one is drawn and reported when it is missing")
    stop: str | list[str] | None = field("strings that end the text")
    presence_penalty: float | None = field("of tokens that were emitted")
    frequency_penalty: float | None = field("times how often a token was emitted")
    logit_bias: dict[str, float] | None = field("token id -> added to its logit")
    max_tokens: int | None = field("output tokens at most (chat: until the context ends)")
    stream: bool | None = field("server-sent events")
    stream_options: StreamOptions | None = field(
        "include_usage, continuous_usage_stats; include_obfuscation: false only"
    )
    user: str | None = field("recorded with the request")

    response_format: ResponseFormat | None = field("text, json_object, json_schema: enforced")
    structured_outputs: Structured | None = field(
        "json, json_object, regex, choice or grammar", VLLM
    )
    guided_json: dict[str, Any] | str | None = field("as structured_outputs.json", VLLM)
    guided_regex: str | None = field("as structured_outputs.regex", VLLM)
    guided_choice: list[str] | None = field("as structured_outputs.choice", VLLM)
    guided_grammar: str | None = field("as structured_outputs.grammar", VLLM)

    best_of: int | None = field("so many samples are made, the n most likely returned", VLLM)
    top_k: int | None = field("0 or -1 = off", VLLM)
    min_p: float | None = field("of the most likely token's probability", VLLM)
    typical_p: float | None = field("locally typical sampling", VLLM)
    repetition_penalty: float | None = field("of tokens of prompt and output", VLLM)
    min_tokens: int | None = field("no end before so many", VLLM)
    stop_token_ids: list[int] | None = field("ids that end the text", VLLM)
    include_stop_str_in_output: bool | None = field("the stop string belongs to the text", VLLM)
    ignore_eos: bool | None = field("the model's end tokens do not end the text", VLLM)
    bad_words: list[str] | None = field("texts that may not come", VLLM)
    allowed_token_ids: list[int] | None = field("nothing else may come", VLLM)
    prompt_logprobs: int | None = field(
        "alternatives of the prompt's tokens, where echo and logprobs ask for those; else refused",
        VLLM,
    )
    skip_special_tokens: bool | None = field("false: special tokens show in the text", VLLM)
    add_special_tokens: bool | None = field(
        "the tokenizer's own BOS and EOS around the prompt (completions: default true)", VLLM
    )
    return_token_ids: bool | None = field("token ids of prompt and output in the answer", VLLM)
    return_tokens_as_token_ids: bool | None = field(
        "logprobs name tokens as token_id:N, which is never ambiguous", VLLM
    )
    request_id: str | None = field("the answer's id", VLLM)
    priority: int | None = field("lower runs first", VLLM)
    cache_salt: str | None = field("the prefix cache and drafters share within a salt only", VLLM)

    xtc_probability: float | None = field("XTC", OURS)
    xtc_threshold: float | None = field("XTC", OURS)
    mirostat_mode: int | None = field("0 or 2", OURS)
    mirostat_tau: float | None = field("surprise aimed at", OURS)
    mirostat_eta: float | None = field("learning rate", OURS)
    dry_multiplier: float | None = field("DRY", OURS)
    dry_base: float | None = field("DRY", OURS)
    dry_allowed_length: int | None = field("DRY", OURS)
    dry_penalty_last_n: int | None = field("DRY", OURS)
    dry_sequence_breakers: list[str] | None = field("DRY", OURS)
    logprobs_mode: str | None = field("raw or processed", OURS)
    sampler: str | None = field("gumbel, or arithmetic: n samples spread by one draw", OURS)
    acceptance: str | None = field("exact, or an approximate rule, which the answer names", OURS)
    acceptance_options: dict[str, Any] | None = field("of the approximate rule", OURS)
    time_limit: float | None = field("seconds after which the text is cut", OURS)
    deadline_ms: float | None = field("by when it should be done: order and draft budget", OURS)
    speculative: Speculative | None = field(
        "enabled, method, num_speculative_tokens: speed only, never the text", OURS
    )
