"""The sbatch texts: made without Slurm, and what they say."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from basics import executable
from pydantic import ValidationError
from slurm_submissions import job, plan
from tables import tables

from mrt_hpc.backends.slurm.arrays import sbatch_texts, submit_arrays
from mrt_hpc.backends.slurm.environment import SlurmTask
from mrt_hpc.backends.slurm.plain_paths import bind_models
from mrt_hpc.backends.slurm.queue import queue_states
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
SITE = SlurmSite(name="here", python="/opt/python")
LAYOUT = RunLayout(Path("/runs/first"))


def site(**fields: object) -> SlurmSite:
    return SlurmSite.model_validate_json(json.dumps({"name": "here", "python": "/opt/python", **fields}))


def text_of(one: Job, site: SlurmSite = SITE, layout: RunLayout = LAYOUT) -> str:
    ((_, text),) = sbatch_texts(plan(one), site, layout)
    return text


def asked(text: str) -> dict[str, str]:
    """The #SBATCH lines as sbatch reads them; an option without a value has an empty one."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    return {name: shlex.split(value)[0] if value else "" for name, _, value in (line.partition("=") for line in lines)}


TABLES = tables("slurm_texts")


@pytest.mark.parametrize(("given", "fields", "expected"), TABLES["asked"])
def test_what_a_job_asks_for(
    given: dict[str, object], fields: dict[str, object], expected: dict[str, str | None]
) -> None:
    found = asked(text_of(job("a", **given), site(**fields)))
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(("options", "instead"), TABLES["refused"])
def test_an_option_that_would_contradict_the_plan_is_refused_with_the_field_in_its_place(
    options: dict[str, object], instead: str, tmp_path: Path
) -> None:
    (profile := tmp_path / "site.yaml").write_text(json.dumps({"type": "slurm", "name": "here", "sbatch": options}))
    with pytest.raises(UserError) as refused:
        load_site(profile)
    assert instead in str(refused.value.expected)
    assert refused.value.what == f"sbatch{'' if 'gres' in options else f'.{next(iter(options))}'}: wrong value"


def test_a_plan_becomes_one_text_a_job_in_order_with_dependencies_as_names() -> None:
    texts = sbatch_texts(plan(job("a", tasks=1000), job("b"), job("c", ok=("a",), any=("b",))), SITE, LAYOUT)
    assert [name for name, _ in texts] == ["a", "b", "c"]
    assert asked(texts[2][1])["dependency"] == "afterok:{a},afterany:{b}"


def test_a_rank_has_the_cpus_and_threads_that_it_asked_for() -> None:
    text = text_of(job("a", ranks=4), site(environment={"OMP_NUM_THREADS": "3"}))
    assert "--cpus-per-task=1" in text.split("srun ")[1]
    lines = [line for line in text.splitlines() if "OMP_NUM_THREADS" in line]
    assert lines == ["export OMP_NUM_THREADS=1", "export OMP_NUM_THREADS=3"], "the site has the last word"


def test_values_of_the_environment_survive_the_shell() -> None:
    awkward = 'it\'s $HOME; `id` "x" \\'
    text = text_of(job("a"), site(setup=("true",), environment={"AWKWARD": awkward}, scratch='/s/$WHO/"a"'))
    lines = [line for line in text.splitlines() if line.startswith("export ")]
    script = "WHO=me; " + "; ".join(lines) + '; printf "%s|%s" "$AWKWARD" "$TMPDIR"'
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown == f'{awkward}|/s/me/"a"'


def test_the_container_holds_python_and_sees_the_run() -> None:
    container = {"image": "/images/a b.sif", "binds": ("/data:/data",)}
    words = shlex.split(text_of(job("a", gpus=1), site(container=container)).split("\nsrun ")[1])
    start = words.index("apptainer")
    assert words[start : start + 9] == [
        "apptainer", "exec", "--nv", "--bind", "/runs/first:/runs/first", "--bind", "/data:/data", "/images/a b.sif",
        "python3",
    ]  # fmt: skip


