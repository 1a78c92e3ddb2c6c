"""Cases of parts C, J and K through the engine's text: what a reader of the stream sees.

Most of them need a model that says given words. `Parrot` is a target whose best token at every
position is given; drafts, batches and the text around it are the real ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence as SequenceOf
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Job, Rig, open_llm, prompt, rig, smollm2

import apparatus
from foreword.draft.scripted import chain, right_until
from foreword.errors import ForewordError, RequestError
from foreword.llm import LLM
from foreword.types import SamplingParams

slow = pytest.mark.slow
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
PARROT, ASTRONAUT, FLAG, PORK = (
    "\U0001f99c",
    "\U0001f9d1\u200d\U0001f680",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "삼겹살",
)


class Parrot:
    """Says `output` after a prompt of `start` tokens, whatever it reads; then `last` for ever."""

    def __init__(self, inner: Rig, start: int, output: SequenceOf[int], last: int) -> None:
        self.vocab_size, self.kernels = inner.vocab_size, inner.model.kernels
        self._start, self._output, self._last = start, output, last

    def forward(self, batch: Any, kv: Any) -> np.ndarray:
        logits = np.zeros((len(batch.logit_rows), self.vocab_size), dtype=np.float32)
        for place, position in enumerate(batch.positions[batch.logit_rows].tolist()):
            index = position + 1 - self._start
            logits[place, self._output[index] if index < len(self._output) else self._last] = 9.0
        return logits


def saying(bench: Rig, ids: list[int], output: SequenceOf[int], k: int) -> LLM:
    """The library's door on a parrot that ends with its EOS, drafted for K right tokens a step."""
    eos = min(bench.checkpoint.eos_ids)
    said = [*output, eos]
    model = Parrot(bench, len(ids), said, eos)
    setting: dict[str, Any] = {"batch": 2}
    if k:
        script = chain(lambda _: said, k, right_until(k), bench.vocab_size)
        setting |= {"script": script, "k": k}
    return bench.door(bench.engine(model=model, **setting))


def both_ways(llm: LLM, ids: list[int], params: SamplingParams) -> tuple[Any, list[str]]:
    """The whole result, and the deltas of a stream, which must join to its text."""
    (out,) = llm.generate([ids], params)[0].outputs
    deltas = [delta for delta, _ in llm.stream(ids, params)]
    assert "".join(deltas) == out.text
    return out, deltas


@pytest.mark.parametrize("k", [0, 1, 4])
def test_v21_stop_strings_that_span_tokens(k: int) -> None:
    """V21: "red green", "d gre" and "en g" in " blue red green gold", "azy d" inside " lazy dog",
    "\\nHuman:" over three tokens: the text ends before the stop, nothing of it is sent."""
    bench = smollm2()
    ids = bench.tokenizer.encode("Say it:")
    assert bench.tokenizer.encode("\nHuman:") == [198, 14917, 42]
    said = bench.tokenizer.encode(" blue red green gold and the lazy dog\nHuman: more")
    whole = bench.tokenizer.decode(said)
    for stop in ("red green", "d gre", "en g", "azy d", "\nHuman:", "more"):
        llm = saying(bench, ids, said, k)
        out, _ = both_ways(llm, ids, replace(GREEDY, stop=stop))
        assert out.text == whole[: whole.index(stop)], stop
        assert out.finish_reason == "stop"
        assert out.token_ids == said[: len(out.token_ids)]
        assert whole.index(stop) + len(stop) <= len(bench.tokenizer.decode(out.token_ids))
    llm = saying(bench, ids, said, k)
    out, _ = both_ways(llm, ids, replace(GREEDY, stop=["gold", "green", "red green gold"]))
    assert out.text == " blue red "


@pytest.mark.parametrize("k", [0, 4])
def test_v22_only_what_may_become_a_stop_is_withheld(k: int) -> None:
    """V22: the output ends with "XY" and the stop is "XYZW": "XY" arrives. With four stops, one of
    them 200 characters, no delta lags by more than the longest part that matches."""
    bench = rig()
    ids = list(prompt(5))
    stops = ["XYZW", "q" * 200, "<t300>", "\n\n"]
    text = "abc XYX def qqqq\nXY"
    said = bench.tokenizer.encode(text)
    llm = saying(bench, ids, said, k)
    params = replace(GREEDY, stop=stops)
    out, _ = both_ways(llm, ids, params)
    assert out.text == text
    assert out.finish_reason == "stop"
    shown = ""
    for delta, sample in llm.stream(ids, params):
        shown += delta
        emitted = bench.tokenizer.decode(sample.sequence.output_ids)
        assert emitted.startswith(shown)
        lag = emitted[len(shown) :]
        assert not lag or any(stop.startswith(lag) for stop in stops), lag
    assert shown == text


