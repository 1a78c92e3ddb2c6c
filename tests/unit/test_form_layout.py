"""sample/form_layout.py: the layout of a JSON text, and what it says comes next."""

from __future__ import annotations

import json

import pytest

from foreword.params import StructuredOutput
from foreword.sample.form_layout import JsonLayout
from foreword.sample.form_rule import RequestForm
from form_rig import EOS, FORMS, TOKENIZER

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "code": {"type": "integer"}},
            "required": ["city", "code"],
            "additionalProperties": False,
        },
        "colour": {"enum": ["red"]},
    },
    "required": ["name", "place", "colour"],
    "additionalProperties": False,
}
VALUE = {"name": 'a "b" { c', "place": {"city": "x, y: z", "code": 12}, "colour": "red"}
LAYOUTS = {
    "one line": json.dumps(VALUE),
    "compact": json.dumps(VALUE, separators=(",", ":")),
    "indented": json.dumps(VALUE, indent=2),
    "wide": json.dumps(VALUE, indent=4),
}


def form_of(asked: dict) -> RequestForm:
    form = FORMS.compiled(StructuredOutput(**asked))
    return RequestForm(form, frozenset({EOS}))


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def layout_of(asked: dict) -> JsonLayout:
    form = form_of(asked).form
    matcher = form.compact_matcher()
    assert matcher is not None
    return JsonLayout(matcher, form.vocabulary)


def text_after(layout: JsonLayout, path: tuple[int, ...] = ()) -> str:
    return TOKENIZER.decode(layout.likely(path)[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_rest_of_a_text_comes_in_its_layout(name):
    """Fed one token at a time, every guess of the second half is how the text goes on."""
    layout, text = layout_of({"json": SCHEMA}), LAYOUTS[name]
    ids, guessed = ids_of(text), 0
    for place, token in enumerate(ids):
        said = text_after(layout)
        rest = TOKENIZER.decode(ids[place:])
        if place > len(ids) // 2:
            assert rest.startswith(said), (rest, said)
            guessed += len(said)
        layout.follow([token])
    assert guessed > 20
    assert not layout.lost
    assert layout.likely(())[0] == []
    assert layout._right[1] / layout._made[1] > 0.95


def test_a_path_is_looked_at_and_leaves_no_trace():
    layout = layout_of({"json": SCHEMA})
    start, more = ids_of('{\n  "name": "a"'), ids_of(",")
    layout.follow(start)
    before = text_after(layout)
    assert text_after(layout, tuple(more)) == '\n  "place": {\n    "city": "'
    assert text_after(layout) == before
    layout.follow(more)
    assert text_after(layout) == '\n  "place": {\n    "city": "'


def test_blanks_already_there_are_not_said_again():
    layout = layout_of({"json": SCHEMA})
    layout.follow(ids_of('{\n  "name": "a",\n '))
    assert text_after(layout).startswith(' "place": {')
    layout.follow(ids_of("  "))  # further than the layout says: nothing to be said
    assert text_after(layout) == ""
    assert not layout.lost


def test_a_text_that_is_not_of_the_form_is_lost():
    layout = layout_of({"json": SCHEMA})
    layout.follow(ids_of('{"nope'))
    assert layout.lost
    assert layout.likely(()) == ([], [])
    assert layout.likely(ids_of("a")) == ([], [])


def test_a_scout_says_what_the_layout_says():
    layout = layout_of({"json": SCHEMA})
    layout.follow(ids_of('{"name": "a"'))
    scout = form_of({"json": SCHEMA}).scout()
    scout.follow(ids_of('{"name": "a"'))
    assert scout.likely(ids_of(","))[0] == layout.likely(ids_of(","))[0]
    assert scout.likely(())[0] == layout.likely(())[0]


def test_wrong_guesses_lower_the_chance():
    layout = layout_of({"json": SCHEMA})
    layout.follow(ids_of("{"))
    first = layout.likely(())[1][0]
    layout.follow(ids_of('\n  "name"'))
    tokens, chances = layout.likely(())
    assert len(chances) == len(tokens) > 1
    assert chances[0] < first < chances[1] == chances[-1]


def test_only_json_has_a_layout():
    for asked in ({"regex": "a"}, {"choice": ["a"]}, {"grammar": 'start: "a"'}):
        assert form_of(asked).form.compact_matcher() is None
        assert form_of(asked).scout().likely(()) == ([], [])
    assert form_of({"json_object": True}).scout().likely(())[0] == ids_of("{")
    scout = form_of({"json_object": True}).scout()
    scout.follow([*ids_of("{}"), EOS])
    assert scout.likely(()) == ([], [])