SHIFTER = ["shifter", "--image={image}", "--volume={bind}"]
PODMAN = ["podman-hpc", "run", "--rm", "--gpu", "--network=host", "--volume={bind}", "{image}"]
PYXIS = ["--container-image={image}", "--container-mounts={bind}"]


def commands_of(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """What the line of srun starts, run by bash with scripts in the place of the tools; and the words of the end of
    the job.
    """
    words = shlex.split(text.split("\nsrun ")[1].split("\n")[0])
    for tool in ("shifter", "podman-hpc", "python9"):
        executable(folder / tool, 'printf "%s\\n" "$(basename "$0")" "$@"')
    start = words.index("/bin/bash")
    path = {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder / "a&b")}
    done = subprocess.run(words[start:], env=path, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), shlex.split(text.split("settle() {")[1].split("$code")[0])


def test_a_command_of_the_profile_starts_the_image_with_the_folders_of_the_run(tmp_path: Path) -> None:
    temporary, run = f"{tmp_path}/a&b", "/runs/first:/runs/first"
    for command, begins in (
        (SHIFTER, ["shifter", "--image=lab/mrt:1", f"--volume={run}", f"--volume={temporary}:{temporary}",
                   "--volume=/data:/data"]),
        (PODMAN, ["podman-hpc", *PODMAN[1:5], f"--volume={run}", f"--volume={temporary}:{temporary}",
                  "--volume=/data:/data", "lab/mrt:1"]),
    ):  # fmt: skip
        container = {"image": "lab/mrt:1", "command": command, "binds": ["/data"], "python": "python9"}
        started, settles = commands_of(tmp_path, text_of(job("a", gpus=1), site(container=container)))
        assert started[: len(begins) + 1] == [*begins, "python9"]
        without = [word for word in begins if temporary not in word]
        assert settles[: len(without) + 1] == [*without, "python9"]


def test_srun_starts_the_image_where_all_words_are_its_options(tmp_path: Path) -> None:
    container = {"image": "/images/mrt.sqsh", "command": PYXIS, "binds": ["/data"], "python": "python9"}
    text = text_of(job("a"), site(container=container))
    options = ["--container-image=/images/mrt.sqsh", "--container-mounts=/runs/first:/runs/first,/data:/data"]
    line = shlex.split(text.split("\nsrun ")[1].split("\n")[0])
    assert line.index("/bin/bash") > line.index(options[0]) and set(options) <= set(line)
    started, settles = commands_of(tmp_path, text)
    assert (started[0], settles[:4]) == ("python9", ["srun", "--nodes=1", "--ntasks=1", "--export=ALL"])
    assert settles[4:7] == [*options, "python9"]


def test_words_that_leave_out_the_image_or_its_folders_are_refused() -> None:
    for container, fault in (
        ({"command": ["shifter", "--image=other", "--volume={bind}"]}, "{image}"),
        ({"command": ["shifter", "--image={image}"]}, "{bind}"),
        ({"command": SHIFTER, "unpack": True}, "Apptainer unpacks"),
    ):
        with pytest.raises(ValidationError, match=fault):
            site(container={"image": "x", **container})


@pytest.mark.parametrize("path", ["/runs/50%", "/home/LAB\\me/run", "/runs/a\n#SBATCH --uid=0"])
def test_a_path_that_slurm_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(UserError) as refused:
        text_of(job("a"), layout=RunLayout(Path(path)))
    assert (refused.value.value, "--run" in str(refused.value.advice)) == (path, True)


def test_a_backslash_of_the_profile_reaches_sbatch_as_it_stands() -> None:
    """sbatch takes a backslash as an escape, also within quotes; lines of the shell stay as they are."""
    lines = text_of(job("a"), site(account="LAB\\group", setup=("echo a\\b",))).splitlines()
    assert "#SBATCH --account='LAB\\\\group'" in lines
    assert "echo a\\b" in lines


