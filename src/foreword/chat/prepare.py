"""One chat request made ready: prompt ids, how its replies are read, what form they must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foreword.chat import reasoning
from foreword.chat._grammar import quoted
from foreword.chat.constraint import constrain
from foreword.chat.events import Style
from foreword.chat.names import guess_style, load_style, reasoning_name, style_names
from foreword.chat.reply import ReplyForm
from foreword.chat.tools import ToolUse, read_tools
from foreword.errors import RequestError
from foreword.params import SamplingParams
from foreword.text.template import chat_template, encode_chat, template_variables
from foreword.text.tokenizer import Tokenizer

_TAIL = 16  # tokens of the prompt's end that are looked at for an open thought
_OURS = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "strftime_now"}


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a chat may say beside its messages; see `LLM.chat`."""

    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    strict: bool = False
    date: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for an unknown parser."""
        if self.tool_call_parser is not None:
            load_style(self.tool_call_parser)
        reasoning_name(self.reasoning_parser, "")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, ready to submit."""

    ids: list[int]
    params: SamplingParams
    form: ReplyForm


def prepare(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    options: ChatOptions,
) -> ChatPrompt:
    """Raises RequestError naming the field at fault, ConfigError for an unknown parser."""
    use = read_tools(options.tools, options.tool_choice, options.parallel_tool_calls)
    template = options.chat_template or chat_template(tokenizer, use.shown)
    kwargs = _kwargs(template, options.chat_template_kwargs or {})
    style = _style(template, use, options.tool_call_parser)
    ids = encode_chat(
        tokenizer,
        messages,
        template=template,
        tools=use.shown or None,
        strict=options.strict,
        date=options.date,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
        **kwargs,
    )
    tail = tokenizer.decode(ids[-_TAIL:], skip_special_tokens=False)
    thinks = reasoning_name(options.reasoning_parser, template) is not None
    thinks = thinks and not reasoning.closed_by(tail)
    opened = thinks and reasoning.opened_by(tail)

    def literal(marker: str) -> str:
        special = tokenizer.raw.token_to_id(marker) in tokenizer.special_ids
        return marker if special else quoted(marker)

    asked = params.structured_outputs
    wanted = constrain(style, use, asked, thinks, opened, literal)
    if wanted is not asked:
        params = replace(params, structured_outputs=wanted)
    return ChatPrompt(ids, params, ReplyForm(style, use.schemas, thinks, opened, use.many))


def _kwargs(template: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for the template, refused when it would not read them."""
    if not isinstance(given, Mapping):
        raise RequestError("chat_template_kwargs must be a mapping", "chat_template_kwargs")
    known = template_variables(template)
    for name in given:
        where = f"chat_template_kwargs.{name}"
        if name in _OURS or not isinstance(name, str):
            raise RequestError(f"{where} has a field of its own or is set by the model", where)
        if known is not None and name not in known:
            raise RequestError(
                f"{where}: this model's chat template has no such variable; drop it", where
            )
    return dict(given)


def _style(template: str, use: ToolUse, asked: str | None) -> Style | None:
    if use.mode == "none":
        return None
    known = template_variables(template)
    if known is not None and "tools" not in known:
        raise RequestError(
            "this model's chat template does not show tools to the model; drop tools, or give a"
            " chat_template that does",
            "tools",
        )
    name = asked or guess_style(template)
    if name is None:
        raise RequestError(
            "this model's chat template teaches no known style of tool calls; name one with"
            f" tool_call_parser: {', '.join(style_names())}",
            "tools",
        )
    return load_style(name)
