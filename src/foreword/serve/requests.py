"""The bodies of /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from foreword.serve.common import OURS, VLLM, CommonRequest, field


class CompletionRequest(CommonRequest):
    """Body of /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]] = field(
        "text, ids, or a list", default=...
    )
    echo: bool | None = field("the prompt comes before the text")
    logprobs: int | None = field("alternatives of each token")


class ChatCompletionRequest(CommonRequest):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = field("the conversation", default=...)
    max_completion_tokens: int | None = field("as max_tokens")
    logprobs: bool | None = field("log-probabilities of the tokens")
    top_logprobs: int | None = field("alternatives of each token; needs logprobs")
    tools: list[dict[str, Any]] | None = field("functions the model may call")
    tool_choice: str | dict[str, Any] | None = field(
        "none, auto, required, a function, allowed_tools: enforced"
    )
    parallel_tool_calls: bool | None = field("false: one call at most")
    reasoning_effort: str | None = field(
        "given to a template that reads it, or as its enable_thinking; else refused"
    )
    metadata: dict[str, str] | None = field("recorded with the request")
    safety_identifier: str | None = field("recorded with the request")
    prompt_cache_key: str | None = field("recorded; equal prefixes are found without a key")

    chat_template: str | None = field("instead of the model's; sandboxed", VLLM)
    chat_template_kwargs: dict[str, Any] | None = field("variables that the template reads", VLLM)
    documents: list[dict[str, Any]] | None = field("given to a template that reads them", VLLM)
    add_generation_prompt: bool | None = field("open the assistant's turn; default true", VLLM)
    continue_final_message: bool | None = field("go on with the last message", VLLM)
    include_reasoning: bool | None = field("false: reasoning is left out of the answer", VLLM)
    strict: bool | None = field("text of messages never becomes a control token", OURS)
    date: str | None = field("YYYY-MM-DD for templates that ask; default today", OURS)


REQUESTS: dict[str, type[CommonRequest]] = {
    "completions": CompletionRequest,
    "chat/completions": ChatCompletionRequest,
}
