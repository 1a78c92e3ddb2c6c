"""The form that a text must have, as a request asks for it. What it means: text/forms.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from foreword.errors import RequestError


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """A form the text must have; exactly one field is set.

    json: a JSON schema (mapping or text; kept as text). json_object: any JSON object. regex: a
    regular expression for the whole text. choice: one of these strings. grammar: EBNF text (Lark's
    form, or GBNF).
    """

    json: Mapping[str, Any] | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.choice, list):
            object.__setattr__(self, "choice", tuple(self.choice))
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", _json_text(self.json))
        given = [self.json, self.json_object or None, self.regex, self.choice, self.grammar]
        if sum(item is not None for item in given) != 1:
            raise RequestError(
                "structured output takes exactly one of json, json_object, regex, choice, grammar",
                "structured_outputs",
            )
        self._check_kinds()

    def _check_kinds(self) -> None:
        for name in ("json", "regex", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise _unfit(name, f"must be a non-empty text, got {value!r}")
        if not isinstance(self.json_object, bool):
            raise _unfit("json_object", f"must be true or false, got {self.json_object!r}")
        choice = self.choice
        if choice is None:
            return
        if not isinstance(choice, tuple) or not choice:
            raise _unfit("choice", "must be a list of at least one string")
        if not all(isinstance(text, str) and text for text in choice):
            raise _unfit("choice", "must hold non-empty strings")

    @staticmethod
    def of(value: Any) -> StructuredOutput:
        """The same, or made from a mapping of its fields."""
        if isinstance(value, StructuredOutput):
            return value
        known = [item.name for item in fields(StructuredOutput)]
        if not isinstance(value, Mapping) or not set(value) <= set(known):
            raise RequestError(
                f"structured_outputs must be a mapping with one of {', '.join(known)}",
                "structured_outputs",
            )
        return StructuredOutput(**value)


def _unfit(name: str, reason: str) -> RequestError:
    return RequestError(f"structured_outputs: {name} {reason}", f"structured_outputs.{name}")


def _json_text(schema: Mapping[str, Any]) -> str:
    """Keys keep their order: it is the order of the properties."""
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unfit("json", f"cannot be written as JSON ({error})") from None
