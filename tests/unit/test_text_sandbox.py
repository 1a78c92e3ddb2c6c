"""V76: whatever a template does, the request gets a one-line error, soon."""

from __future__ import annotations

import pytest

from foreword.errors import RequestError
from foreword.text.sandbox import BUDGET, METER, Meter, TemplateBudget, compile_template
from foreword.text.template import render

TALK = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
GROW = "{% set ns = namespace(s='ab', l=['ab'], n=3) %}{% for i in range(99) %}STEP{% endfor %}"

ENDLESS = {
    "long range": "{% for i in range(10**9) %}x{% endfor %}",
    "empty loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "busy loops": "{% for i in range(9999) %}{% for j in range(9999) %}"
    + "{{ i }}" * 50
    + "{% endfor %}{% endfor %}",
    "macro doubling": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "macro recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loop recursion": "{% for i in range(3) recursive %}{{ loop(range(3)) }}{% endfor %}",
    "deep expression": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "repeated text": "{{ 'a' * 10**10 }}",
    "repeated list": "{{ [1] * 10**10 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": GROW.replace("STEP", "{% set ns.n = ns.n * ns.n %}"),
    "sum doubling": GROW.replace("STEP", "{% set ns.s = ns.s + ns.s %}"),
    "joined doubling": GROW.replace("STEP", "{% set ns.s = ns.s ~ ns.s %}"),
    "replace doubling": GROW.replace("STEP", "{% set ns.s = ns.s | replace('a', ns.s) %}"),
    "replace method": GROW.replace("STEP", "{% set ns.s = ns.s.replace('a', ns.s) %}"),
    "join filter": GROW.replace("STEP", "{% set ns.s = [ns.s, ns.s] | join(ns.s) %}"),
    "join method": GROW.replace("STEP", "{% set ns.s = ns.s.join([ns.s, ns.s]) %}"),
    "shared lists shown": GROW.replace("STEP", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
    "shared lists as JSON": GROW.replace("STEP", "{% set ns.l = [ns.l, ns.l] %}")
    + "{{ ns.l | tojson }}",
    "wide filter": "{{ 'a' | center(1000000000) }}",
    "wide method": "{{ 'a'.rjust(1000000000) }}",
    "wide percent": "{{ '%1000000000d' % 1 }}",
    "wide star": "{{ '%*d' % (1000000000, 1) }}",
    "wide format": "{{ '{:1000000000}'.format(1) }}",
    "deep indent": "{{ messages | tojson(indent=1000000) }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_v76_endless_templates_are_stopped_by_counting(name: str):
    """The budget is steps, so this holds on a busy machine too; it is about a second of work."""
    with pytest.raises(RequestError, match="the chat template "):
        render(ENDLESS[name], TALK)


REFUSED = {
    "raise": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "attribute": ("{{ ''.__class__ }}", "not allowed.*__class__"),
    "attribute chain": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "not allowed"),
    "format attribute": ("{{ '{0.__class__}'.format(1) }}", "__class__"),
    "change": ("{{ messages.append(1) }}", "not allowed|not safely callable"),
    "undefined": ("{{ missing.name }}", "'missing' is undefined"),
    "syntax": ("{% if %}", "does not parse: line 1"),
    "unknown filter": ("{{ 1 | nothing }}", "nothing"),
    "type": ("{{ 'a' + 1 }}", "TypeError"),
    "division": ("{{ 1 // 0 }}", "ZeroDivisionError"),
    "include": ("{% include 'x' %}", "failed"),
    "chance": ("{{ [1, 2] | random }}", "random"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_v76_template_errors_are_request_errors(name: str):
    template, message = REFUSED[name]
    with pytest.raises(RequestError, match=message) as caught:
        render(template, TALK)
    assert "\n" not in str(caught.value)


def test_v76_alternation_and_system_role_messages_come_through():
    template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant') }}"
        "{% endif %}{% endfor %}"
    )
    with pytest.raises(RequestError, match="refuses these messages: Conversation roles must"):
        render(template, TALK)
    assert render(template, TALK[:1]) == ""


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% generation %}hi{% endgeneration %}", "hi"),
        ("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in [1,2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "2"),
        ("{{ {'a': 'ü<&>', 'b': none} | tojson }}", '{"a": "ü<&>", "b": null}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ ['a', 'b'] | map('upper') | join('-') }}{{ 'a' ~ 1 ~ none }}", "A-Ba1None"),
        ("{{ ','.join(['x', 'y']) }}{{ ' x ' | trim }}{{ 'a-b'.split('-')[-1] }}", "x,yxb"),
        ("{{ '%s %d' % ('a', 3) }}{{ '{}'.format(1) }}{{ 2 ** 3 * 2 }}", "a 3116"),
        ("{{ messages | selectattr('content', 'equalto', 'b') | list | length }}", "1"),
        ("{%- set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}", "2"),
        (
            "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}{{ messages[::-1][0].content }}",
            "<1>b",
        ),
        ("{% if true %}\n  {% for i in [1] %}\n{{ i }}\n  {% endfor %}\n{% endif %}\n", "1\n"),
        ("{{ missing }}{{ missing is defined }}", "False"),
    ],
)
def test_what_chat_templates_use_works(template: str, text: str):
    assert render(template, TALK) == text


def test_long_chats_fit_the_budget():
    """2000 messages and a megabyte of text are ordinary work."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' and not loop.first %}{{ '\\n' }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' }}{% endfor %}"
    )
    talk = [{"role": "user", "content": "x" * 500}] * 2000
    assert len(render(template, talk)) == 2000 * (500 + 28) - 1
    assert len(render(template, [{"role": "user", "content": "x" * 2_000_000}])) > 2_000_000


def test_the_same_budget_is_spent_every_time():
    spent = set()
    for _ in range(3):
        meter = Meter()
        compile_template("{% for m in messages %}{{ m.content }}{% endfor %}").render(
            {METER: meter, "messages": TALK}
        )
        spent.add(BUDGET - meter.left)
    assert len(spent) == 1
    with pytest.raises(TemplateBudget):
        Meter(3).charge(4)
