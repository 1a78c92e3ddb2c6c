"""Messages to prompt text, by a model's own chat template, and on to prompt ids.

The date a template may ask for is an argument, never the clock: it belongs to the receipt. Control
text that someone typed into a message ("<|im_end|>") becomes the control token by default, as in
other engines; in strict mode it stays text (strict.py). Knows no model.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from foreword.errors import RequestError
from foreword.text.checks import check_texts
from foreword.text.messages import Message, normalise, normalise_tools
from foreword.text.sandbox import (
    BUDGET,
    BUDGET_PER_CHARACTER,
    BUDGET_PER_MESSAGE,
    METER,
    ChatEnvironment,
    Meter,
    compile_template,
)
from foreword.text.strict import strict_encoder
from foreword.text.tokenizer import Tokenizer

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")

_DATE_FUNCTION = "strftime_now"
_MARKS = [chr(code) for code in range(0xFDE0, 0xFDF0)]  # noncharacters, never in real text


def uses_date(template: str) -> bool:
    """Whether the template may ask for the date, so that the caller gives one and records it."""
    return _DATE_FUNCTION in template


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    date: datetime.date | str | None = None,
    bos_token: str | None = "",
    eos_token: str | None = "",
    **variables: Any,
) -> str:
    """The prompt text. Encode it without adding special tokens: the template wrote them.

    add_generation_prompt: open the assistant's turn; None = yes, unless a message is continued.
    continue_final_message: leave the last message open. Its trailing blanks are kept even when the
    template trims. date: a date or "YYYY-MM-DD" for `strftime_now`; without one that function is
    undefined. variables: more names for the template.
    Raises RequestError for malformed messages and for whatever the template raises.
    """
    if continue_final_message and add_generation_prompt:
        raise RequestError(
            "add_generation_prompt and continue_final_message exclude each other; set one to false",
            "continue_final_message",
        )
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    chat = normalise(messages)
    check_texts(variables, "chat_template_kwargs")
    names: dict[str, Any] = {
        **variables,
        "tools": normalise_tools(tools),
        "documents": variables.get("documents"),
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token or "",
        "eos_token": eos_token or "",
    }
    if date is not None:
        names[_DATE_FUNCTION] = _moment(date).strftime
    if not continue_final_message:
        return _run(template, chat, names)
    mark, blanks = _mark_end(chat)
    text, found, _ = _run(template, chat, names).rpartition(mark)
    if not found:
        raise RequestError(
            "the chat template leaves out the last message, so it cannot be continued",
            "continue_final_message",
        )
    return text + blanks


@functools.lru_cache(maxsize=64)
def template_variables(template: str) -> frozenset[str] | None:
    """Names that a template reads from outside; None when it does not parse."""
    try:
        return frozenset(meta.find_undeclared_variables(ChatEnvironment().parse(template)))
    except TemplateError:
        return None


def chat_template(tokenizer: Tokenizer, tools: object = None) -> str:
    """The model's template; its "tool_use" one when tools are given and it has one.

    Raises RequestError when the model has none.
    """
    templates = tokenizer.chat_templates
    name = "tool_use" if tools and "tool_use" in templates else "default"
    if name not in templates:
        raise RequestError(
            "this model has no chat template; give one, or send a plain prompt to generate",
            "chat_template",
        )
    return templates[name]


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    strict: bool = False,
    **options: Any,
) -> list[int]:
    """Prompt ids of a chat. `template`: instead of the model's own; `options`: see `render`."""
    source = template if template is not None else chat_template(tokenizer, tools)
    names: dict[str, Any] = {role: tokenizer.role_text(role) or "" for role in ROLES}
    if not strict:
        return tokenizer.encode(
            render(source, messages, tools=tools, **names, **options), add_special_tokens=False
        )
    encoder = strict_encoder(tokenizer)
    messages, tools = encoder.protect(normalise(messages)), encoder.protect(tools)
    return encoder.encode(
        render(source, messages, tools=tools, **names, **encoder.protect(options))
    )


def _mark_end(chat: list[Message]) -> tuple[str, str]:
    """Put a mark where the last message's text ends; returns it and the blanks it stands for."""
    content: str = chat[-1]["content"]
    mark = next((mark for mark in _MARKS if all(mark not in repr(item) for item in chat)), None)
    if mark is None:
        raise RequestError("messages hold every noncharacter U+FDE0..U+FDEF", "messages")
    body = content.rstrip()
    chat[-1]["content"] = body + mark
    return mark, content[len(body) :]


def _run(template: str, chat: list[Message], names: Mapping[str, Any]) -> str:
    size = sum(len(message["content"]) for message in chat)
    meter = Meter(BUDGET + BUDGET_PER_MESSAGE * len(chat) + BUDGET_PER_CHARACTER * size)
    try:
        text: str = compile_template(template).render({**names, "messages": chat, METER: meter})
    except TemplateSyntaxError as error:
        problem = f"does not parse: line {error.lineno}: {error.message}"
    except SecurityError as error:
        problem = f"is not allowed: {error}"
    except UndefinedError as error:
        hint = "; give a date" if _DATE_FUNCTION in str(error) else ""
        problem = f"failed: {error}{hint}"
    except TemplateError as error:
        problem = f"refuses these messages: {error}"
    except RecursionError:
        problem = "recurses without end"
    except Exception as error:  # whatever a template's expressions raise is the request's problem
        problem = f"failed: {type(error).__name__}: {error}"
    else:
        return text
    line = problem.splitlines()[0][:500]
    raise RequestError(f"the chat template {line}", "messages") from None


def _moment(date: datetime.date | str) -> datetime.datetime:
    if isinstance(date, str):
        try:
            date = datetime.date.fromisoformat(date)
        except ValueError:
            raise RequestError(f"date must be YYYY-MM-DD, got {date!r}", "date") from None
    return datetime.datetime(date.year, date.month, date.day)
