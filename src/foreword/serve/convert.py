"""A request of either endpoint as what the engine's door takes: a `Job`.

Every field of the schema ends here, in `SamplingParams`, in `ChatOptions` or in the Job itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from foreword.chat.prepare import ChatOptions
from foreword.errors import RequestError
from foreword.params import SamplingParams, StructuredOutput
from foreword.serve.common import CommonRequest, ResponseFormat
from foreword.serve.messages import admit_messages
from foreword.serve.requests import ChatCompletionRequest, CompletionRequest
from foreword.text.template import template_variables
from foreword.types import Handling

LIBRARY_ONLY = {"logits_processors", "arithmetic_code"}  # parameters that no body holds
_SAME = (
    {item.name for item in fields(SamplingParams)}
    - LIBRARY_ONLY
    - {
        "logprobs",
        "structured_outputs",
        "logit_bias",
        "max_tokens",
    }
)


class UnknownModel(RequestError):
    """The request names a model that is not served here (a server answers 404)."""


@dataclass(frozen=True, slots=True)
class DraftWish:
    """How a request wants to be drafted. limit: nodes a step at most, None = as the engine does."""

    method: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How the answer is to look. alternatives: of each token in logprobs, None: no logprobs."""

    stream: bool = False
    usage: bool = False  # a last event with the usage
    usage_always: bool = False  # in every event
    echo: bool = False
    alternatives: int | None = None
    token_ids: bool = False
    tokens_as_ids: bool = False
    reasoning: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready for the door. prompts: text or ids, of completions; messages and chat: of a
    chat. seconds: from its arrival on, in which it should be done. labels: for the log."""

    model: str
    adapter: str | None
    params: SamplingParams
    prompts: tuple[str | tuple[int, ...], ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    chat: ChatOptions | None = None
    add_special_tokens: bool = True
    answer: Answer = Answer()
    request_id: str | None = None
    priority: int = 0
    salt: str = ""
    seconds: float | None = None
    draft: DraftWish = DraftWish()
    labels: Mapping[str, Any] = field(default_factory=dict)

    def handling(self, arrived: float) -> Handling:
        """`arrived`: time.monotonic() when the request came."""
        deadline = None if self.seconds is None else arrived + self.seconds
        return Handling(self.salt, self.priority, deadline, self.draft.limit)


@dataclass(frozen=True, slots=True)
class Served:
    """What a server answers for. models: name -> adapter (None: the model itself), the model's own
    name first. template: its chat template, None: it has none. drafters: methods a request may
    name."""

    models: Mapping[str, str | None]
    template: str | None = None
    drafters: frozenset[str] = frozenset({"none"})
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None


def completion_job(request: CompletionRequest, served: Served) -> Job:
    """Raises RequestError naming the field."""
    params = _params(request, request.logprobs, 16)
    if request.echo and request.logprobs is not None:
        params.setdefault("prompt_logprobs", request.logprobs)
    answer = _answer(request, alternatives=request.logprobs, echo=bool(request.echo))
    prompts = _prompts(request.prompt)
    special = request.add_special_tokens is not False
    return Job(
        **_shared(request, served, params),
        prompts=prompts,
        add_special_tokens=special,
        answer=answer,
        labels=_labels(request, "user"),
    )


def chat_job(request: ChatCompletionRequest, served: Served) -> Job:
    """Raises RequestError naming the field."""
    if request.add_special_tokens:
        raise RequestError(
            "add_special_tokens: the chat template writes them; drop it", "add_special_tokens"
        )
    limit = request.max_completion_tokens
    if None not in (limit, request.max_tokens) and limit != request.max_tokens:
        raise RequestError("max_tokens and max_completion_tokens differ; give one", "max_tokens")
    alternatives = _alternatives(request)
    params = _params(request, alternatives, limit)
    answer = _answer(
        request, alternatives=alternatives, reasoning=request.include_reasoning is not False
    )
    return Job(
        **_shared(request, served, params),
        messages=tuple(admit_messages(request.messages)),
        chat=_chat(request, served),
        answer=answer,
        labels=_labels(request, "user", "metadata", "safety_identifier", "prompt_cache_key"),
    )


def _shared(request: CommonRequest, served: Served, params: dict[str, Any]) -> dict[str, Any]:
    model = request.model if request.model is not None else next(iter(served.models))
    if model not in served.models:
        known = ", ".join(served.models)
        raise UnknownModel(f"model {model!r:.80} is not served here; there is: {known}", "model")
    if request.deadline_ms is not None and not request.deadline_ms > 0:
        raise RequestError("deadline_ms must be > 0", "deadline_ms")
    return {
        "model": model,
        "adapter": served.models[model],
        "params": SamplingParams(**params),
        "request_id": request.request_id,
        "priority": request.priority or 0,
        "salt": request.cache_salt or "",
        "seconds": None if request.deadline_ms is None else request.deadline_ms / 1000.0,
        "draft": _draft(request, served),
    }


def _params(request: CommonRequest, logprobs: int | None, limit: int | None) -> dict[str, Any]:
    """Arguments of SamplingParams. limit: max_tokens where the body has none."""
    given = {
        name: value
        for name in _SAME & set(type(request).model_fields)
        if (value := getattr(request, name)) is not None
    }
    return {
        **given,
        "max_tokens": limit if request.max_tokens is None else request.max_tokens,
        "logprobs": logprobs,
        "logit_bias": _bias(request.logit_bias),
        "structured_outputs": _structured(request),
    }


def _bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    for token in bias:
        if not (token.isascii() and token.isdigit()):
            raise RequestError(f"logit_bias has key {token!r:.40}, not a token id", "logit_bias")
    return {int(token): value for token, value in bias.items()}


def _structured(request: CommonRequest) -> StructuredOutput | None:
    """The one form that the body asks for, whichever way."""
    forms: dict[str, dict[str, Any]] = {}
    if request.structured_outputs is not None:
        forms["structured_outputs"] = request.structured_outputs.model_dump(
            exclude_none=True, by_alias=True
        )
    for kind in ("json", "regex", "choice", "grammar"):
        if (value := getattr(request, f"guided_{kind}")) is not None:
            forms[f"guided_{kind}"] = {kind: value}
    if request.response_format is not None and request.response_format.type != "text":
        forms["response_format"] = _response_format(request.response_format)
    if len(forms) > 1:
        raise RequestError(f"{' and '.join(forms)} exclude each other; give one", min(forms))
    return StructuredOutput(**next(iter(forms.values()))) if forms else None


def _response_format(wanted: ResponseFormat) -> dict[str, Any]:
    if wanted.type == "json_object":
        return {"json_object": True}
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    if schema is None:
        raise RequestError(
            "response_format of type json_schema needs json_schema.schema",
            "response_format.json_schema",
        )
    return {"json": schema}


def _alternatives(request: ChatCompletionRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    return None


def _answer(request: CommonRequest, **more: Any) -> Answer:
    options = request.stream_options
    if options is not None and not request.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    if options is not None and options.include_obfuscation:
        where = "stream_options.include_obfuscation"
        raise RequestError(f"{where} is not supported; drop it or set it to false", where)
    return Answer(
        stream=bool(request.stream),
        usage=bool(options and options.include_usage),
        usage_always=bool(options and options.continuous_usage_stats),
        token_ids=bool(request.return_token_ids),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        **more,
    )


def _draft(request: CommonRequest, served: Served) -> DraftWish:
    wish = request.speculative
    if wish is None:
        return DraftWish()
    if wish.method is not None and wish.method not in served.drafters:
        known = ", ".join(sorted(served.drafters))
        raise RequestError(
            f"speculative.method {wish.method!r:.40} is not loaded; there is: {known}",
            "speculative.method",
        )
    off = wish.enabled is False or wish.method == "none"
    return DraftWish(wish.method, 0 if off else wish.num_speculative_tokens)


def _prompts(prompt: Any) -> tuple[str | tuple[int, ...], ...]:
    """One prompt or a list of them, as a list of them."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise RequestError("prompt is empty; give it at least one token", "prompt")
    if isinstance(prompt[0], int):
        return (tuple(prompt),)
    return tuple(one if isinstance(one, str) else tuple(one) for one in prompt)


