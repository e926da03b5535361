"""The sbatch texts: made without Slurm, and what they say."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_plans import job, plan

from mrt_hpc.backends.slurm.arrays import sbatch_texts, submit
from mrt_hpc.backends.slurm.containers import with_models_bound
from mrt_hpc.backends.slurm.environment import SlurmTask
from mrt_hpc.backends.slurm.queue import queue_states
from mrt_hpc.backends.slurm.site import Container, GpuRequest, Partitions, SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import RunLayout

SITE = SlurmSite(name="here", python="/opt/python")
LAYOUT = RunLayout(Path("/runs/first"))


def options(text: str) -> dict[str, str | bool]:
    """The #SBATCH lines as sbatch reads them."""
    found: dict[str, str | bool] = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH --"):
            name, has_value, value = line.removeprefix("#SBATCH --").partition("=")
            found[name] = shlex.split(value)[0] if has_value else True
    return found


def text_of(one: object, site: SlurmSite = SITE, layout: RunLayout = LAYOUT) -> str:
    ((_, text),) = sbatch_texts(plan(one), site, layout)  # type: ignore[arg-type]
    return text


def test_a_plan_becomes_one_text_a_job_in_order() -> None:
    texts = sbatch_texts(plan(job("a", tasks=1000), job("b", ok=("a",))), SITE, LAYOUT)
    assert [name for name, _ in texts] == ["a", "b"]


def test_every_job_may_be_requeued_and_dies_with_what_it_waits_for() -> None:
    found = options(text_of(job("a")))
    assert found["requeue"] is True
    assert found["kill-on-invalid-dep"] == "yes"
    assert found["open-mode"] == "append"
    assert found["signal"] == "USR2@90"


def test_dependencies_stand_as_names() -> None:
    found = options(sbatch_texts(plan(job("a"), job("b"), job("c", ok=("a",), any=("b",))), SITE, LAYOUT)[2][1])
    assert found["dependency"] == "afterok:{a},afterany:{b}"


def test_resources_of_a_task_with_ranks() -> None:
    text = text_of(job("t", ranks=4, memory_gib=1.5, gpus=1, minutes=90))
    found = options(text)
    assert (found["nodes"], found["ntasks-per-node"], found["cpus-per-task"]) == ("1", "4", "1")
    assert (found["mem"], found["time"], found["gres"]) == ("6144M", "90", "gpu:4")
    assert "--cpus-per-task=1" in text.split("srun ")[1]


def test_an_array_has_all_its_tasks_and_its_limit() -> None:
    assert options(text_of(job("a", tasks=7, max_parallel=3)))["array"] == "0-6%3"
    assert options(text_of(job("a", tasks=7)))["array"] == "0-6%7"
    assert "array" not in options(text_of(job("a")))