@pytest.mark.parametrize("k", [0, 4])
def test_v24_stop_given_as_a_special_token(k: int) -> None:
    """V24: "<|im_end|>" as a stop ends the text at its id although it decodes to nothing; and no
    special token ever shows in a text."""
    bench = smollm2()
    ids = bench.tokenizer.encode("Say it:")
    said = [*bench.tokenizer.encode(" yes"), 0, *bench.tokenizer.encode(" and"), 1, 2, 3]
    params = replace(GREEDY, ignore_eos=True, max_tokens=len(said))
    for stop, length in (("<|im_end|>", 5), ("<|endoftext|>", 2), ("<|im_start|>", 4)):
        out, _ = both_ways(saying(bench, ids, said, k), ids, replace(params, stop=stop))
        assert (len(out.token_ids), out.finish_reason) == (length, "stop"), stop
        assert "<|" not in out.text
    out, _ = both_ways(saying(bench, ids, said, k), ids, params)
    assert out.text == " yes and"
    assert len(out.token_ids) == len(said)


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_v69_v70_characters_of_several_tokens(k: int) -> None:
    """V69, V70: emoji, ZWJ sequences, Hangul and mixed text over byte tokens: never U+FFFD, never
    shorter than before, the deltas join to the one-shot text, K tokens at a time."""
    bench = smollm2()
    ids = bench.tokenizer.encode("Say:")
    assert bench.tokenizer.encode(PARROT) == [10813, 116, 246]
    texts = [PARROT, ASTRONAUT, FLAG, PORK, f"a{PARROT}b", "A 世a世世ab", f"{PORK} {FLAG}{PARROT}"]
    for text in texts:
        said = bench.tokenizer.encode(text)
        out, deltas = both_ways(saying(bench, ids, said, k), ids, GREEDY)
        assert out.text == text == bench.tokenizer.decode(said)
        assert all("\ufffd" not in delta for delta in deltas)
    said = bench.tokenizer.encode(f"a{PARROT}b")
    if k == 0:
        _, deltas = both_ways(saying(bench, ids, said, k), ids, GREEDY)
        assert [delta for delta in deltas if delta] == ["a", PARROT, "b"]
    cut = replace(GREEDY, max_tokens=3)  # "a" and two of the parrot's three tokens
    out, _ = both_ways(saying(bench, ids, said, k), ids, cut)
    assert out.text == "a\ufffd"
    assert (len(out.token_ids), out.finish_reason) == (3, "length")


def test_v71_the_leading_space_of_a_completion() -> None:
    """V71: " Hello" after a prompt keeps its space, "Hello" gets none."""
    bench = smollm2()
    ids = bench.tokenizer.encode("Hello")
    assert bench.tokenizer.encode(" Hello") == [38699]
    for token, text in ((38699, " Hello"), (19556, "Hello")):
        out, deltas = both_ways(saying(bench, ids, [token], 2), ids, GREEDY)
        assert out.text == text
        assert deltas[0] == text


def test_v72_many_threads_on_one_tokenizer_and_one_engine() -> None:
    """V72: 16 threads encode, generate with stop strings and decode: no error, the same results."""
    bench = rig()
    llm = bench.door(bench.engine("ngram", k=4))
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=5, stop=["never", "\x01\x02"])
    texts = [f"prompt number {n} " * (1 + n % 3) for n in range(16)]
    expected = [llm.generate([text], params)[0].outputs[0].token_ids for text in texts]

    def work(n: int) -> bool:
        ids = [llm.tokenizer.encode(text) for text in texts * 20]
        out = llm.generate([texts[n]], params)[0].outputs[0]
        return ids[n] == list(texts[n].encode()) and out.token_ids == expected[n]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


def test_v75_v80_chat_prompts_reach_the_engine_as_rendered() -> None:
    """V75, V80: SmolLM2 renders "Hello" to 31 ids, one BOS in front; an assistant's unfinished
    message keeps its trailing blank and gets no end token; both flags at once are refused."""
    bench = smollm2()
    llm = bench.door(bench.engine("ngram"))
    params = SamplingParams(temperature=0.0, max_tokens=2)
    talk = [{"role": "user", "content": "Hello"}]
    ids = llm.chat(talk, params)[0].prompt_token_ids
    assert len(ids) == 31
    assert ids[:3] == [1, 9690, 198]
    assert ids[-4:] == [1, 520, 9531, 198]
    begun = [*talk, {"role": "assistant", "content": "1, 2, "}]
    unfinished = {"add_generation_prompt": False, "continue_final_message": True}
    ids = llm.chat(begun, params, **unfinished)[0].prompt_token_ids
    assert ids[-6:] == [33, 28, 216, 34, 28, 216]
    with pytest.raises(ForewordError):
        llm.chat(begun, params, add_generation_prompt=True, continue_final_message=True)


def test_v87_a_gguf_alone_chats_and_a_missing_template_fails_only_chat(tmp_path: Path) -> None:
    """V87: the template inside the GGUF file is used; without one, chat is an error that says so
    and completions work."""
    bench = smollm2()
    assert bench.checkpoint.path.suffix == ".gguf"
    assert len(bench.llm.encode_chat([{"role": "user", "content": "Hello"}])) == 31
    folder = tmp_path / "plain"
    shutil.copytree(apparatus.target(), folder)
    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(config.replace('"chat_template"', '"unused"'))
    llm = open_llm(folder)
    with pytest.raises(RequestError, match="chat template"):
        llm.chat([{"role": "user", "content": "Hello"}])
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    (out,) = llm.generate("Hello", params)[0].outputs
    expected = rig(max_position=apparatus.CONTEXT).plain(Job(tuple(b"Hello"), 4, logprobs=None))
    assert tuple(out.token_ids) == expected.token_ids
    llm.close()
