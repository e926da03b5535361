"""What a server compiles is kept for later ones: whole or not at all, for the same kind of server, and privately."""

import errno
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from commands import refusal
from transformers import Qwen3Config

from mrt_hpc.errors import UserError
from mrt_hpc.inference import compiled_code
from mrt_hpc.inference.compiled_code import KEPT, CompiledCode
from mrt_hpc.inference.server_start import ServerCommand, ServerSettings
from mrt_hpc.run.access import CACHES

OnNode = Callable[[str], CompiledCode]
Command = Callable[..., ServerCommand]
Harm = Callable[[Path], object]

KERNEL = "triton/AB/__grp__kernel.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the archives; no cache of the user's own is set."""
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "compiled_code"


@pytest.fixture
def on_node(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> OnNode:
    def code(node: str) -> CompiledCode:
        (tmp_path / node).mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / node))
        made = CompiledCode.of(folder, {"model": "small"})
        assert made is not None
        return made

    return code


def started(code: CompiledCode, text: str = "compiled") -> bool:
    """Whether a server that starts finds code that it does not compile."""
    with code.surround_start(lambda: False):
        found = (code.place / KERNEL).exists()
        if not found:
            compile_there(code, text)
    return found


def compile_there(code: CompiledCode, text: str = "compiled") -> None:
    for folder in code.environment().values():
        Path(folder, "AB").mkdir(parents=True)
        Path(folder, "AB", "code").write_text(text)
    path = {"kernel.cubin": str(code.place / "triton/AB/kernel.cubin")}
    (code.place / KERNEL).write_text(json.dumps({"child_paths": path}))


def test_later_servers_on_other_nodes_begin_with_what_the_first_has_compiled(on_node: OnNode, folder: Path) -> None:
    first = on_node("a")
    assert not started(first)
    assert [(path, path.stat().st_mode & 0o777) for path in folder.iterdir()] == [(first.archive, 0o600)]
    assert folder.stat().st_mode & 0o777 == 0o700
    later = on_node("b")
    assert started(later)
    found = {name: Path(place, "AB", "code").read_text() for name, place in later.environment().items()}
    assert found == dict.fromkeys(KEPT, "compiled")
    paths = json.loads((later.place / KERNEL).read_text())["child_paths"]
    assert paths == {"kernel.cubin": str(later.place / "triton/AB/kernel.cubin")}


def test_of_servers_that_start_at_the_same_time_one_keeps_the_code(on_node: OnNode) -> None:
    """On two nodes the first that has started, on one node the last."""
    one, other = on_node("a"), on_node("b")
    with one.surround_start(lambda: False):
        compile_there(one, "one")
        assert not started(other, "other")
        written = other.archive.read_bytes()
    assert one.archive.read_bytes() == written
    assert started(on_node("c"))
    one.archive.unlink()
    code = on_node("d")
    with ExitStack() as running:
        running.enter_context(code.surround_start(lambda: False))
        assert not started(code)
        assert not code.archive.exists(), "the other one may still write"
    assert code.archive.exists()


def give_away(path: Path) -> None:
    os.chown(path, 65534, 65534)


def link(folder: Path) -> None:
    folder.symlink_to(folder.rename(folder.with_name("elsewhere")))


GIVEN_AWAY = pytest.param(give_away, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may give away"))
DAMAGES = {
    "cut short": lambda archive: archive.write_bytes(archive.read_bytes()[:-100]),
    "one bit changed": lambda archive: archive.write_bytes(archive.read_bytes().replace(b"compiled", b"compilee", 1)),
    "written by others": lambda archive: archive.chmod(0o666),
}


@pytest.mark.parametrize("damage", [*DAMAGES.values(), GIVEN_AWAY], ids=[*DAMAGES, "given away"])
def test_an_archive_that_is_damaged_or_of_others_is_not_taken(
    damage: Harm, on_node: OnNode, caplog: pytest.LogCaptureFixture
) -> None:
    first = on_node("a")
    started(first)
    damage(first.archive)
    assert not started(on_node("b"))
    assert str(first.archive) in caplog.text
    assert started(on_node("c"))


@pytest.mark.parametrize("opened", [
    lambda folder: folder.chmod(0o755), link, GIVEN_AWAY
], ids=["open", "link", "given"])  # fmt: skip
def test_nothing_is_taken_from_or_put_into_a_folder_of_others(opened: Harm, on_node: OnNode, folder: Path) -> None:
    first = on_node("a")
    started(first)
    opened(folder)
    assert not started(on_node("b"))
    first.archive.unlink()
    assert not started(on_node("c"))
    assert [*folder.iterdir()] == []


def test_what_cannot_be_unpacked_whole_is_not_there(on_node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object, place: Path) -> None:
        (place / "vllm").mkdir(parents=True)
        raise OSError("no space left on the node")

    started(on_node("a"))
    code = on_node("b")
    with monkeypatch.context() as patch:
        patch.setattr(compiled_code.zipfile.ZipFile, "extractall", full)
        assert not started(code)
    assert code.archive.exists()
    assert sorted(path.name for path in code.place.parent.iterdir()) == [code.place.name, f"{code.place.name}.lock"]


@pytest.mark.parametrize("ended", [True, False])
def test_code_with_which_a_server_ends_at_its_start_is_not_used_again(ended: bool, on_node: OnNode) -> None:
    started(on_node("a"))
    code = on_node("b")
    with pytest.raises(UserError), code.surround_start(lambda: ended):
        raise UserError("the server ended, or the task was asked to leave")
    assert (code.archive.exists(), code.place.exists(), started(code)) == (not ended,) * 3


def test_nothing_is_kept_where_it_is_too_much_or_the_node_takes_no_locks(
    on_node: OnNode, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        assert not started(on_node("a"))
    assert not folder.exists()
    monkeypatch.setattr(compiled_code, "MOST_BYTES", 50)
    code = on_node("b")
    assert not started(code)
    assert not code.archive.exists()


def test_archives_of_other_versions_and_those_beyond_the_number_are_removed(on_node: OnNode, folder: Path) -> None:
    code = on_node("a")
    folder.mkdir(mode=0o700)
    mine = code.archive.name.removesuffix(code.archive.name.rpartition("-")[2])
    days = {f"vllm-0.1-{1:016x}.zip": 8, f"vllm-0.1-{2:016x}.zip": 6, f".vllm-0.1-{3:016x}.zip.tmp-0": 8}
    days |= {f"{mine}{number:016x}.zip": 10 + number for number in range(compiled_code.MOST_ARCHIVES)}
    others = {"results.csv", "vllm-0.1-notes.zip", *(f"thesis-{number}.tex" for number in range(20))}
    days |= dict.fromkeys(others, 30)
    (folder / f"vllm-0.1-{4:016x}.zip").symlink_to("gone")
    for name, age in days.items():
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age * 86400,) * 2)
    started(code)
    kept = {path.name for path in folder.iterdir()}
    archives = {code.archive.name, *(f"{mine}{number:016x}.zip" for number in range(6))}
    assert kept == {*archives, *(f"vllm-0.1-{number:016x}.zip" for number in (2, 4)), *others}


