"""llama.cpp's side of bench/llamacpp.py; runs in the environment that has llama-cpp-python.

Reads one JSON object a line from stdin, answers with one on stdout. Times llama_decode alone: token
ids are given, nothing is sampled, batches are filled before the clock starts. Each context keeps a
thread pool of its own between calls, as llama-bench does.

    {"prompts": [[ids]], "next": [[ids]], "flash": true}   -> {"seconds": of a step, "same": tokens}
    {"prompts": [[ids]], "next": null, "flash": true}      -> {"seconds": of reading the prompts}

`same` counts the ids that llama.cpp would have chosen, too: evidence that both run one model.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

MICRO_BATCH = 512  # llama.cpp's own default


class ThreadPoolParams(ctypes.Structure):
    _fields_ = [
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


def attach_threads(context: Any, threads: int) -> None:
    """A pool that lives as long as the process; without one, each graph starts its own threads."""
    loaded = llama_cpp.llama_cpp._lib  # finds what it depends on, too: its very copies of ggml
    params = ThreadPoolParams()
    loaded.ggml_threadpool_params_init(ctypes.byref(params), ctypes.c_int(threads))
    loaded.ggml_threadpool_new.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(loaded.ggml_threadpool_new(ctypes.byref(params)))
    loaded.llama_attach_threadpool(ctypes.c_void_p(context), pool, pool)


class Context:
    """One llama_context: `sequences` at once, each of up to `length` positions."""

    def __init__(self, model: Any, threads: int, sequences: int, length: int, flash: bool) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * length
        params.n_batch = max(length, MICRO_BATCH)
        params.n_ubatch = MICRO_BATCH
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash)
        params.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise SystemExit("llama.cpp could not make a context; is there enough memory?")
        attach_threads(self._context, threads)
        self._batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocab = llama_cpp.llama_model_get_vocab(model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._prompts: list[list[int]] | None = None
        self.same = 0

    def read(self, prompts: list[list[int]]) -> float:
        """Seconds of reading prompts from an empty cache, each with logits at its last token."""
        llama_cpp.llama_memory_clear(self._memory, True)
        self._prompts = prompts
        seconds = 0.0
        for sequence, prompt in enumerate(prompts):
            rows = [(token, at, sequence, False) for at, token in enumerate(prompt)]
            rows[-1] = (*rows[-1][:3], True)
            seconds += self._decode(rows)
        return seconds

    def step(self, prompts: list[list[int]], following: list[list[int]]) -> float:
        """Seconds of a step that feeds the next token of every sequence, over all of them."""
        if prompts != self._prompts:
            self.read(prompts)
        for sequence, prompt in enumerate(prompts):
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, len(prompt), -1)
        seconds, self.same = 0.0, 0
        steps = len(following[0])
        for number in range(steps):
            seconds += self._decode(
                [
                    (tokens[number], len(prompt) + number, sequence, True)
                    for sequence, (prompt, tokens) in enumerate(zip(prompts, following))  # noqa: B905
                ]
            )
            for sequence, tokens in enumerate(following):
                self.same += self._best(sequence) in tokens[number + 1 : number + 2]
        return seconds / steps

    def _best(self, row: int) -> int:
        """The id of the highest logit in a row of the last batch."""
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> float:
        batch = self._batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, logits) in enumerate(rows):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
            batch.logits[at] = logits
        started = time.perf_counter()
        status = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_synchronize(self._context)
        seconds = time.perf_counter() - started
        if status:
            raise SystemExit(f"llama_decode failed with status {status}")
        return seconds


@llama_cpp.llama_log_callback
def quiet(level: int, text: bytes, data: Any) -> None:
    """llama.cpp's log would drown the answers."""


def main() -> None:
    path, threads, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    system = llama_cpp.llama_print_system_info().decode()
    print(json.dumps({"version": llama_cpp.__version__, "system": system}), flush=True)
    contexts: dict[tuple[int, bool], Context] = {}
    for line in sys.stdin:
        job = json.loads(line)
        prompts, flash = job["prompts"], job["flash"]
        key = len(prompts), flash
        if key not in contexts:
            contexts[key] = Context(model, threads, len(prompts), length, flash)
        if job["next"] is None:
            answer = {"seconds": contexts[key].read(prompts)}
        else:
            seconds = contexts[key].step(prompts, job["next"])
            answer = {"seconds": seconds, "same": contexts[key].same}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