def test_without_slurm_texts_are_made_and_a_submission_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    layout = RunLayout(tmp_path / "run")
    assert "#SBATCH --job-name=run.a.NEW\n" in text_of(job("a"), layout=layout)
    assert not layout.root.exists()
    with pytest.raises(UserError, match="squeue was not found"):
        submit_arrays(plan(job("a")).jobs, SITE, layout, known_ids={}, record=lambda *_: None)
    with pytest.raises(UserError, match="was not found"):
        queue_states(["1"])


def test_ranks_come_from_slurms_variables() -> None:
    variables = {
        "SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3", "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURMD_NODENAME": "n7", "SLURM_RESTART_COUNT": "2",
    }  # fmt: skip
    task = SlurmTask.from_environment(variables)
    assert task is not None
    assert (task.rank, task.world_size, task.local_rank) == (5, 8, 1)
    assert (task.task_id, task.array_index, task.node, task.restarts) == ("10_3", 3, "n7", 2)
    assert SlurmTask.from_environment({}) is None
    with pytest.raises(UserError, match="SLURM_PROCID"):
        SlurmTask.from_environment({"SLURM_JOB_ID": "1", "SLURM_PROCID": "x"})


def started(text: str, environment: dict[str, str], program: str) -> str:
    """What a task's start line runs, with a program in place of Python or Apptainer."""
    words = shlex.split(text.split("\nsrun ")[1])
    bash = words.index("/bin/bash")
    assert words[bash + 1] == "-c"
    command = ["bash", "-c", words[bash + 2], "bash", "-c", program]
    variables = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


def test_what_is_compiled_is_kept_on_the_node_and_not_in_the_home_directory(tmp_path: Path) -> None:
    environment = {"HOME": "/home/me", "TMPDIR": str(tmp_path / "mine"), "TRITON_CACHE_DIR": "/shared/triton"}
    names = ["VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "CUDA_CACHE_PATH"]
    shown = started(text_of(job("a")), environment, "; ".join(f"echo ${name}" for name in ["TRITON_CACHE_DIR", *names]))
    first, *others = shown.split()
    assert first == "/shared/triton", "what the site or the user says has the last word"
    assert len(others) == len(names)
    for folder in others:
        assert Path(folder).is_relative_to(tmp_path / "mine")
    (caches,) = (tmp_path / "mine").iterdir()
    assert caches.stat().st_mode & 0o777 == 0o700


def test_a_container_sees_the_folder_for_temporary_files(tmp_path: Path) -> None:
    text, environment = text_of(job("a"), site(container={"image": "/i.sif"})), {"TMPDIR": str(tmp_path)}
    bound = started(text, {**environment, "APPTAINER_BIND": "/site"}, "echo $APPTAINER_BIND $SINGULARITY_BIND")
    assert bound.split() == [f"/site,{tmp_path}", str(tmp_path)]
    assert started(text, {}, "echo $APPTAINER_BIND").strip() == ""


def test_a_container_sees_every_model_of_the_recipe(tmp_path: Path) -> None:
    blobs, snapshot, prover = tmp_path / "blobs", tmp_path / "snapshot", tmp_path / "prover"
    for folder in (blobs, snapshot, prover):
        folder.mkdir()
    (blobs / "weights").write_text("")
    (snapshot / "model.safetensors").symlink_to(blobs / "weights")
    changes = (f"model={{type: hugging_face, path: {snapshot}}}", f"prover.model={prover}")
    recipe = load_recipe(ROOT / "recipes" / "mrt_online.yaml", changes)
    found = bind_models(site(container={"image": "/i.sif", "binds": ("/shared:/data", str(prover))}), recipe)
    assert found.container is not None
    assert found.container.binds == ("/shared:/data", str(prover), str(blobs), str(snapshot))
    assert f"--bind {snapshot}" in text_of(job("a"), found)
    assert bind_models(SITE, recipe) == SITE
