"""The native thread pool: nobody waits for ever, nobody computes when there is nothing to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cpu_rig import NATIVE, decoder_of, needs_native
from rig import BASE, assert_same_bits, ids_of, in_blocks, one_pass

import foreword.kernels.cpu
from foreword.errors import KernelUnavailable

NATIVE_SOURCES = Path(foreword.kernels.cpu.__file__).parent / "native"
CHECK = Path(__file__).parent / "native" / "pool_check.cpp"
TASKS = Path("/proc/self/task")
needs_proc = pytest.mark.skipif(not TASKS.exists(), reason="needs Linux's /proc")


@pytest.mark.parametrize("sanitizer", ["", "thread"])
def test_exceptions_forks_and_callers(sanitizer: str, tmp_path: Path) -> None:
    """pool_check.cpp: what cannot be asked from Python. Under ThreadSanitizer without forks, which
    it does not follow."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or sys.platform == "win32":
        pytest.skip("no C++ compiler for POSIX here")
    program = str(tmp_path / "check")
    flags = ["-std=c++17", "-O1", "-g", "-pthread", f"-I{NATIVE_SOURCES}"]
    flags += [f"-fsanitize={sanitizer}"] if sanitizer else []
    command = [compiler, *flags, str(CHECK), str(NATIVE_SOURCES / "threads.cpp"), "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    if sanitizer and built.returncode:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer")
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [program, *(["no-fork"] if sanitizer else [])], capture_output=True, text=True, timeout=120
    )
    if sanitizer and "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's address layout is not one the sanitizer knows")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") >= 38
    assert "WARNING" not in done.stderr


def in_a_process(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def pool_threads() -> list[str]:
    """Names of this process's threads that belong to pools."""
    names = [(task / "comm").read_text().strip() for task in TASKS.iterdir()]
    return sorted(name for name in names if name.startswith("foreword-"))


@needs_native
@needs_proc
def test_engines_of_one_size_share_their_threads() -> None:
    """Two engines of three threads have two threads of their own together; a closed model none."""
    before = pool_threads()
    models = [decoder_of(BASE, "float32", NATIVE.best_isa(), 7) for _ in range(2)]
    results = [one_pass(model, ids_of(20)) for model in models]
    assert_same_bits(results[0], results[1])
    assert len(pool_threads()) - len(before) == 6
    models[0].kernels.close()
    assert len(pool_threads()) - len(before) == 6
    assert_same_bits(one_pass(models[1], ids_of(20)), results[1])
    models[1].kernels.close()
    assert pool_threads() == before


@needs_native
@needs_proc
def test_an_idle_pool_sleeps() -> None:
    """After a pass its threads spin for a moment, then take no processor time at all."""
    program = """
import time
from cpu_rig import decoder_of, NATIVE
from rig import BASE, ids_of, one_pass
model = decoder_of(BASE, "float32", NATIVE.best_isa(), 4)
one_pass(model, ids_of(20))
time.sleep(0.5)
before = time.process_time()
time.sleep(2)
print(time.process_time() - before)
"""
    done = in_a_process(program)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.1  # of 2 s on each of 3 threads


@needs_native
def test_a_closed_model_says_so() -> None:
    model = decoder_of(BASE, "float32", NATIVE.best_isa(), 2)
    one_pass(model, ids_of(3))
    model.kernels.close()
    model.kernels.close()
    with pytest.raises(KernelUnavailable, match="this model is closed"):
        one_pass(model, ids_of(3))
    with pytest.raises(KernelUnavailable, match="this model is closed"):
        model.kernels.set_threads(2)


@needs_native
@pytest.mark.parametrize("threads", [1, 3])
def test_models_used_from_several_threads(threads: int) -> None:
    """Each Python thread has a model of its own; their pools are one, and they take turns."""
    ids = ids_of(40)
    wanted = one_pass(decoder_of(BASE, "float32", NATIVE.best_isa()), ids)
    models = [decoder_of(BASE, "float32", NATIVE.best_isa(), threads) for _ in range(3)]
    results: dict[int, list[object]] = {number: [] for number in range(3)}

    def work(number: int) -> None:
        for sizes in ([1], [7], [40], [3, 9]):
            results[number].append(in_blocks(models[number], ids, sizes))

    callers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for number in range(3):
        assert len(results[number]) == 4
        for got in results[number]:
            assert_same_bits(got, wanted)


@needs_native
def test_one_model_used_from_several_threads_in_turn() -> None:
    ids, lock, failures = ids_of(30), threading.Lock(), []
    model = decoder_of(BASE, "float32", NATIVE.best_isa(), 3)
    wanted = one_pass(model, ids)

    def work() -> None:
        for _ in range(5):
            with lock:
                got = in_blocks(model, ids, [5])
            try:
                assert_same_bits(got, wanted)
            except AssertionError as error:
                failures.append(error)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes_the_same() -> None:
    """The model was loaded, and its threads started, before the fork. In a process of its own:
    Python warns of forks with threads."""
    program = """
import os, warnings
import numpy as np
from cpu_rig import decoder_of, NATIVE
from rig import BASE, ids_of, one_pass
warnings.simplefilter("ignore", DeprecationWarning)
model = decoder_of(BASE, "float32", NATIVE.best_isa(), 3)
wanted = one_pass(model, ids_of(20))
child = os.fork()
if child == 0:
    import signal
    signal.alarm(60)
    same = np.array_equal(one_pass(model, ids_of(20)), wanted)
    model.kernels.set_threads(2)
    same = same and np.array_equal(one_pass(model, ids_of(20)), wanted)
    model.kernels.close()
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert np.array_equal(one_pass(model, ids_of(20)), wanted)
"""
    done = in_a_process(program)
    assert done.returncode == 0, done.stderr


@needs_native
def test_a_pool_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        NATIVE.Pool(0)
