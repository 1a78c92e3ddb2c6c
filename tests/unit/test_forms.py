"""text/form_spec.py, form_vocabulary.py and forms.py: what is refused, and what a form allows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers

from foreword.errors import RequestError
from foreword.params import SamplingParams, StructuredOutput
from foreword.text import forms as forms_module
from foreword.text.form_spec import MAX_BYTES, WHITESPACE
from foreword.text.forms import Form, Forms
from foreword.text.tokenizer import Tokenizer
from form_rig import EOS, FORMS, NUM_IDS, TOKENIZER
from text_vocabularies import sentencepiece


def compiled(**asked) -> Form:
    return FORMS.compiled(StructuredOutput(**asked))


def fits(form: Form, text: str) -> bool:
    """Whether the form allows exactly this text, spelled as the tokenizer spells it."""
    matcher = form.matcher()
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


ODD = ["a|b", "(x", "two\nlines", "tab\t.", "q{1}"]
LIST = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        ({"regex": "[a-c]{2,3}"}, ["ab", "abc"], ["a", "abcd", "xy"]),
        ({"choice": ODD}, ODD, ["a", "x", "twonlines", "tab\tx"]),
        ({"json": LIST}, ["[1, 2]", "[]", "[\n  1\n]"], ["[a]", "{}", "[1,  2]"]),
        ({"json_object": True}, ["{}", '{"a": [true, null, {"b": 1.5}]}'], ["[]", "3", '{"a"}']),
        ({"grammar": 'start: "x" item+\nitem: "y" | "z"'}, ["xy", "xyzy"], ["x", "y"]),
        ({"grammar": 'root ::= "x" item+\nitem ::= "y" | "z"'}, ["xy", "xyzy"], ["x", "y"]),
    ],
    ids=["regex", "choice", "json", "json_object", "lark", "gbnf"],
)  # fmt: skip
def test_each_kind_of_form_allows_its_texts_and_no_others(asked, good, bad):
    form = compiled(**asked)
    assert [text for text in good if not fits(form, text)] == []
    assert [text for text in bad if fits(form, text)] == []


def test_v48_whitespace_in_json_is_bounded():
    """V48: at most one space, or a line break and its indentation, wherever JSON allows blanks."""
    form = compiled(json={"type": "object", "properties": {"a": {"type": "integer"}}})
    value = {"a": 1}
    spellings = [json.dumps(value), json.dumps(value, indent=2), '{ "a" :\n1 }', '{"a":1}']
    assert all(fits(form, text) for text in spellings)
    for blank in ("  ", "\t", "\n\n", " \n", "\n" + " " * 65):
        assert not fits(form, '{"a":' + blank + "1}"), repr(blank)
    assert fits(form, '{"a":\n' + " " * 64 + "1}")
    assert WHITESPACE
    matcher = form.matcher()
    for token in TOKENIZER.encode('{"a":\n', add_special_tokens=False):
        assert matcher.consume_token(token)
    (blank,) = TOKENIZER.encode(" ", add_special_tokens=False)
    spaces = 0
    while matcher.validate_tokens([blank]):
        assert matcher.consume_token(blank)
        spaces += 1
    assert spaces == 64


def test_special_tokens_and_ids_without_text_are_no_text():
    vocabulary = compiled(regex="(?s:.*)").vocabulary
    for hidden in (EOS, 1, NUM_IDS - 1, NUM_IDS, -1):
        assert not vocabulary.is_ordinary(hidden)
    bits = np.unpackbits(vocabulary.ordinary, bitorder="little")
    assert bits.sum() == TOKENIZER.vocab_size - 2
    call = TOKENIZER.raw.token_to_id("<call>")
    assert vocabulary.is_ordinary(call)
    assert fits(compiled(choice=["<call>{}"]), "<call>{}")


def test_the_name_of_a_special_token_is_spelled_out():
    form = compiled(choice=["<|end|>"])
    ids = form.vocabulary.spelled("<|end|>")
    assert EOS not in ids
    assert b"".join(map(TOKENIZER.token_bytes, ids)) == b"<|end|>"
    matcher = form.matcher()
    assert matcher.consume_tokens(ids)
    assert matcher.is_accepting()


def test_a_text_that_the_tokenizer_changes_is_spelled_byte_for_byte():
    raw = tokenizers.Tokenizer.from_str(TOKENIZER.raw.to_str())
    raw.normalizer = tokenizers.normalizers.Lowercase()
    vocabulary = (
        Forms(Tokenizer(raw), NUM_IDS, {EOS}).compiled(StructuredOutput(regex="x")).vocabulary
    )
    ids = vocabulary.spelled("The CAT é")
    assert b"".join(vocabulary.tokens[token] for token in ids) == "The CAT é".encode()


LOOP = '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'
NAMES = [f"p{i}" for i in range(5000)]
OPTIONAL = {"type": "object", "properties": dict.fromkeys(NAMES, True)}
ANY_OF = {"anyOf": [{"type": "object", "properties": {name: {}}} for name in NAMES[:2500]]}
ITEMS = {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000}}


def test_a_tokenizer_that_puts_a_space_before_a_text():
    """SentencePiece: the middle of a text is spelled without the space of its beginning."""
    tokenizer = sentencepiece()
    form = Forms(tokenizer, tokenizer.vocab_size, tokenizer.end_ids).compiled(
        StructuredOutput(choice=["the cat", "é 7"])
    )
    for text in ("the cat", " the", "é 7", "\n", "  x", "a", ""):
        ids = form.vocabulary.spelled(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    matcher, found = form.matcher(), b""
    while not matcher.is_accepting():
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8) & form.vocabulary.ordinary
        token = int(np.unpackbits(mask, bitorder="little").nonzero()[0][0])
        assert matcher.consume_token(token)
        found += tokenizer.token_bytes(token)
    assert found.decode() in ("the cat", "é 7")


DEEP = '{"items":' * 5000 + "{}" + "}" * 5000
REFUSED = [
    ("regex", {"regex": "["}, "unclosed character class"),
    ("regex", {"regex": "(?<=x)*"}, "look-around"),
    ("regex", {"regex": "(" * 60_000}, "regex"),
    ("regex", {"regex": "(" * 60_000 + "a" + ")" * 60_000}, "nest"),
    ("regex", {"regex": "[^\\s\\S]"}, "no beginning"),
    ("regex", {"regex": "x" * (MAX_BYTES + 1)}, "bytes, the limit is"),
    ("regex", {"regex": "\ud800"}, "surrogate"),
    ("json", {"json": "{"}, "not valid JSON"),
    ("json", {"json": "3"}, "must be a JSON schema"),
    ("json", {"json": DEEP}, "nested deeper"),
    ("json", {"json": LOOP}, "no beginning"),
    ("json", {"json": {"$ref": "https://example.com/schema"}}, "cannot be compiled"),
    ("json", {"json": {"enum": [f"value {i}" for i in range(100_000)]}}, "bytes"),
    ("json", {"json": OPTIONAL}, "too big"),
    ("json", {"json": ANY_OF}, "too big"),
    ("json", {"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ("json", {"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "minLength"),
    ("json", {"json": False}, "text"),
    ("choice", {"choice": [f"word {i}" for i in range(20_000)]}, "bytes"),
    ("grammar", {"grammar": "start: ]["}, "cannot be"),
    ("grammar", {"grammar": "start: missing"}, "unknown name"),
    ("grammar", {"grammar": 'start: "a" <|start|>'}, "special token"),
    ("grammar", {"grammar": "start: <[1]>"}, "no beginning"),
    ("grammar", {"grammar": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000}, "nested"),
    ("grammar", {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000}, "cannot be"),
    ("grammar", {"grammar": "start: a\na: a | a a"}, "no beginning"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "asked", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_v111_a_bad_or_exploding_form_is_refused_by_name(field, asked, reason):
    """V111: an early error that names the field; nothing is left behind."""
    with pytest.raises(RequestError, match=r"structured_outputs") as caught:
        compiled(**asked)
    assert reason in str(caught.value)
    assert caught.value.parameter == f"structured_outputs.{field}"
    assert len(str(caught.value)) < 400
    assert fits(compiled(choice=["cat"]), "cat")


BOUNDED = [
    {"regex": "(a+)+$"},
    {"regex": "a{1,1000000}"},
    {"regex": "(a{1,1000}){1,1000}"},
    {"regex": "(?s:.*)[a-f](?s:.){30}[0-9]"},
    {"json": {"type": "string", "maxLength": 1_000_000}},
    {"json": ITEMS},
    {"json": {"enum": [f"v{i}" for i in range(8000)]}},
]  # fmt: skip


@pytest.mark.parametrize("asked", BOUNDED, ids=range(len(BOUNDED)))
def test_v111_a_form_that_only_looks_large_is_compiled(asked):
    """V111: bounded by what it costs, not by how it looks. A hundred tokens into it, it still
    answers or has met a limit."""
    matcher = compiled(**asked).matcher()
    for _ in range(100):
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(mask & compiled(**asked).vocabulary.ordinary, bitorder="little")
        if matcher.is_error() or not bits.any():
            break
        assert matcher.consume_token(int(bits.nonzero()[0][-1]))


def test_forms_are_compiled_once_and_the_last_ones_are_kept(monkeypatch):
    monkeypatch.setattr(forms_module, "MAX_FORMS", 3)
    forms = Forms(TOKENIZER, NUM_IDS, {EOS})
    first = forms.compiled(StructuredOutput(regex="a"))
    assert forms.compiled(StructuredOutput(regex="a")) is first
    for letter in "bc":
        forms.compiled(StructuredOutput(regex=letter))
    assert forms.compiled(StructuredOutput(regex="a")) is first
    forms.compiled(StructuredOutput(regex="d"))  # b goes: a was asked for since
    assert len(forms._known) == 3
    assert forms.compiled(StructuredOutput(regex="a")) is first
    assert StructuredOutput(regex="b") not in forms._known
    monkeypatch.setattr(forms_module, "MAX_KEPT_BYTES", 10)
    forms.compiled(StructuredOutput(regex="e"))
    assert list(forms._known) == [StructuredOutput(regex="e")]


def test_limits_of_one_reader_do_not_touch_another(monkeypatch):
    """Copies share a lexer, with its limits: a request must not have one."""
    monkeypatch.setattr(forms_module, "MAX_STATES", 30)
    monkeypatch.setattr(forms_module, "SCOUT_STATES", 30)
    form = Form(StructuredOutput(regex="([a-z]{1,9}[0-9]{1,9}){9}"), compiled(regex="x").vocabulary)
    ids = TOKENIZER.encode("abcdefghi123456789" * 4, add_special_tokens=False)

    def length(matcher) -> int:
        for count, token in enumerate(ids):
            matcher.compute_bitmask()
            if matcher.is_error():
                return count
            matcher.consume_token(token)
        return len(ids)

    first = length(form.matcher())
    assert 0 < first < len(ids)
    assert length(form.shared_matcher()) <= first
    assert [length(form.matcher()) for _ in range(3)] == [first] * 3
    assert not form.shared_matcher().is_error(), "a worn-out lexer is replaced"


def test_a_schema_is_kept_as_text_in_the_order_of_its_keys():
    asked = StructuredOutput(json={"b": 1, "a": {"ü": 2}})
    assert asked.json == '{"b": 1, "a": {"ü": 2}}'
    assert hash(asked) == hash(StructuredOutput(json=asked.json))
    assert SamplingParams(structured_outputs={"json": asked.json}).structured_outputs == asked


@pytest.mark.parametrize(
    "asked",
    [{}, {"regex": "a", "json": "{}"}, {"regex": ""}, {"regex": 3}, {"choice": []},
     {"choice": "ab"}, {"choice": ["a", ""]}, {"choice": ["a", 1]}, {"json_object": 1},
     {"json": {"a": float("nan")}}, {"json": {"a": object()}}, {"json": [1]}, {"grammar": " "}],
    ids=range(13),
)  # fmt: skip
def test_a_malformed_request_names_the_field(asked):
    with pytest.raises(RequestError) as caught:
        StructuredOutput(**asked)
    assert caught.value.parameter is not None
    assert caught.value.parameter.startswith("structured_outputs")


@pytest.mark.parametrize("value", ["json", {"jsn": 1}, 3, {"json": "{}", "more": 1}])
def test_only_a_mapping_of_known_fields_is_a_form(value):
    with pytest.raises(RequestError, match="structured_outputs"):
        SamplingParams(structured_outputs=value)
