"""The tokenizer wrapper: threads, surrogates, saving, folders and the meaning of ids."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders

import text_vocabularies as vocabularies
from foreword.errors import ConfigError, RequestError, WeightsError
from foreword.text.folder import load_folder
from foreword.text.gguf_vocabulary import load_gguf
from foreword.text.stops import split_stops
from foreword.text.stream import TextStream
from foreword.text.tokenizer import Tokenizer
from text_vocabularies import byte_metadata, sentencepiece_metadata


def test_v72_sixteen_threads_share_one_tokenizer():
    """V72: 2000 requests with stop strings on 16 threads; no error, the ids of one thread."""
    tokenizer = vocabularies.smollm2()
    texts = vocabularies.strings(100)
    wanted = [tokenizer.encode(text) for text in texts]
    shown = [tokenizer.decode(ids) for ids in wanted]

    def request(number: int) -> bool:
        place = number % len(texts)
        ids = tokenizer.encode(texts[place])
        stops, _ = split_stops(tokenizer, ["never in there", "<|im_end|>"])
        stream = TextStream(tokenizer, [1], stops)
        for token in ids:
            assert not stream.push(token)
        stream.finish()
        return ids == wanted[place] and stream.text == shown[place]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(request, range(2000)))


def test_v72_limits_in_the_file_are_switched_off(tmp_path: Path):
    """V72: truncation and padding of tokenizer.json are dropped at load, not toggled per call."""
    raw = tokenizers.Tokenizer.from_str(vocabularies.bytes_tokenizer().raw.to_str())
    raw.enable_truncation(max_length=2)
    raw.enable_padding(length=8)
    raw.save(str(tmp_path / "tokenizer.json"))
    assert load_folder(tmp_path).encode("ccccc") == [99] * 5


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude9c\ud83e"])
def test_v73_unpaired_surrogate_is_a_request_error(text: str):
    with pytest.raises(RequestError, match="unpaired surrogate"):
        vocabularies.smollm2().encode(text)


def test_v73_pairs_nul_and_a_megabyte_of_marks_are_text():
    tokenizer = vocabularies.smollm2()
    parrot = json.loads('"\\ud83e\\udd9c"')
    assert tokenizer.encode(parrot) == [10813, 116, 246]
    assert tokenizer.decode(tokenizer.encode("a\x00b")) == "a\x00b"
    marks = load_gguf(byte_metadata(pre="qwen2")).encode("e" + "\u0301\u0323" * 100_000)
    assert len(marks) > 100_000


SMALL = {"bytes": byte_metadata(), "sentencepiece": sentencepiece_metadata()}


@pytest.mark.parametrize("name", [*SMALL, "smollm2"])
def test_saved_folder_gives_transformers_and_us_the_same_ids(name: str, tmp_path: Path):
    """Round trip: save, load with AutoTokenizer and with load_folder; ids and chat agree."""
    from transformers import AutoTokenizer

    tokenizer = vocabularies.smollm2() if name == "smollm2" else load_gguf(SMALL[name])
    tokenizer.save(tmp_path)
    ours, theirs = load_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in vocabularies.strings(200):
        ids = tokenizer.encode(text)
        assert ours.encode(text) == ids
        assert theirs.encode(text) == ids
    assert ours.special_ids == tokenizer.special_ids
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert (ours.bos_id, ours.eos_id) == (tokenizer.bos_id, tokenizer.eos_id)
    assert ours.chat_template == tokenizer.chat_template == theirs.chat_template
    assert ours.vocab_size == tokenizer.vocab_size


@pytest.mark.parametrize("name", ["bytes", "sentencepiece"])
def test_decode_equals_the_rust_decoder(name: str):
    """All ids in random order, valid text or not for bytes; valid text for SentencePiece."""
    tokenizer = load_gguf(SMALL[name])
    generator = random.Random(3)
    for text in vocabularies.strings(200):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == tokenizer.raw.decode(ids) == text
        generator.shuffle(ids)
        if name == "bytes":
            assert tokenizer.decode(ids) == tokenizer.raw.decode(ids)


def test_every_two_bytes_and_every_cut_character_decode_like_rust():
    """The same U+FFFD for every broken sequence: all pairs, and random strings of odd bytes."""
    tokenizer = vocabularies.bytes_tokenizer()
    generator = random.Random(5)
    odd = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5]
    samples = [[first, second] for first in range(256) for second in range(0, 256, 5)]
    samples += [[generator.choice(odd) for _ in range(6)] for _ in range(3000)]
    for ids in samples:
        assert tokenizer.decode(ids) == tokenizer.raw.decode(ids), ids


def test_a_broken_run_of_byte_pieces_keeps_its_good_characters():
    spm = vocabularies.sentencepiece()
    good = [spm.raw.token_to_id(f"<0x{byte:02X}>") for byte in "世".encode()]
    assert spm.decode([*good, good[0]]) == "世\ufffd"


def test_ids_without_a_meaning_are_empty():
    tokenizer = vocabularies.smollm2()
    assert tokenizer.vocab_size == 49152
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.token_bytes(10813) == b"\xf0\x9f"
    assert tokenizer.token_text(60000) == ""
    assert tokenizer.token_bytes(60000) == b""
    assert tokenizer.end_ids == {2}


def test_folder_without_tokenizer_json_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(WeightsError, match=r"no tokenizer\.json; make one with: python -c"):
        load_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path):
    vocabularies.bytes_tokenizer().save(tmp_path)
    (tmp_path / name).write_text('{"a": ')
    with pytest.raises(WeightsError, match=name):
        load_folder(tmp_path)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: item for key, item in config.items() if item is not None}))


def test_v86_the_config_decides_about_bos_and_eos(tmp_path: Path):
    """V86 for folders: an explicit flag wins over the post-processor, in both directions."""
    vocabularies.bytes_tokenizer().save(tmp_path)
    for bos, eos, ids in [
        (True, False, [259, 99]),
        (True, True, [259, 99, 260]),
        (False, False, [99]),
        (None, None, [99]),
    ]:
        edit_config(tmp_path, add_bos_token=bos, add_eos_token=eos)
        tokenizer = load_folder(tmp_path)
        assert tokenizer.encode("c") == ids
        assert tokenizer.encode("c", add_special_tokens=False) == [99]


def test_side_files_add_tokens_roles_and_templates(tmp_path: Path):
    vocabularies.bytes_tokenizer().save(tmp_path)
    decoder = {"261": {"content": "<|new|>", "special": True}}
    edit_config(tmp_path, eos_token=None, chat_template=None, added_tokens_decoder=decoder)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|new|>"}}')
    (tmp_path / "added_tokens.json").write_text('{"<extra>": 262}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    tokenizer = load_folder(tmp_path)
    assert tokenizer.encode("<|new|><extra>") == [261, 262]
    assert tokenizer.eos_id == 261
    assert 261 in tokenizer.special_ids
    assert 262 not in tokenizer.special_ids
    assert tokenizer.chat_template == "{{ messages }}"
    (tmp_path / "added_tokens.json").write_text('{"<extra>": 300}')
    with pytest.raises(WeightsError, match=r"'<extra>' should have id 300"):
        load_folder(tmp_path)


def test_a_decoder_that_is_not_made_of_bytes_is_refused():
    raw = tokenizers.Tokenizer.from_str(vocabularies.bytes_tokenizer().raw.to_str())
    raw.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match="WordPiece"):
        Tokenizer(raw)
