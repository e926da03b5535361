"""Models are fetched from the hub into its cache, checked, and found there without a network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hub_server import COMMIT, Faults, Repository, serving
from ruamel.yaml import YAML
from safetensors.numpy import save

from mrt_hpc.backends.slurm.containers import folders_read
from mrt_hpc.cli.main import main
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.evaluate.models import models_asked
from mrt_hpc.hub import fetch_model
from mrt_hpc.recipe.hub_models import (
    CachedModel,
    HubModel,
    cache_directory,
    found_in_cache,
    hub_model_of,
    is_same_model,
)
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.submit.submission import kept_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
NAME = "lab/tiny-0.1B"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"
WEIGHTS = {
    f"model-0000{i}-of-00002.safetensors": save({f"weight{i}": np.full((64, 64), i, np.float32)}) for i in (1, 2)
}
NEEDED = {
    "config.json": json.dumps({"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 4096}).encode(),
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {f"weight{i}": name for i, name in enumerate(WEIGHTS, start=1)}}
    ).encode(),
    "tokenizer.json": b"{}",
    "tokenizer_config.json": json.dumps({"chat_template": "{{ messages[0].content }}"}).encode(),
    **WEIGHTS,
}
NOT_NEEDED = {
    "README.md": b"# A model",
    ".gitattributes": b"*.safetensors filter=lfs",
    "pytorch_model.bin": b"\1" * 5000,
    "consolidated.safetensors": b"\2" * 5000,
    "onnx/model.onnx": b"\3" * 5000,
    "original/params.json": b"{}",
}
FIRST, LAST = WEIGHTS


def tiny(**fields: object) -> Repository:
    """A model of the hub, with files that are not needed."""
    return Repository(**{"name": NAME, "files": {**NEEDED, **NOT_NEEDED}, "kind": "models", **fields})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, and a working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def repository() -> Repository:
    return tiny()


@pytest.fixture
def endpoint(repository: Repository, cache: Path) -> Iterator[str]:
    assert not cache.exists()
    yield from serving(repository)


def fetched(endpoint: str, name: str = NAME) -> Path:
    return fetch_model(HubModel.of(name), endpoint=endpoint)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def started(endpoint: str, *arguments: str) -> subprocess.Popen[str]:
    """The command as a process of its own."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "mrt_hpc", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


# -- fetching ---------------------------------------------------------------------------------------------------------


def test_only_what_a_run_needs_is_fetched(endpoint: str, repository: Repository, cache: Path) -> None:
    directory = fetched(endpoint)
    assert directory == cache / "models--lab--tiny-0.1B" / "snapshots" / COMMIT
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == NEEDED
    assert {name for name, _ in repository.fetched} == set(NEEDED)


def test_the_hubs_own_client_finds_the_model_too(endpoint: str, cache: Path) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download

    directory = fetched(endpoint)
    assert (
        Path(snapshot_download(NAME, cache_dir=cache, local_files_only=True, allow_patterns=list(NEEDED))) == directory
    )
    scanned = scan_cache_dir(cache)
    assert not scanned.warnings
    assert [repo.repo_id for repo in scanned.repos] == [NAME]


def test_a_model_that_another_program_has_fetched_is_found(endpoint: str, cache: Path) -> None:
    from huggingface_hub import snapshot_download

    directory = snapshot_download(NAME, cache_dir=cache, endpoint=endpoint)
    assert found_in_cache(f"hub:{NAME}") == directory


def test_the_command_says_what_to_type_next(endpoint: str, cache: Path) -> None:
    process = started(endpoint, "model", "fetch", NAME, "--cache", "elsewhere")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    place = cache.parent / "elsewhere"
    assert f"fetched {NAME}@{COMMIT}: {len(NEEDED)} files" in out
    assert f"export HF_HUB_CACHE={place}" in out
    assert f'model: {{type: hugging_face, path: "hub:{NAME}@{COMMIT}"}}' in out
    assert f"next: mrt-hpc plan RECIPE --set model.path=hub:{NAME}" in out
    assert CachedModel(HubModel(NAME), place).fault() is None