def _chat(request: ChatCompletionRequest, served: Served) -> ChatOptions:
    kwargs = dict(request.chat_template_kwargs or {})
    if request.documents is not None:
        kwargs["documents"] = request.documents
    kwargs.update(_effort(request, served))
    return ChatOptions(
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        chat_template=request.chat_template,
        chat_template_kwargs=kwargs,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        strict=bool(request.strict),
        date=request.date,
        tool_call_parser=served.tool_call_parser,
        reasoning_parser=served.reasoning_parser,
    )


def _effort(request: ChatCompletionRequest, served: Served) -> dict[str, Any]:
    """reasoning_effort in the words of the template."""
    effort = request.reasoning_effort
    if effort is None:
        return {}
    template = request.chat_template or served.template
    known = (template_variables(template) if template else None) or frozenset()
    if "reasoning_effort" in known:
        return {"reasoning_effort": effort}
    if "enable_thinking" in known:
        return {"enable_thinking": effort != "none"}
    raise RequestError(
        "reasoning_effort: this model's chat template has no such variable; drop it",
        "reasoning_effort",
    )


def _labels(request: CommonRequest, *names: str) -> dict[str, Any]:
    pairs = {name: getattr(request, name) for name in names}
    return {name: value for name, value in pairs.items() if value is not None}
