"""Deltas of a stream: whole characters, nothing taken back, joined they are the one-shot text."""

from __future__ import annotations

import random

import pytest

import text_vocabularies as vocabularies
from foreword.text.detokenizer import Detokenizer, decode_completion
from foreword.text.stream import TextStream
from foreword.text.tokenizer import Tokenizer


def deltas(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    reader = Detokenizer(tokenizer, prompt or [])
    return [*(reader.push(token) for token in ids), reader.finish()]


def test_v69_computed_characters_over_several_tokens():
    """V69: parrot in three tokens between a and b; ZWJ astronaut and flag; nine byte tokens."""
    smollm2 = vocabularies.smollm2()
    assert deltas(smollm2, [81, 10813, 116, 246, 82]) == ["a", "", "", "\U0001f99c", "b", ""]
    for text, count in [
        ("\U0001f468\u200d\U0001f680", 8),
        ("\U0001f3f3\ufe0f\u200d\U0001f308", 9),
        ("삼겹살", 9),
    ]:
        ids = smollm2.encode(text)
        parts = deltas(smollm2, ids)
        assert len(ids) == count
        assert "".join(parts) == text
        assert "\ufffd" not in "".join(parts)


def test_v69_cut_in_the_middle_of_a_character():
    """V69: max_tokens falls inside the parrot: one U+FFFD, at the end, once."""
    smollm2 = vocabularies.smollm2()
    assert deltas(smollm2, [81, 10813, 116]) == ["a", "", "", "\ufffd"]
    assert smollm2.decode([81, 10813, 116]) == "a\ufffd"


@pytest.mark.parametrize("name", ["smollm2", "bytes_tokenizer", "sentencepiece"])
def test_v69_v70_300_random_strings(name: str):
    """V69, V70: over every plane, deltas join to the text, and every prefix agrees."""
    tokenizer = getattr(vocabularies, name)()
    complete = name != "smollm2"  # its published vocabulary lacks some bytes
    for text in vocabularies.strings(300, seed=2):
        ids = tokenizer.encode(text, add_special_tokens=False)
        one_shot = decode_completion(tokenizer, [], ids, skip_special_tokens=False)
        reader = Detokenizer(tokenizer, [], skip_special_tokens=False)
        shown = ""
        for count, token in enumerate(ids, 1):
            shown += reader.push(token)
            assert one_shot.startswith(shown) or not complete
            assert tokenizer.decode(ids[:count], skip_special_tokens=False).startswith(shown)
        shown += reader.finish()
        assert shown == one_shot == tokenizer.decode(ids, skip_special_tokens=False)
        if complete:
            assert shown == text


def test_v70_every_split_into_steps_joins_to_the_same_text():
    """V70: 'A 世a<incomplete>b' and random ids, taken in steps of 1..K: nothing lost or doubled."""
    tokenizer = vocabularies.bytes_tokenizer()
    generator = random.Random(4)
    cases = [[*"A 世a".encode(), 0xE4, 0xB8, *b"b"]]
    cases += [[generator.randrange(261) for _ in range(30)] for _ in range(50)]
    for ids in cases:
        wanted = tokenizer.decode(ids)
        for steps in range(1, 9):
            stream = TextStream(tokenizer)
            shown = ""
            for start in range(0, len(ids), steps):
                for token in ids[start : start + steps]:
                    stream.push(token)
                before = len(shown)
                shown += stream.take()
                assert len(shown) >= before
                assert wanted.startswith(shown)
            stream.finish()
            assert shown + stream.take() == wanted == stream.text


def test_v71_leading_space_of_byte_level_tokens():
    """V71: ' Hello' and 'Hello' are different tokens, with any prompt."""
    smollm2 = vocabularies.smollm2()
    assert smollm2.encode(" Hello") == [38699]
    assert smollm2.encode("Hello") == [19556]
    for prompt in ([], [1], [19556]):
        assert "".join(deltas(smollm2, [38699], prompt)) == " Hello"
        assert "".join(deltas(smollm2, [19556], prompt)) == "Hello"


def test_v71_leading_space_of_sentencepiece():
    """V71: ['_','_leading','_x'] is ' leading x'; after a visible prompt both spaces stay."""
    spm = vocabularies.sentencepiece()
    ids = [spm.raw.token_to_id(piece) for piece in ("▁", "▁leading", "▁x")]
    prompt = spm.encode("hello")
    for before in ([], [1], [1, 1]):
        assert "".join(deltas(spm, ids, before)) == " leading x" == spm.raw.decode([*before, *ids])
    assert "".join(deltas(spm, ids, prompt)) == "  leading x"
    whole = spm.decode([*prompt, *ids])
    assert whole == spm.decode(prompt) + "  leading x"


def test_v71_completion_in_the_context_of_every_prompt():
    """V71: for every cut of random ids, prompt text + completion text = text of the whole."""
    generator = random.Random(6)
    for tokenizer in (vocabularies.bytes_tokenizer(), vocabularies.sentencepiece()):
        for text in vocabularies.strings(60, seed=7):
            ids = tokenizer.encode(text)
            for _ in range(4):
                cut = generator.randrange(len(ids) + 1)
                reader = Detokenizer(tokenizer)
                before = "".join([reader.push(token) for token in ids[:cut]])
                assert before + decode_completion(tokenizer, ids[:cut], ids[cut:]) == text


def test_v24_special_tokens_leave_no_text_unless_asked_for():
    smollm2 = vocabularies.smollm2()
    ids = [1, 9690, 2, 19556]
    assert "<|" not in "".join(deltas(smollm2, ids))
    shown = decode_completion(smollm2, [], ids, skip_special_tokens=False)
    assert shown == "<|im_start|>system<|im_end|>Hello"


def test_padded_rows_and_characters_around_specials():
    """A skipped special inside a character does not break it; ids without text add nothing."""
    smollm2 = vocabularies.smollm2()
    assert deltas(smollm2, [10813, 2, 116, 60000, 246]) == ["", "", "", "", "\U0001f99c", ""]