@pytest.mark.parametrize(
    ("request_form", "kind", "expected"),
    [
        (GpuRequest.GRES, None, {"gres": "gpu:2"}),
        (GpuRequest.GRES, "a100", {"gres": "gpu:a100:2"}),
        (GpuRequest.GPUS_PER_NODE, "a100", {"gpus-per-node": "a100:2"}),
        (GpuRequest.NONE, None, {}),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants(request_form: GpuRequest, kind: str | None, expected: dict) -> None:
    site = SITE.model_copy(update={"gpu_request": request_form, "gpu_type": kind})
    found = options(text_of(job("a", gpus=1, ranks=2), site))
    assert {name: found[name] for name in found if name.startswith(("gres", "gpus"))} == expected


def test_partition_by_need_of_gpus_and_the_sites_own_options() -> None:
    site = SlurmSite(
        name="s",
        account="lab",
        qos="long",
        partitions=Partitions(cpu="thin", gpu="fat"),
        memory_request=False,
        sbatch={"constraint": "ib"},
    )
    cpu, gpu = options(text_of(job("a"), site)), options(text_of(job("a", gpus=1), site))
    assert (cpu["partition"], gpu["partition"]) == ("thin", "fat")
    assert (cpu["account"], cpu["qos"], cpu["constraint"]) == ("lab", "long", "ib")
    assert "mem" not in cpu


def test_a_rank_computes_with_as_many_threads_as_it_asked_for() -> None:
    text = text_of(job("a"), SITE.model_copy(update={"environment": {"OMP_NUM_THREADS": "3"}}))
    lines = [line for line in text.splitlines() if "OMP_NUM_THREADS" in line]
    assert lines == ["export OMP_NUM_THREADS=1", "export OMP_NUM_THREADS=3"], "the site has the last word"


def test_values_of_the_environment_survive_the_shell() -> None:
    awkward = 'it\'s $HOME; `id` "x" \\'
    site = SITE.model_copy(update={"setup": ("true",), "environment": {"AWKWARD": awkward}, "scratch": '/s/$WHO/"a"'})
    lines = [line for line in text_of(job("a"), site).splitlines() if line.startswith("export ")]
    script = "WHO=me; " + "; ".join(lines) + '; printf "%s|%s" "$AWKWARD" "$TMPDIR"'
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown == f'{awkward}|/s/me/"a"'


def test_the_container_holds_python_and_sees_the_run() -> None:
    container = Container(image="/images/a b.sif", binds=("/data:/data",))
    text = text_of(job("a", gpus=1), SITE.model_copy(update={"container": container}))
    words = shlex.split(text.split("\nsrun ")[1])
    start = words.index("apptainer")
    assert words[start : start + 8] == [
        "apptainer", "exec", "--nv", "--bind", "/runs/first:/runs/first", "--bind", "/data:/data", "/images/a b.sif",
    ]  # fmt: skip
    assert words[start + 8] == "python3"


@pytest.mark.parametrize("path", ["/runs/50%", "/home/LAB\\me/run", "/runs/a\n#SBATCH --uid=0"])
def test_a_path_that_slurm_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(UserError) as refused:
        text_of(job("a"), layout=RunLayout(Path(path)))
    assert (refused.value.value, "--run" in str(refused.value.advice)) == (path, True)


def test_a_backslash_of_the_profile_reaches_sbatch_as_it_stands() -> None:
    """sbatch takes a backslash as an escape, also within quotes; lines of the shell stay as they are."""
    site = SITE.model_copy(update={"account": "LAB\\group", "setup": ("echo a\\b",)})
    text = text_of(job("a"), site)
    assert "#SBATCH --account='LAB\\\\group'" in text.splitlines()
    assert "echo a\\b" in text.splitlines()


def test_texts_need_no_slurm(tmp_path: Path) -> None:
    """In a process that finds no Slurm command at all."""
    code = (
        "from pathlib import Path; from slurm_plans import job, plan;"
        "from mrt_hpc.backends.slurm.arrays import sbatch_texts;"
        "from mrt_hpc.backends.slurm.site import SlurmSite; from mrt_hpc.run.layout import RunLayout;"
        f"print(sbatch_texts(plan(job('a')), SlurmSite(name='s'), RunLayout(Path({str(tmp_path / 'run')!r})))[0][1])"
    )
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = {"PATH": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "#SBATCH --job-name=run.a.NEW\n" in done.stdout
    assert not (tmp_path / "run").exists()


def test_without_slurm_a_submission_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="squeue was not found"):
        submit(plan(job("a")).jobs, SITE, RunLayout(tmp_path / "run"), known_ids={}, record=lambda *_: None)
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
    environment = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


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
    text = text_of(job("a"), SITE.model_copy(update={"container": Container(image="/i.sif")}))
    bound = started(
        text, {"TMPDIR": str(tmp_path), "APPTAINER_BIND": "/site"}, "echo $APPTAINER_BIND $SINGULARITY_BIND"
    )
    assert bound.split() == [f"/site,{tmp_path}", str(tmp_path)]
    assert started(text, {}, "echo $APPTAINER_BIND").strip() == ""


def test_a_container_sees_every_model_of_the_recipe(tmp_path: Path) -> None:
    blobs, snapshot, prover = tmp_path / "blobs", tmp_path / "snapshot", tmp_path / "prover"
    for folder in (blobs, snapshot, prover):
        folder.mkdir()
    (blobs / "weights").write_text("")
    (snapshot / "model.safetensors").symlink_to(blobs / "weights")
    changes = (f"model={{type: hugging_face, path: {snapshot}}}", f"prover.model={prover}")
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "mrt_online.yaml", changes)
    container = Container(image="/i.sif", binds=("/shared:/data", str(prover)))
    site = with_models_bound(SITE.model_copy(update={"container": container}), recipe)
    assert site.container is not None
    assert site.container.binds == ("/shared:/data", str(prover), str(blobs), str(snapshot))
    assert f"--bind {snapshot}" in text_of(job("a"), site)
    assert with_models_bound(SITE, recipe) == SITE
