"""The one check every text passes at the door: it must be Unicode that UTF-8 can hold.

JSON may carry half of a surrogate pair ("\\ud800"); Python keeps it in a `str`, the tokenizer
cannot encode it. Knows nothing about tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foreword.errors import RequestError


def check_text(text: str, parameter: str) -> None:
    """Raises RequestError naming `parameter` and the position of an unpaired surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise RequestError(
            f"{parameter} holds an unpaired surrogate (U+{code:04X}) at character {error.start}; "
            "send valid Unicode",
            parameter,
        ) from None


def check_texts(value: Any, parameter: str) -> None:
    """`check_text` on every string of a nest of mappings and lists, keys included."""
    if isinstance(value, str):
        check_text(value, parameter)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_texts(key, parameter)
            check_texts(item, parameter)
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_texts(item, parameter)
