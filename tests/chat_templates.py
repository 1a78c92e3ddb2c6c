"""Chat templates written for the tests, in the shapes that families of models use."""

from __future__ import annotations

from typing import Any

TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

# Hermes and Qwen2.5: schemas in the system turn, calls between tags, results as a user's turn.
HERMES = (
    "{% if tools %}<|im_start|>system\nTools:\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    'Answer or call: <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n'
    "{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n"
    "{% elif m.tool_calls %}<|im_start|>assistant\n{{ m.content }}{% for c in m.tool_calls %}"
    '\n<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
    "{% else %}" + TURN + "{% endif %}{% endfor %}" + OPEN
)

# Qwen3: the same with thoughts; `enable_thinking` false writes an empty one.
QWEN3 = (
    HERMES + "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)

# A model that always thinks: the prompt opens the thought.
THINKING = HERMES + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"

# Llama 3.1: schemas in the first user turn, one call as bare JSON, results as ipython.
LLAMA31 = (
    "{{ bos_token }}{% for m in messages %}"
    "<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{% if tools and loop.first %}Call a function as "
    '{"name": function name, "parameters": dictionary of argument name and its value}.\n'
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n{% endfor %}{% endif %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
    "{% else %}{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

# Llama 3.2 and 4: calls as Python.
PYTHONIC = (
    "{% if tools %}Call as [func_name1(a=1), func_name2()].\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}" + TURN + "{% endfor %}" + OPEN
)

# Qwen3-Coder: tags all the way down.
CODER = (
    "{% if tools %}<tools>{% for t in tools %}{{ t.function.name }} {% endfor %}</tools>"
    "<tool_call>\n<function=example>\n</function>\n</tool_call>\n{% endif %}"
    "{% for m in messages %}" + TURN + "{% endfor %}" + OPEN
)

STYLES = {
    "hermes": HERMES,
    "llama3_json": LLAMA31,
    "pythonic": PYTHONIC,
    "qwen3_coder": CODER,
}


def tool(name: str, strict: bool | None = None, **properties: Any) -> dict[str, Any]:
    """A function that takes the given properties, the first of them required."""
    function: dict[str, Any] = {
        "name": name,
        "description": f"{name} for you",
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:1],
        },
    }
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer"})
NOW = tool("now")
TOOLS = [WEATHER, NOW]
HELLO = [{"role": "user", "content": "Hello"}]


def called(arguments: Any, name: str = "get_weather") -> dict[str, Any]:
    """An assistant's turn that calls."""
    function = {"name": name, "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
