"""What this machine offers: usable threads, free memory, instruction set, the user's cache folder.

Reads the operating system's own files and the environment; knows nothing of models and imports no
torch. Containers are honoured: a cgroup (version 1 or 2) may allow less than the hardware has.
`root` arguments exist so that tests can point at a copied /proc and /sys.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from foreword.errors import ConfigError

# Flags of /proc/cpuinfo that make an instruction-set class, best first; each includes the next.
_CLASSES: tuple[tuple[str, frozenset[str]], ...] = (
    ("amx", frozenset({"amx_tile", "amx_int8", "amx_bf16"})),
    ("avx512", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"})),
    ("avx2", frozenset({"avx2", "fma", "f16c"})),
)
_UNLIMITED = 1 << 60  # cgroup 1 writes a huge number for "no limit"


def num_threads(root: Path = Path("/")) -> int:
    """Threads worth starting: OMP_NUM_THREADS if set, else the least of affinity and cgroup quota.

    Raises ConfigError when OMP_NUM_THREADS is not a whole number >= 1.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").strip()
    if asked:
        first = asked.split(",")[0].strip()  # OpenMP allows one number per nesting level
        if not first.isdecimal() or int(first) < 1:
            raise ConfigError(f"OMP_NUM_THREADS must be a whole number >= 1, got {asked!r}")
        return int(first)
    affinity = getattr(os, "sched_getaffinity", None)
    threads = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cpu_quota(root)
    return threads if quota is None else max(1, min(threads, int(quota)))


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can still be used without swapping, cgroup limit included; None = cannot tell."""
    free = _system_memory(root)
    limited = _cgroup_memory(root)
    known = [value for value in (free, limited) if value is not None]
    return min(known) if known else None


def machine_type(root: Path = Path("/")) -> str:
    """Processor family and instruction-set class, such as "x86_64-amx" or "arm64"."""
    family = platform.machine() or "unknown"
    lines = _lines(root / "proc/cpuinfo")
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), None)
    if family not in ("x86_64", "AMD64") or flags is None:
        return family
    best, needed = "portable", set[str]()
    for name, wanted in reversed(_CLASSES):
        needed |= wanted
        if not needed <= flags:
            break
        best = name
    return f"x86_64-{best}"


def cache_dir() -> Path:
    """The user's folder for models and hashes; not created here. FOREWORD_CACHE overrides it."""
    chosen = os.environ.get("FOREWORD_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]).expanduser() / "foreword"
    if platform.system() == "Windows" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "foreword"
    return Path.home() / ".cache" / "foreword"


def _system_memory(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    sysconf = getattr(os, "sysconf", None)
    names = getattr(os, "sysconf_names", {})
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):  # macOS tells the total only
        if sysconf and pages in names and "SC_PAGE_SIZE" in names:
            return int(sysconf(pages)) * int(sysconf("SC_PAGE_SIZE"))
    return None


def _cpu_quota(root: Path) -> float | None:
    """The smallest quota, in processors, of this process's cgroup and its parents."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        words = _text(folder / "cpu.max").split()  # version 2: "200000 100000" or "max 100000"
        if not words:  # version 1: two files, -1 = no limit
            words = (
                _text(folder / "cpu.cfs_quota_us") + " " + _text(folder / "cpu.cfs_period_us")
            ).split()
        if len(words) == 2 and words[0].isdecimal() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas) if quotas else None


def _cgroup_memory(root: Path) -> int | None:
    """Smallest (limit - working set) of this process's cgroup and its parents, in bytes."""
    free = []
    for folder in _cgroup_folders(root, "memory"):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        usage = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")
        if not (limit.isdecimal() and usage.isdecimal()) or int(limit) >= _UNLIMITED:
            continue
        # Cached file pages count as usage but the kernel drops them when memory is asked for.
        stat = dict(line.split() for line in _lines(folder / "memory.stat") if line.count(" ") == 1)
        cached = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        free.append(max(0, int(limit) - max(0, int(usage) - cached)))
    return min(free) if free else None


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup for a controller, from the innermost to the mount point.

    Inside a container the path of /proc/self/cgroup may be the host's, which does not exist under
    the mount: then the mount point itself is the container's group, so missing folders are skipped.
    """
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))  # version 2 has an empty name
    for mount, controllers in _cgroup_mounts(root):
        inside = paths.get(controller if controllers else "")
        if inside is None or (controllers and controller not in controllers):
            continue
        top = root / mount.lstrip("/")
        folder = top / inside.strip("/")
        for candidate in (folder, *folder.parents):
            if candidate.is_dir():
                yield candidate
            if candidate == top:
                break


def _cgroup_mounts(root: Path) -> Iterator[tuple[str, set[str]]]:
    """(mount point, controller names); version 2 mounts have no names."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, separator, after = line.partition(" - ")
        words = after.split()
        if separator and words[0] == "cgroup2":
            yield before.split()[4], set()
        elif separator and words[0] == "cgroup":
            yield before.split()[4], set(words[-1].split(","))


def _text(path: Path) -> str:
    """A small file's content, empty when it is absent or not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()