def test_a_stopped_command_goes_on_with_the_files_that_are_missing(cache: Path) -> None:
    repository = tiny(faults=Faults(stalls={LAST}))
    for endpoint in serving(repository):
        process = started(endpoint, "model", "fetch", NAME)
        first = cache / "models--lab--tiny-0.1B" / "snapshots" / COMMIT / FIRST
        deadline = time.monotonic() + 60
        while not (first.is_file() and LAST in dict(repository.fetched)) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        assert first.is_file()
        assert found_in_cache(f"hub:{NAME}") == f"hub:{NAME}"
        assert "is not in the hub's cache" in (CachedModel(HubModel(NAME), cache).fault() or "")

        repository.faults.stalls.clear()
        repository.fetched.clear()
        directory = fetched(endpoint)
        assert LAST in dict(repository.fetched)
        assert FIRST not in dict(repository.fetched)
        assert found_in_cache(f"hub:{NAME}") == str(directory)


def test_a_broken_connection_is_taken_up_where_it_broke(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as hub_constants

    monkeypatch.setattr(hub_constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    repository = tiny(faults=Faults(breaks={LAST: 1}))
    for endpoint in serving(repository):
        fetched(endpoint)
        places = [start for name, start in repository.fetched if name == LAST]
        assert len(places) == 2
        assert len(NEEDED[LAST]) // 2 - 1024 < places[1] <= len(NEEDED[LAST]) // 2
    assert (cache / "models--lab--tiny-0.1B" / "snapshots" / COMMIT / LAST).read_bytes() == NEEDED[LAST]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", [LAST, "tokenizer_config.json"])
def test_a_file_that_differs_from_the_hubs_checksum_is_refused(name: str) -> None:
    repository = tiny(faults=Faults(changed={name}))
    for endpoint in serving(repository):
        with pytest.raises(UserError, match="differs from its checksum") as caught:
            fetched(endpoint)
        assert name in str(caught.value)
        assert caught.value.exit_code == ExitCode.RETRYABLE
        assert found_in_cache(f"hub:{NAME}") == f"hub:{NAME}"

        repository.faults.changed.clear()
        for path in (caught.value.advice or "").removeprefix("rm ").partition(",")[0].split():
            Path(path).unlink()
        assert (fetched(endpoint) / name).read_bytes() == NEEDED[name]


def test_a_pinned_model_needs_no_hub_and_its_checksums_are_read_again(endpoint: str) -> None:
    directory = fetched(endpoint)
    away = "http://127.0.0.1:9"
    assert fetched(away, f"{NAME}@{COMMIT}") == directory
    (directory / LAST).resolve().write_bytes(b"\0" * len(NEEDED[LAST]))
    with pytest.raises(UserError, match="differs from its checksum"):
        fetched(away, f"{NAME}@{COMMIT}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lab/none", "the hub refuses"),
        (f"{NAME}@v9", "the hub refuses"),
    ],
)
def test_what_the_hub_does_not_have(endpoint: str, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        fetched(endpoint, name)
    assert caught.value.exit_code == ExitCode.FATAL


def test_a_hub_that_is_away_may_be_tried_again(cache: Path) -> None:
    with pytest.raises(UserError, match="cannot be reached") as caught:
        fetched("http://127.0.0.1:9")
    assert caught.value.exit_code == ExitCode.RETRYABLE
    assert f"mrt-hpc model fetch {NAME}" in str(caught.value)
    assert str(cache) in str(caught.value)


def test_a_model_without_safetensors_is_refused_and_no_other_weights_are_fetched(cache: Path) -> None:
    repository = tiny(files={"config.json": b"{}", "pytorch_model.bin": b"\1" * 5000})
    for endpoint in serving(repository):
        with pytest.raises(UserError, match="safetensors"):
            fetched(endpoint)
        assert [name for name, _ in repository.fetched] == ["config.json"]
        assert not CachedModel(HubModel(NAME), cache).ref.exists()


# -- names ------------------------------------------------------------------------------------------------------------


def test_names_of_models() -> None:
    assert HubModel.of("a/b") == HubModel.of("hub:a/b") == HubModel("a/b", "main")
    assert HubModel.of("hub:a/b.c-1@refs/pr/1") == HubModel("a/b.c-1", "refs/pr/1")
    assert HubModel.of(f"a/b@{COMMIT}").command == f"mrt-hpc model fetch a/b@{COMMIT}"


@pytest.mark.parametrize(
    "text", ["b", "a/b/c", "a/b@", "a/b@../../x", "a/../b", "a--b/c", "a b/c", "hub:", "/a/b", "a/b@v/.."]
)
def test_wrong_names_of_models(text: str) -> None:
    with pytest.raises(UserError, match="not the name of a model"):
        HubModel.of(text)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "/a/hub", "HF_HOME": "/b"}, "/a/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/x"}, "/b/hub"),
        ({"HF_HOME": "$SCRATCH/hf", "SCRATCH": "/s"}, "/s/hf/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HOME": "/home/me"}, "/home/me/.cache/huggingface/hub"),
        ({"HOME": "/home/me", "HF_HOME": "~/hf"}, "/home/me/hf/hub"),
    ],
)
def test_the_cache_is_that_of_the_hubs_client(
    variables: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == Path(place)
    script = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == place


# -- in recipes -------------------------------------------------------------------------------------------------------


def model(text: str) -> tuple[str, str]:
    return "--set", f"model={{type: hugging_face, path: '{text}'}}"


def prover(text: str) -> tuple[str, str]:
    return "--set", f"prover.model={text}"


def put(cache: Path, commit: str = COMMIT, name: str = NAME, *, ref: str | None = "main") -> Path:
    """A whole model in the cache, as the hub's client lays it out."""
    cached = CachedModel(HubModel(name, ref or commit), cache)
    directory = cached.snapshot(commit)
    directory.mkdir(parents=True)
    for file, content in NEEDED.items():
        (directory / file).write_bytes(content)
    if ref is not None:
        cached.ref.parent.mkdir(parents=True, exist_ok=True)
        cached.ref.write_text(commit)
    return directory


@pytest.mark.parametrize("option", [model, prover])
def test_plan_says_what_to_fetch_and_submit_refuses_with_the_same_words(cache: Path, option: object) -> None:
    assert callable(option)
    field = "model.path" if option is model else "prover.model"
    planned = invoke("plan", QUICKSTART, *option(f"hub:{NAME}@v1"))
    assert planned.exit_code == 0
    told = f"{NAME}@v1 is not in the hub's cache {cache}"
    command = f"mrt-hpc model fetch {NAME}@v1"
    line = next(line for line in planned.stdout.splitlines() if "not there yet" in line)
    assert line == (
        f"not there yet, submit will refuse: {field}: {told}; next, on a node with network access: {command}"
    )
    refused = invoke("submit", QUICKSTART, *option(f"hub:{NAME}@v1"))
    assert refused.exit_code == ExitCode.FATAL
    for words in (told, command, field):
        assert words in refused.stderr
    assert not (cache.parent / "runs").exists()


def test_a_model_that_is_not_whole_is_told_by_its_files(endpoint: str) -> None:
    (fetched(endpoint) / LAST).unlink()
    planned = invoke("plan", QUICKSTART, *model(f"hub:{NAME}"))
    assert f"it lacks {LAST}" in planned.stdout
    assert f"mrt-hpc model fetch {NAME}" in planned.stdout


def test_a_recipe_takes_the_directory_in_the_cache_and_the_lock_keeps_the_commit(cache: Path) -> None:
    directory = put(cache)
    recipe = load_recipe(QUICKSTART, (model(f"hub:{NAME}")[1], prover(f"hub:{NAME}@{COMMIT}")[1]))
    assert recipe.model.model_dump()["path"] == str(directory)
    assert recipe.prover is not None
    assert recipe.prover.model == str(directory)
    assert "not there yet" not in invoke("plan", QUICKSTART, *model(f"hub:{NAME}")).stdout
    from mrt_hpc.backends.local.site import LocalSite
    from mrt_hpc.plan.compile import compile_plan
    from mrt_hpc.submit.create import create_or_open

    layout = create_or_open(Path("run"), recipe, compile_plan(recipe, LocalSite()))
    lock = YAML(typ="safe").load(layout.recipe_lock.read_text())
    assert lock["hub_models"] == {"model.path": f"{NAME}@{COMMIT}", "prover.model": f"{NAME}@{COMMIT}"}
    assert lock["recipe"]["model"]["path"] == str(directory)


def test_a_base_may_name_a_model_of_the_hub(cache: Path) -> None:
    directory = put(cache)
    Path("bases").mkdir()
    base = f"extends: quickstart\nmodel: {{type: hugging_face, path: 'hub:{NAME}'}}\n"
    (Path("bases") / "base.yaml").write_text(base)
    Path("mine.yaml").write_text("extends: bases/base\nname: mine\n")
    assert load_recipe(Path("mine.yaml")).model.model_dump()["path"] == str(directory)


def test_a_wrong_name_in_a_recipe_is_refused_with_its_field(cache: Path) -> None:
    refused = invoke("plan", QUICKSTART, *model("hub:tiny"))
    assert refused.exit_code == ExitCode.FATAL
    assert "not the name of a model of the hub" in refused.stderr
    assert "model.path" in refused.stderr
    assert cache.name == "hub"


def test_a_run_goes_on_with_its_commit_wherever_the_cache_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mrt_hpc.backends.local.site import LocalSite
    from mrt_hpc.plan.compile import compile_plan
    from mrt_hpc.submit.changes import changes
    from mrt_hpc.submit.create import create_or_open

    directory = put(cache)
    begun = load_recipe(QUICKSTART, (model(f"hub:{NAME}")[1],))
    layout = create_or_open(Path("run"), begun, compile_plan(begun, LocalSite()))

    def differing(text: str = f"hub:{NAME}") -> list[str]:
        """The fields in which a submission differs, those that are refused with a mark."""
        kept = kept_recipe(layout, load_recipe(QUICKSTART, (model(text)[1],)), lambda _: None)
        return [change.field + ("!" if change.refused else "") for change in changes(layout, kept)]

    monkeypatch.setenv("HF_HUB_CACHE", str(cache.parent / "moved"))
    assert differing() == []
    assert differing(f"hub:{NAME}@{COMMIT}") == []
    assert differing(f"hub:{NAME}@{OTHER}") == ["model.path!"]
    assert differing("hub:lab/other") == ["model.path!"]
    put(cache.parent / "moved")
    assert differing() == []
    shutil.rmtree(directory)
    assert differing() == ["model.path"]
    put(cache.parent / "moved", OTHER)
    assert differing() == ["model.path!"]


def test_the_same_model_of_the_hub() -> None:
    here, there = f"/a/models--lab--m/snapshots/{COMMIT}", f"/b/models--lab--m/snapshots/{COMMIT}"
    assert is_same_model(here, there)
    assert is_same_model(here, "hub:lab/m")
    assert not is_same_model(here, "hub:lab/m@v2")
    assert not is_same_model(here, f"/a/models--lab--m/snapshots/{OTHER}")
    assert not is_same_model("/models/m", "/models/m")
    assert hub_model_of(here) == HubModel("lab/m", COMMIT)
    assert hub_model_of(f"/a/datasets--lab--m/snapshots/{COMMIT}") is None


def test_a_container_binds_the_whole_cache(cache: Path) -> None:
    put(cache)
    recipe = load_recipe(QUICKSTART, (model(f"hub:{NAME}")[1],))
    assert str(cache) in folders_read(recipe)


# -- evaluations ------------------------------------------------------------------------------------------------------


def test_models_of_the_hub_are_evaluated_by_their_names(cache: Path) -> None:
    first, second = put(cache), put(cache, OTHER, ref="v2")
    names = {m.name: m.path for m in models_asked([f"hub:{NAME}"]).models}
    assert names == {"tiny-0.1B": str(first)}
    both = models_asked([f"hub:{NAME}", f"hub:{NAME}@v2", f"hub:{NAME}@{COMMIT}"]).models
    assert {m.name: m.path for m in both} == {f"{NAME}@01234567": str(first), f"{NAME}@89abcdef": str(second)}


def test_a_plan_of_an_evaluation_says_what_to_fetch(cache: Path) -> None:
    command = ["eval", f"hub:{NAME}", "--suite", "small_world"]
    planned = invoke(*command, "--plan")
    assert planned.exit_code == 0, planned.stderr
    told = f"{NAME} is not in the hub's cache {cache}; next, on a node with network access: mrt-hpc model fetch {NAME}"
    assert told in planned.stdout
    refused = invoke(*command)
    assert refused.exit_code == ExitCode.FATAL
    assert f"mrt-hpc model fetch {NAME}" in refused.stderr
    put(cache)
    planned = invoke(*command, "--plan")
    assert "not there yet" not in planned.stdout
    assert "eval-small_world-tiny-0.1B-" in planned.stdout
