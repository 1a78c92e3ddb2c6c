"""Every field that OpenAI's client can send is in our table: honoured, or refused by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from openai.types import chat
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from foreword.errors import RequestError
from foreword.params import SamplingParams
from foreword.serve import messages
from foreword.serve.admit import admit_chat, admit_completion
from foreword.serve.common import StreamOptions
from foreword.serve.convert import LIBRARY_ONLY
from foreword.serve.refused import REFUSED
from foreword.serve.requests import REQUESTS
from foreword.serve.table import table

ADMIT = {"completions": admit_completion, "chat/completions": admit_chat}
SMALLEST: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "x"},
    "chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}


def client_fields(module: Any) -> set[str]:
    found: set[str] = set()
    for name in ("CompletionCreateParamsNonStreaming", "CompletionCreateParamsStreaming"):
        found |= set(get_type_hints(getattr(module, name), include_extras=True))
    return found


CLIENT = {
    "completions": client_fields(completion_params),
    "chat/completions": client_fields(chat_params),
}


@pytest.mark.parametrize("endpoint", list(REQUESTS))
def test_every_field_of_the_client_is_honoured_or_refused_by_name(endpoint: str):
    assert len(CLIENT[endpoint]) >= 17
    honoured, refused = set(REQUESTS[endpoint].model_fields), set(REFUSED[endpoint])
    assert not honoured & refused
    missing = CLIENT[endpoint] - honoured - refused
    assert not missing, f"say what {sorted(missing)} do, in serve/requests.py or serve/refused.py"
    said = {n for n, i in REQUESTS[endpoint].model_fields.items() if _source(i) == "OpenAI"}
    said |= {name for name, entry in REFUSED[endpoint].items() if entry.source == "OpenAI"}
    assert said - {"response_format"} <= CLIENT[endpoint], "named OpenAI's, and it is not"


def _source(info: Any) -> str:
    return str(info.json_schema_extra["source"])


@pytest.mark.parametrize("endpoint", list(REQUESTS))
def test_refused_fields_are_refused_and_neutral_values_pass(endpoint: str):
    for name, entry in REFUSED[endpoint].items():
        body = {**SMALLEST[endpoint], name: {"anything": 1}}
        with pytest.raises(RequestError, match=f"^{name} is not supported: ") as caught:
            ADMIT[endpoint](body)
        assert caught.value.parameter == name
        for value in (None, *entry.neutral):
            ADMIT[endpoint]({**body, name: value})


@pytest.mark.parametrize("endpoint", list(REQUESTS))
def test_null_is_a_field_not_given(endpoint: str):
    model = REQUESTS[endpoint]
    empty = dict.fromkeys(set(model.model_fields) - set(SMALLEST[endpoint]))
    given = ADMIT[endpoint]({**empty, **SMALLEST[endpoint]})
    assert given == ADMIT[endpoint](SMALLEST[endpoint])


def test_every_sampling_parameter_has_a_name_in_a_body():
    """A parameter added to SamplingParams is added to serve/common.py, or it is library only."""
    for endpoint, model in REQUESTS.items():
        missing = {item.name for item in fields(SamplingParams)} - set(model.model_fields)
        assert missing == LIBRARY_ONLY, endpoint
    assert set(REFUSED["completions"]) >= LIBRARY_ONLY


def typed_dicts(kind: Any) -> list[Any]:
    """The TypedDicts of a union."""
    if get_origin(kind) is None:
        return [kind]
    return [found for part in get_args(kind) for found in typed_dicts(part)]


def test_every_field_of_a_message_is_honoured_or_refused():
    kinds = typed_dicts(chat.ChatCompletionMessageParam)
    assert len(kinds) == 6
    for kind in kinds:
        (role,) = get_args(get_type_hints(kind)["role"])
        known = messages.HONOURED.get(role, frozenset()) | set(messages.REFUSED.get(role, {}))
        if role != "function":  # refused as a whole
            assert set(get_type_hints(kind)) <= known, role


def test_the_fields_of_nested_objects():
    options = set(get_type_hints(chat.ChatCompletionStreamOptionsParam))
    assert options <= set(StreamOptions.model_fields)
    part = set(get_type_hints(chat.ChatCompletionContentPartTextParam))
    assert part - messages.PART == {"prompt_cache_breakpoint"}  # refused, test_serve_convert.py


def test_the_page_is_the_table():
    page = Path(__file__).parents[2] / "docs" / "openai_fields.md"
    assert page.read_text(encoding="utf-8") == table(), (
        "python -m foreword.serve.table > docs/openai_fields.md"
    )
    for endpoint, model in REQUESTS.items():
        for name in [*model.model_fields, *REFUSED[endpoint]]:
            assert f"| `{name}` |" in table()
