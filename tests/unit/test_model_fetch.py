"""Models are fetched from the hub into its cache, checked, and found there without a network."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as hub_constants
import numpy as np
import pytest
from basics import QUICKSTART
from commands import python, refusal, typed
from hub_server import COMMIT, Faults, Repository, serving
from huggingface_hub import scan_cache_dir, snapshot_download
from ruamel.yaml import YAML
from run_of import run_of
from safetensors.numpy import save

from mrt_hpc.backends.slurm.plain_paths import folders_read
from mrt_hpc.errors import ExitCode
from mrt_hpc.evaluate.asked_models import models_asked
from mrt_hpc.hub import fetch_model
from mrt_hpc.recipe import hub_models
from mrt_hpc.recipe.hub_models import CachedModel, HubModel, cache_directory, cached_directory, is_same_model
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.retries import wait_until
from mrt_hpc.submit.changes import changes
from mrt_hpc.submit.submission import kept_recipe

AWAY = "http://127.0.0.1:9"
NAME = "lab/tiny-0.1B"
HUB = f"hub:{NAME}"
SNAPSHOT = f"models--lab--tiny-0.1B/snapshots/{COMMIT}"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"
FIRST, LAST = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
NEEDED = {
    "config.json": json.dumps({"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 4096}).encode(),
    "model.safetensors.index.json": json.dumps({"weight_map": {"weight1": FIRST, "weight2": LAST}}).encode(),
    "tokenizer.json": b"{}",
    "tokenizer_config.json": json.dumps({"chat_template": "{{ messages[0].content }}"}).encode(),
    **{name: save({"weight": np.full((64, 64), i, np.float32)}) for i, name in enumerate((FIRST, LAST))},
}
NOT_NEEDED = {
    "README.md": b"# A model", ".gitattributes": b"*.safetensors filter=lfs", "pytorch_model.bin": b"\1" * 5000,
    "consolidated.safetensors": b"\2" * 5000, "onnx/model.onnx": b"\3" * 5000, "original/params.json": b"{}",
}  # fmt: skip


def tiny(**fields: object) -> Repository:
    return Repository(**{"name": NAME, "files": {**NEEDED, **NOT_NEEDED}, "kind": "models", **fields})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def endpoint(cache: Path) -> Iterator[str]:
    assert not cache.exists()
    yield from serving(tiny())


def fetched(endpoint: str, name: str = NAME) -> Path:
    return fetch_model(HubModel.of(name), endpoint=endpoint)


FETCH = ("-m", "mrt_hpc", "model", "fetch", NAME)


def test_only_what_a_run_needs_is_fetched_as_by_the_hubs_client(endpoint: str, cache: Path) -> None:
    directory = fetched(endpoint)
    assert directory == cache / SNAPSHOT
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == NEEDED
    found = snapshot_download(NAME, cache_dir=cache, local_files_only=True, allow_patterns=list(NEEDED))
    assert Path(found) == directory
    scanned = scan_cache_dir(cache)
    assert (scanned.warnings, [repo.repo_id for repo in scanned.repos]) == ([], [NAME])
    shutil.rmtree(cache)
    assert snapshot_download(NAME, cache_dir=cache, endpoint=endpoint) == cached_directory(HUB)


def test_the_command_fills_the_cache_that_is_asked_for(endpoint: str, cache: Path) -> None:
    done = python(*FETCH, "--cache", "elsewhere", HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="0")
    assert f'model: {{type: hugging_face, path: "{HUB}@{COMMIT}"}}' in done.stdout
    assert CachedModel(HubModel(NAME), cache.parent / "elsewhere").fault() is None


def test_a_stopped_command_goes_on_with_the_files_that_are_missing(cache: Path) -> None:
    repository = tiny(faults=Faults(stalls={LAST}))
    first = cache / SNAPSHOT / FIRST
    for endpoint in serving(repository):
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
        with subprocess.Popen([sys.executable, *FETCH], env=environment, stdout=subprocess.DEVNULL) as process:
            wait_until(
                lambda: first.is_file() and LAST in dict(repository.fetched), reason="the first file", deadline_s=60
            )
            process.kill()
        assert cached_directory(HUB) == HUB
        assert CachedModel(HubModel(NAME), cache).fault() is not None

        repository.faults.stalls.clear()
        repository.fetched.clear()
        directory = fetched(endpoint)
        assert {FIRST, LAST} & dict(repository.fetched).keys() == {LAST}
        assert cached_directory(HUB) == str(directory)


def test_a_broken_connection_is_taken_up_where_it_broke(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    repository = tiny(faults=Faults(breaks={LAST: 1}))
    for endpoint in serving(repository):
        fetched(endpoint)
        _, again = [start for name, start in repository.fetched if name == LAST]
        assert len(NEEDED[LAST]) // 2 - 1024 < again <= len(NEEDED[LAST]) // 2
    assert (cache / SNAPSHOT / LAST).read_bytes() == NEEDED[LAST]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", [LAST, "tokenizer_config.json"])
def test_a_file_that_differs_from_the_hubs_checksum_is_refused(name: str) -> None:
    repository = tiny(faults=Faults(changed={name}))
    for endpoint in serving(repository):
        refused = refusal(fetched, endpoint)
        assert (Path(str(refused.where)).name, refused.exit_code) == (name, ExitCode.RETRYABLE)
        assert cached_directory(HUB) == HUB
        repository.faults.changed.clear()
        for path in (refused.advice or "").removeprefix("rm ").partition(",")[0].split():
            Path(path).unlink()
        assert (fetched(endpoint) / name).read_bytes() == NEEDED[name]


OUTSIDE = "../../../../../outside"


@pytest.mark.parametrize(
    "lying", [{"commit": OUTSIDE}, {"commit": "/tmp/outside"}, {"faults": Faults(tag=OUTSIDE)},
              {"faults": Faults(header_commit=OUTSIDE)}], ids=["commit", "root", "tag", "header"],
)  # fmt: skip
def test_no_answer_of_a_hub_is_a_path(cache: Path, lying: dict[str, object]) -> None:
    for endpoint in serving(tiny(**lying)):
        refused = refusal(fetched, endpoint)
        assert refused.what.startswith("the hub answers with") and "outside" in str(refused.value)
    written = {path for path in cache.parent.rglob("*") if path.is_file() and "outside" in str(path)}
    assert not written and not list(cache.rglob("*.safetensors"))


def test_a_pinned_model_needs_no_hub_and_its_checksums_are_read_again(endpoint: str) -> None:
    directory = fetched(endpoint)
    assert fetched(AWAY, f"{NAME}@{COMMIT}") == directory
    (directory / LAST).resolve().write_bytes(b"\0" * len(NEEDED[LAST]))
    assert refusal(fetched, AWAY, f"{NAME}@{COMMIT}").where == directory / LAST


def test_what_the_hub_does_not_have_is_told_from_a_hub_that_is_away(endpoint: str) -> None:
    for name in ("lab/none", f"{NAME}@v9"):
        refused = refusal(fetched, endpoint, name)
        assert (refused.value, refused.exit_code) == (name, ExitCode.FATAL)
    assert refusal(fetched, AWAY).exit_code == ExitCode.RETRYABLE


def test_a_model_without_safetensors_is_refused_and_no_other_weights_are_fetched(cache: Path) -> None:
    repository = tiny(files={"config.json": b"{}", "pytorch_model.bin": b"\1" * 5000})
    for endpoint in serving(repository):
        assert "safetensors" in refusal(fetched, endpoint).message()
        assert [name for name, _ in repository.fetched] == ["config.json"]
        assert not CachedModel(HubModel(NAME), cache).ref.exists()


def test_names_of_models() -> None:
    assert HubModel.of("a/b") == HubModel.of("hub:a/b") == HubModel("a/b", "main")
    assert HubModel.of("hub:a/b.c-1@refs/pr/1") == HubModel("a/b.c-1", "refs/pr/1")
    for text in ("b", "a/b/c", "a/b@", "a/b@../../x", "a/../b", "a--b/c", "a b/c", "hub:", "/a/b", "a/b@v/.."):
        assert refusal(HubModel.of, text).value == text
    here, there = f"/a/models--lab--m/snapshots/{COMMIT}", f"/b/models--lab--m/snapshots/{COMMIT}"
    others = ("hub:lab/m@v2", f"/a/models--lab--m/snapshots/{OTHER}", "/models/m")
    assert [other for other in (there, "hub:lab/m", *others) if is_same_model(here, other)] == [there, "hub:lab/m"]
    assert not is_same_model("/models/m", "/models/m")
    assert hub_models.hub_model_of(here) == HubModel("lab/m", COMMIT)
    assert hub_models.hub_model_of(f"/a/datasets--lab--m/snapshots/{COMMIT}") is None


VARIABLES = [
    "HF_HUB_CACHE=/a/hub HF_HOME=/b", "HUGGINGFACE_HUB_CACHE=/c HF_HOME=/b",
    "HF_HOME=$SCRATCH/hf SCRATCH=/s XDG_CACHE_HOME=/x", "XDG_CACHE_HOME=/x", "HOME=/home/me",
    "HOME=/home/me HF_HOME=~/hf",
]  # fmt: skip


def test_the_cache_is_that_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for variables in VARIABLES:
        with monkeypatch.context() as patch:
            for variable in variables.split():
                patch.setenv(*variable.split("="))
            assert str(cache_directory()) == importlib.reload(hub_constants).HF_HUB_CACHE, variables
    monkeypatch.undo()
    importlib.reload(hub_constants)


def model(text: str) -> str:
    return f"model={{type: hugging_face, path: '{text}'}}"


def put(cache: Path, commit: str = COMMIT, *, ref: str | None = "main") -> Path:
    cached = CachedModel(HubModel(NAME, ref or commit), cache)
    directory = cached.snapshot(commit)
    directory.mkdir(parents=True)
    for file, content in NEEDED.items():
        (directory / file).write_bytes(content)
    if ref is not None:
        cached.ref.parent.mkdir(parents=True, exist_ok=True)
        cached.ref.write_text(commit)
    return directory


def test_plan_says_what_to_fetch_and_submit_refuses_with_the_same_facts(cache: Path) -> None:
    for field, change in (("model.path", model(f"{HUB}@v1")), ("prover.model", f"prover.model={HUB}@v1")):
        planned = typed("plan", QUICKSTART, "--set", change).output
        line = next(line for line in planned.splitlines() if "not there yet" in line)
        refused = typed("submit", QUICKSTART, "--set", change, exits=ExitCode.FATAL).output
        for fact in (field, str(cache), f"mrt-hpc model fetch {NAME}@v1"):
            assert fact in line and fact in refused, fact
    assert not (cache.parent / "runs").exists()


def test_a_model_that_is_not_whole_is_told_by_its_files_and_a_wrong_name_with_its_field(endpoint: str) -> None:
    (fetched(endpoint) / LAST).unlink()
    assert LAST in typed("plan", QUICKSTART, "--set", model(HUB)).output
    assert "model.path" in typed("plan", QUICKSTART, "--set", model("hub:tiny"), exits=ExitCode.FATAL).output


def test_a_recipe_and_its_base_take_the_directory_in_the_cache_and_the_lock_keeps_the_commit(cache: Path) -> None:
    directory = put(cache)
    Path("bases").mkdir()
    Path("bases/base.yaml").write_text(f"extends: quickstart\nmodel: {{type: hugging_face, path: '{HUB}'}}\n")
    Path("mine.yaml").write_text("extends: bases/base\nname: mine\n")
    recipe = load_recipe(Path("mine.yaml"), (f"prover.model={HUB}@{COMMIT}",))
    assert recipe.prover and recipe.prover.model == str(directory)
    assert str(cache) in folders_read(recipe), "a container binds the whole cache"
    assert "not there yet" not in typed("plan", QUICKSTART, "--set", model(HUB)).output
    lock = YAML(typ="safe").load(run_of(Path("run"), recipe=recipe).recipe_lock.read_text())
    assert lock["hub_models"] == {"model.path": f"{NAME}@{COMMIT}", "prover.model": f"{NAME}@{COMMIT}"}
    assert lock["recipe"]["model"]["path"] == str(directory)


def test_a_run_goes_on_with_its_commit_wherever_the_cache_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = put(cache)
    layout = run_of(Path("run"), recipe=load_recipe(QUICKSTART, (model(HUB),)))

    def differing(text: str = HUB) -> list[str]:
        kept = kept_recipe(layout, load_recipe(QUICKSTART, (model(text),)), lambda _: None)
        return [change.field + ("!" if change.refused else "") for change in changes(layout, kept)]

    monkeypatch.setenv("HF_HUB_CACHE", str(cache.parent / "moved"))
    assert (differing(), differing(f"{HUB}@{COMMIT}"), differing(f"{HUB}@{OTHER}")) == ([], [], ["model.path!"])
    assert differing("hub:lab/other") == ["model.path!"]
    put(cache.parent / "moved")
    assert differing() == []
    shutil.rmtree(directory)
    assert differing() == ["model.path"]
    put(cache.parent / "moved", OTHER)
    assert differing() == ["model.path!"]


def test_models_of_the_hub_are_evaluated_by_their_names(cache: Path) -> None:
    command = ("eval", HUB, "--suite", "small_world")
    for told in (typed(*command, "--plan").output, typed(*command, exits=ExitCode.FATAL).output):
        assert f"mrt-hpc model fetch {NAME}" in told
    first, second = put(cache), put(cache, OTHER, ref="v2")
    planned = typed(*command, "--plan").output
    assert ("not there yet" in planned, "eval-small_world-tiny-0.1B-" in planned) == (False, True)
    assert {m.name: m.path for m in models_asked([HUB]).models} == {"tiny-0.1B": str(first)}
    both = models_asked([HUB, f"{HUB}@v2", f"{HUB}@{COMMIT}"]).models
    assert {m.name: m.path for m in both} == {f"{NAME}@01234567": str(first), f"{NAME}@89abcdef": str(second)}
