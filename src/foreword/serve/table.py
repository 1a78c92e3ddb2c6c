"""docs/openai_fields.md from the schema itself: `python -m foreword.serve.table > docs/...`."""

from __future__ import annotations

from foreword.serve import messages
from foreword.serve.refused import REFUSED
from foreword.serve.requests import REQUESTS

HEADER = """# Every field of the OpenAI schema

What `/v1/completions` and `/v1/chat/completions` do with each field: **honoured**, or **refused**
by name with a 400 before anything runs. An unknown field is refused as well. null is a field not
given. Field lists are checked against the `openai` Python client by a test; this page is made by
`python -m foreword.serve.table`.

"from" says whose clients send a field. Fields of vLLM and Foreword go through `extra_body`.
"""
MESSAGES = """## Messages

`content` is a string or a list of `text` parts (joined with a newline); null only beside
`tool_calls`. Other parts are refused. Arguments of tool calls in the history are JSON objects, as
text or as a mapping. Role `developer` is shown to the template as `system`; `name` is handed to it.
"""


def table() -> str:
    """The page, with a newline at its end."""
    parts = [HEADER, "\n"]
    for endpoint, model in REQUESTS.items():
        parts.append(
            f"## /v1/{endpoint}\n\n| field | from | | what it does, or what to do instead |\n"
        )
        parts.append("|---|---|---|---|\n")
        for name, info in model.model_fields.items():
            extra = info.json_schema_extra
            assert isinstance(extra, dict), name
            parts.append(f"| `{name}` | {extra['source']} | honoured | {info.description} |\n")
        for name, refused in sorted(REFUSED[endpoint].items()):
            accepted = ", ".join(f"`{value!r}`" for value in refused.neutral)
            reason = refused.reason + (f" (accepted: {accepted})" if accepted else "")
            parts.append(f"| `{name}` | {refused.source} | refused | {reason} |\n")
        parts.append("\n")
    parts += [MESSAGES, "\n| role | honoured | refused |\n|---|---|---|\n"]
    for role in [*messages.HONOURED, *sorted(set(messages.REFUSED) - set(messages.HONOURED))]:
        honoured = ", ".join(f"`{name}`" for name in sorted(messages.HONOURED.get(role, ())))
        reasons = messages.REFUSED.get(role, {})
        refused_ = "; ".join(f"`{name}`: {reason}" for name, reason in sorted(reasons.items()))
        parts.append(f"| {role} | {honoured} | {refused_} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(table(), end="")