def test_the_folder_is_named_by_an_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_code.VARIABLE, "~/compiled")
    assert refusal(compiled_code.shared_folder).where == compiled_code.VARIABLE


@pytest.fixture
def command(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("mrt_hpc.inference.server_start.is_on_cpu", lambda: False)
    monkeypatch.setattr(compiled_code, "GPUS", tmp_path / "gpus")
    has_gpu(tmp_path, "NVIDIA H100 80GB HBM3")

    def made(where: str = "one", *, layers: int = 2, **changes: Any) -> ServerCommand:
        (private := tmp_path / f"server-{where}").mkdir(exist_ok=True)
        weights = tmp_path / f"weights-{where}-{layers}"
        Qwen3Config(
            hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            vocab_size=512, architectures=["Qwen3ForCausalLM"],
        ).save_pretrained(weights)  # fmt: skip
        usual = {"max_model_len": 512, "extra_args": ("--enable-chunked-prefill",), "compiled_code": folder}
        return ServerCommand(ServerSettings(**{"model_dir": weights} | usual | changes), weights, 7, private, key=where)

    return made


def has_gpu(tmp_path: Path, model: str) -> None:
    for number in range(2):
        (place := tmp_path / "gpus" / f"0000:{number}").mkdir(parents=True, exist_ok=True)
        (place / "information").write_text(f"Model: \t\t {model}\nGPU UUID: \t GPU-{number}\n")


def archive_of(command: ServerCommand) -> str:
    assert command.compiled_code is not None
    return command.compiled_code.archive.name


def test_what_changes_the_code_has_its_own_archive(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[dict[str, object]] = [
        {}, {"layers": 3}, {"dtype": "float16"}, {"max_model_len": 1024}, {"max_num_seqs": 8}, {"tensor_parallel": 2},
        {"sleeps": True}, {"noise_by_request": True}, {"extra_args": ()},
    ]  # fmt: skip
    found = [archive_of(command(**change)) for change in changes]
    same: list[dict[str, object]] = [{}, {"seed": 5}, {"gpus": ("3",)}, {"start_deadline_s": 5.0}]
    assert {archive_of(command("other", **change)) for change in same} == {found[0]}, "other weights share their code"
    has_gpu(tmp_path, "NVIDIA A100-SXM4-40GB")
    found.append(archive_of(command()))
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "0")
    found.append(archive_of(command()))
    monkeypatch.setattr(compiled_code, "installed_version", lambda package: "0.99" if package == "vllm" else None)
    found.append(archive_of(command()))
    assert len({*found}) == len(found)


def test_only_a_server_whose_caches_are_ours_keeps_code(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for last in ("--enforce-eager", "--no-enforce-eager"):
        of_both = command(extra_args=("--enforce-eager", last))
        assert (of_both.compiled_code is None) == (last == "--enforce-eager")
        assert ("VLLM_CACHE_ROOT" in of_both.environment()) == (last != "--enforce-eager")
    assert command(compiled_code=None).compiled_code is command(over_ray=True).compiled_code is None
    for name in KEPT:
        with monkeypatch.context() as patch:
            patch.setenv(name, "/scratch/of/the/site")
            assert (command().compiled_code, command().environment()[name]) == (None, "/scratch/of/the/site")


def test_vllm_itself_has_one_key_for_two_weights_versions(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.compilation.caching import aot_compile_hash_factors
    from vllm.engine.arg_utils import AsyncEngineArgs

    def key(where: str) -> list[str]:
        begun = command(where)
        words, environment = begun.words(), begun.environment()
        for name in environment:
            if name.startswith("VLLM_"):
                monkeypatch.setenv(name, environment[name])
        for _ in range(2):  # it begins again, with other weights
            begun.link_weights()
            monkeypatch.chdir(begun.directory)
        model = words[words.index("--model") + 1]
        assert Path(model).resolve() == begun.model_dir
        arguments = AsyncEngineArgs(model=model, max_model_len=128, dtype="float32", skip_tokenizer_init=True)
        return aot_compile_hash_factors(arguments.create_engine_config())

    assert key("one") == key("other")
