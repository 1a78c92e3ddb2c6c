"""The probes of this machine's limits run with every instruction set, and say what they cannot."""

from __future__ import annotations

import pytest
from cpu_rig import NATIVE, every_isa, needs_native

from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.limits import Limits

pytestmark = needs_native


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("num_bytes", [1, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_all_the_memory_is_read(threads, num_bytes):
    limits = Limits(num_bytes, threads)
    assert num_bytes <= limits.read_bytes < num_bytes + (1 << 20)
    assert limits.read_seconds() > 0


@every_isa
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_products_are_timed_with_the_kernels_that_were_asked_for(isa, kind):
    limits = Limits(1, 2, isa)
    assert limits.isa == isa
    assert limits.matrix_rate(kind) > 0


@every_isa
def test_more_products_take_more_time(isa):
    """What is timed is arithmetic: a hundred times the work is never done in the time of one."""
    limits = Limits(1, 1, isa)
    weight = limits.weight("int8")
    pool = NATIVE.Pool(1)
    one = min(NATIVE.time_product(weight, isa, pool, 16, 1) for _ in range(5))
    assert NATIVE.time_product(weight, isa, pool, 16, 100) > 10 * one


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(KernelUnavailable, match="z80"):
        Limits(1, 1, "z80")
