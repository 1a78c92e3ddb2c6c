"""Lets a command take whole dataclasses of options: each field becomes an option of the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function`, whose dataclass parameters are spread out in the wrapper's signature.

    Fields carry their typer.Option in `Annotated`. Every other parameter is passed on as it is.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            assert isinstance(kind, type)
            groups[parameter.name] = kind
            parameters += _spread(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))

    def command(**values: Any) -> Any:
        for name, kind in groups.items():
            values[name] = kind(**{item.name: values.pop(item.name) for item in fields(kind)})
        return function(**values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__module__ = function.__module__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


def _spread(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in fields(kind)
    ]
