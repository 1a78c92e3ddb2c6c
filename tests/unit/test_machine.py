"""Threads, memory, machine type and cache folder, on copied /proc and /sys trees."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from foreword import machine
from foreword.errors import ConfigError

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 8), ("350000 100000", 3), ("20000 100000", 1)]
)
@pytest.mark.usefixtures("eight_processors")
def test_threads_cgroup_2(tmp_path: Path, quota: str, threads: int) -> None:
    files = {"proc/self/cgroup": "0::/box/inner\n", "proc/self/mountinfo": V2_MOUNT}
    files |= {"sys/fs/cgroup/box/cpu.max": quota, "sys/fs/cgroup/box/inner/cpu.max": "max 100000"}
    assert machine.num_threads(tree(tmp_path, files)) == threads


@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("200000", 2)])
@pytest.mark.parametrize("folder", ["", "docker/abc/"])
@pytest.mark.usefixtures("eight_processors")
def test_threads_cgroup_1(tmp_path: Path, quota: str, threads: int, folder: str) -> None:
    """The group's own folder, or (inside a container) the mount point when that is absent."""
    files = {"proc/self/cgroup": "1:cpu,cpuacct:/docker/abc\n", "proc/self/mountinfo": V1_MOUNT}
    at = f"sys/fs/cgroup/cpu,cpuacct/{folder}"
    files |= {at + "cpu.cfs_quota_us": quota, at + "cpu.cfs_period_us": "100000"}
    assert machine.num_threads(tree(tmp_path, files)) == threads


@pytest.mark.usefixtures("eight_processors")
def test_threads_without_cgroups_is_affinity(tmp_path: Path) -> None:
    assert machine.num_threads(tmp_path) == 8


def test_omp_num_threads_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert machine.num_threads(tmp_path) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match=r"OMP_NUM_THREADS.*'many'"):
        machine.num_threads(tmp_path)


def test_threads_without_affinity_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.num_threads(tmp_path) == 1


def test_memory_is_the_smaller_of_system_and_cgroup_2(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 99 kB\nMemAvailable:   8388608 kB\n",
        "proc/self/cgroup": "0::/box\n",
        "proc/self/mountinfo": V2_MOUNT,
        "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/box/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
    }
    root = tree(tmp_path, files)
    assert machine.available_memory(root) == 3 * GIB  # 4 - (3 - 2 of droppable file pages)
    (root / "sys/fs/cgroup/box/memory.max").write_text("max")
    assert machine.available_memory(root) == 8 * GIB


def test_memory_cgroup_1(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemAvailable:   8388608 kB\n",
        "proc/self/cgroup": "4:memory:/\n",
        "proc/self/mountinfo": V1_MOUNT,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}",
    }
    root = tree(tmp_path, files)
    assert machine.available_memory(root) == GIB
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712")
    assert machine.available_memory(root) == 8 * GIB


def test_memory_where_the_system_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert machine.available_memory(tmp_path) is None


def test_memory_of_this_machine() -> None:
    free = machine.available_memory()
    assert free is None or free > 2**20


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("sse2", "portable"),
        ("avx2 fma f16c", "avx2"),
        ("avx2 fma f16c avx512f avx512bw", "avx2"),
        ("avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512cd", "avx512"),
        (
            "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512cd amx_tile amx_int8 amx_bf16",
            "amx",
        ),
        ("amx_tile amx_int8 amx_bf16", "portable"),
    ],
)
def test_machine_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, name: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    root = tree(tmp_path, {"proc/cpuinfo": f"processor : 0\nflags\t\t: fpu {flags}\n"})
    assert machine.machine_type(root) == f"x86_64-{name}"


def test_machine_type_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert machine.machine_type(tmp_path) == "arm64"


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert machine.cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("FOREWORD_CACHE")
    assert machine.cache_dir() == tmp_path / "xdg" / "foreword"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert machine.cache_dir() == tmp_path / "local" / "foreword"
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert machine.cache_dir() == Path.home() / ".cache" / "foreword"
