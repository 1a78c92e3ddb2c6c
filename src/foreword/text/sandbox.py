"""A Jinja environment for chat templates that come with a model: sandboxed and bounded.

Every loop iteration and macro call costs a fixed amount and the number of syntax nodes in its
body; strings cost by length, before they are built. A template that exceeds the budget raises
`TemplateBudget`. Steps are counted, not milliseconds, so the answer does not depend on the
machine's load. Knows no messages.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

BUDGET = 4_000_000  # steps of about a tenth of a microsecond
BUDGET_PER_MESSAGE = 20_000
BUDGET_PER_CHARACTER = 2
MAX_INTEGER_ARGUMENT = 100_000  # widths, counts and exponents handed to calls and filters
METER = "foreword:meter"  # not an identifier, so that no template can name or replace it
_STEPS_PER_CALL = 20
_STEPS_PER_MACRO = 80
_CHARACTERS_PER_STEP = 16
MAX_INDENT = 16
_WIDE_FIELD = re.compile(r"\d{6}")


class TemplateBudget(TemplateError):
    """The template does more work than a chat template can need."""


class Meter:
    """Counts the work of one rendering."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.left = budget

    def charge(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TemplateBudget("it loops, recurses or builds text without end")

    def weigh(self, value: Any) -> None:
        """Charge what writing `value` out would cost, shared parts counted each time."""
        if isinstance(value, str):
            self.charge(1 + len(value) // _CHARACTERS_PER_STEP)
        elif isinstance(value, Mapping):
            self.charge(_STEPS_PER_CALL)
            for key, item in value.items():
                self.weigh(key)
                self.weigh(item)
        elif isinstance(value, (list, tuple, set)):
            self.charge(_STEPS_PER_CALL)
            for item in value:
                self.weigh(item)
        else:
            self.charge(_STEPS_PER_CALL)

    def check_integers(self, values: Any) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > MAX_INTEGER_ARGUMENT:
                raise TemplateBudget(f"it passes {value} as a width or count")


class _Charge(NodeTransformer):
    """Put a charge at the head of every loop and macro body, and meter `~`."""

    def __init__(self, extension: Extension) -> None:
        self.extension = extension

    def _charged(self, node: Any) -> nodes.Node:
        steps = _STEPS_PER_CALL if isinstance(node, nodes.For) else _STEPS_PER_MACRO
        steps += sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        arguments: list[nodes.Expr] = [nodes.ContextReference(), nodes.Const(steps)]
        call = self.extension.call_method("charge", arguments)
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno).set_lineno(node.lineno))
        return node  # type: ignore[no-any-return]

    visit_For = visit_Macro = visit_CallBlock = _charged

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        arguments: list[nodes.Expr] = [nodes.ContextReference(), *node.nodes]
        return self.extension.call_method("concat", arguments).set_lineno(node.lineno)


class Metering(Extension):
    """What the rewritten template calls; and `{% generation %}`, which only marks text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def charge(self, context: Context, steps: int) -> None:
        context[METER].charge(steps)

    def concat(self, context: Context, *values: Any) -> str:
        context[METER].weigh(values)
        return "".join([str(value) for value in values])


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Blocks trimmed and filters as chat templates expect; see the module's docstring."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Metering, "jinja2.ext.loopcontrols"],
            finalize=_weighed_output,
        )
        del self.globals["lipsum"], self.filters["random"]  # a prompt is a function of its messages
        self.globals["raise_exception"] = _raise_exception
        self.filters["tojson"] = _tojson
        self.filters = {name: _metered(name, call) for name, call in self.filters.items()}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        extension = next(item for item in self.iter_extensions() if isinstance(item, Metering))
        return super()._generate(_Charge(extension).visit(source), *args, **kwargs)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(
            f"it reads {attribute!r} of a {type(obj).__name__}, which is not allowed"
        )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter: Meter = context[METER]
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, int) and isinstance(other, (str, list, tuple)):
                    meter.charge(max(one, 0) * len(other))
            if isinstance(left, int) and isinstance(right, int):
                meter.charge((left.bit_length() + right.bit_length()) ** 2 // 4096)
        elif operator == "**":
            meter.check_integers((right,))
            if isinstance(left, int) and isinstance(right, int):
                meter.charge((left.bit_length() * abs(right)) ** 2 // 4096)
        elif operator == "%" and isinstance(left, str):
            _check_format(meter, left, right if isinstance(right, tuple) else (right,))
        elif isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            meter.charge((len(left) + len(right)) // _CHARACTERS_PER_STEP)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)  # str.format is wrapped
        if isinstance(owner, Metering):
            return obj(*args)
        if isinstance(owner, str):
            meter: Meter = context[METER]
            meter.weigh(owner)
            _check_text_call(meter, obj.__name__, owner, args, kwargs)
        return super().call(context, obj, *args, **kwargs)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


@pass_context
def _weighed_output(context: Context, value: Any) -> Any:
    context[METER].weigh(value)
    return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' templates expect it: no HTML escapes, non-ASCII kept."""
    if isinstance(value, Undefined):
        raise TemplateError("tojson of an undefined value")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


# Filters that write their value out as text; the others only look at it.
_WRITERS = {
    *("capitalize", "center", "e", "escape", "forceescape", "format", "indent", "join", "lower"),
    *("pprint", "replace", "reverse", "string", "striptags", "title", "tojson", "trim", "truncate"),
    *("upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"),
}


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` behind the meter. What Jinja passes first (context, environment) is kept."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @functools.wraps(function)
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = context[METER]
        meter.charge(_STEPS_PER_CALL)
        meter.check_integers((*args, *kwargs.values()))
        if name == "join":
            value = list(value)
        if name in _WRITERS:
            meter.weigh(value)
            _check_text_call(meter, name, value, args, kwargs)
        first = {
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }.get(wants, ())
        return function(*first, value, *args, **kwargs)

    return pass_context(run)


def _check_text_call(
    meter: Meter, name: str, text: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Charge a method or filter of a text before it builds a longer one."""
    values = (*args, *kwargs.values())
    meter.check_integers(values)
    if name in ("format", "format_map") and isinstance(text, str):
        _check_format(meter, text, values)
    elif name == "replace" and len(values) >= 2:
        old, new = str(values[0]), str(values[1])
        meter.charge(str(text).count(old) * len(new) // _CHARACTERS_PER_STEP)
    elif name == "join" and values:  # a method of the separator, or a filter of the items
        separator, items = (text, values[0]) if isinstance(text, str) else (values[0], text)
        meter.weigh(items)
        meter.charge(len(str(separator)) * _length(items) // _CHARACTERS_PER_STEP)
    elif name == "tojson" and isinstance(indent := kwargs.get("indent"), int):
        if indent > MAX_INDENT:
            raise TemplateBudget(f"it indents JSON by {indent}; {MAX_INDENT} is the most")
    elif name == "indent" and isinstance(text, str):
        width = values[0] if values else 4
        width = width if isinstance(width, int) else len(str(width))
        meter.charge(width * (text.count("\n") + 1) // _CHARACTERS_PER_STEP)


def _check_format(meter: Meter, text: str, values: Any) -> None:
    meter.check_integers(values if "*" in text else ())
    if _WIDE_FIELD.search(text):
        raise TemplateBudget("a format asks for a field of 100000 characters or more")
    meter.weigh(values)


def _length(value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        return 0


@functools.lru_cache(maxsize=64)
def compile_template(source: str) -> Template:
    """Parse once per text; the compiled template may be rendered from many threads."""
    return ChatEnvironment().from_string(source)
