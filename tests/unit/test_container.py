"""Container images: what they are built from, that they appear whole, and what a run notices of another image."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import mrt_hpc
from mrt_hpc.attempt.python_look import PythonLook
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import site as site_module
from mrt_hpc.backends.slurm.containers import srun_command
from mrt_hpc.backends.slurm.parameters import python_command
from mrt_hpc.backends.slurm.site import Container, SlurmSite, checksum_file
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.images import (
    ARGUMENTS,
    KINDS,
    BuildFiles,
    ImageAsked,
    build_command,
    build_image,
    check_image,
    image_contents,
)
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.software import noticed_changes

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
BASE = f"registry.example.org:5000/debian@sha256:{'0' * 64}"


def stand_in(folder: Path, script: str) -> str:
    """A command in Apptainer's place, for what happens around it; tests/slurm builds with the real one."""
    path = folder / "apptainer"
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_has_every_file_that_a_definition_copies(kind: str, tmp_path: Path) -> None:
    BuildFiles.found().copy_to(tmp_path)
    definition = (tmp_path / "containers" / f"{kind}.def").read_text()
    sources = re.findall(r"^    (\S+) /opt/mrt-hpc/", definition, re.MULTILINE)
    assert len(sources) == (0 if kind == "debian" else 5)
    assert all((tmp_path / source).exists() for source in sources)
    assert (tmp_path / "env" / "setup").stat().st_mode & 0o100, "it can be run"
    assert not list(tmp_path.rglob("__pycache__"))


def arguments_of(asked: ImageAsked, tree: Path) -> list[str]:
    """The arguments that the definition gets, in order; Apptainer takes the last of a name."""
    command = build_command(asked, Path("/i/.a"), tree)
    assert command[command.index("--build-arg-file") + 1] == ARGUMENTS
    return (tree / ARGUMENTS).read_text().splitlines()


def test_the_command_names_arguments_and_binds_and_makes_their_places(tmp_path: Path) -> None:
    (conf := tmp_path / "pip.conf").touch()
    binds = (f"{tmp_path}:/opt/wheels:ro", str(conf))
    asked = ImageAsked("cpu", Path("/i/a.sif"), BASE, ("N=1,2",), binds, ("A=b c", "B=x,y"))
    assert arguments_of(asked, tmp_path) == [
        f"PLACES=/opt/wheels/ {conf}", "SETTINGS='A=b c' B=x,y", f"BASE={BASE}", "N=1,2",
    ]  # fmt: skip
    assert build_command(asked, Path("/i/.a"), tmp_path) == [
        "apptainer", "build", "--fakeroot", "--build-arg-file", ARGUMENTS, "--bind", binds[0], "--bind", binds[1],
        "/i/.a", "containers/cpu.def",
    ]  # fmt: skip
    plain = build_command(ImageAsked("cpu", Path("/i/a.sif")), Path("/i/.a"), tmp_path)
    assert plain == ["apptainer", "build", "--fakeroot", "/i/.a", "containers/cpu.def"]


def test_a_base_that_is_a_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "debian.sif").touch()
    found = arguments_of(ImageAsked("cpu", Path("/i/a.sif"), "debian.sif"), tmp_path)
    assert found == ["FROM=localimage", f"BASE={tmp_path / 'debian.sif'}"]
    for wrong in ("debain.sif", "./debian", "/images/debian"):
        with pytest.raises(UserError, match="the base image is not there"):
            arguments_of(ImageAsked("cpu", Path("/i/a.sif"), wrong), tmp_path)


@pytest.mark.parametrize("name", ["debian", "debian:12", "r.example.org:5000/d/debian:12", "debian@sha256:12"])
def test_a_base_of_a_registry_is_named_by_its_digest(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="the base image has no digest") as refused:
        arguments_of(ImageAsked("cpu", Path("/i/a.sif"), name), tmp_path)
    assert "--any-base" in str(refused.value.advice)
    assert arguments_of(ImageAsked("cpu", Path("/i/a.sif"), name, any_base=True), tmp_path) == [f"BASE={name}"]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_base_of_the_definitions_is_named_by_its_digest(kind: str) -> None:
    definition = (ROOT / "containers" / f"{kind}.def").read_text()
    assert re.search(r"^    BASE=\S+@sha256:[0-9a-f]{64}$", definition, re.MULTILINE)


def test_debian_is_taken_from_the_mirror_of_the_project_or_of_the_user(tmp_path: Path) -> None:
    BuildFiles.found().copy_to(tmp_path)
    asked = ImageAsked("debian", Path("/i/a.sif"), build_arguments=("MIRROR=https://m.example.org/debian",))
    own, users = arguments_of(asked, tmp_path)
    assert own.startswith("MIRROR=http")
    assert users == "MIRROR=https://m.example.org/debian"


def test_a_bind_is_named_by_its_whole_path_and_needs_a_place_that_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.conf").touch()
    asked = ImageAsked("cpu", Path("/i/a.sif"), binds=("pip.conf",))
    assert arguments_of(asked, tmp_path) == [f"PLACES={tmp_path}/pip.conf"]
    command = build_command(asked, Path("/i/.a"), tmp_path)
    assert command[command.index("--bind") + 1] == f"{tmp_path}/pip.conf"
    for place in ("etc/pip.conf", "/etc/pip conf"):
        with pytest.raises(UserError, match="a place for --bind cannot be made"):
            arguments_of(ImageAsked("cpu", Path("/i/a.sif"), binds=(f"pip.conf:{place}",)), tmp_path)


def test_a_file_to_bind_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a file for --bind is not there"):
        arguments_of(ImageAsked("cpu", Path("/i/a.sif"), binds=(str(tmp_path / "x"),)), tmp_path)


def test_an_image_appears_whole_with_its_checksum(tmp_path: Path) -> None:
    command = stand_in(tmp_path, '#!/bin/sh\ntest -f containers/cpu.def || exit 9\nprintf image > "$3"\n')
    image = tmp_path / "images" / "a.sif"
    digest = build_image(ImageAsked("cpu", image, executable=command), lambda _: None)
    assert image.read_text() == "image"
    assert checksum_file(image).read_text() == f"{digest}  a.sif\n"
    assert sorted(path.name for path in image.parent.iterdir()) == ["a.sif", "a.sif.sha256"]


def test_a_build_that_fails_leaves_the_image_that_was_there(tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    image.write_text("before")
    checksum_file(image).write_text("0  a.sif\n")
    command = stand_in(tmp_path, '#!/bin/sh\nprintf half > "$3"\nexit 3\n')
    with pytest.raises(UserError, match="ended with exit code 3") as told:
        build_image(ImageAsked("cpu", image, executable=command), lambda _: None)
    assert "--on-node --site SITE" in str(told.value.advice)
    assert image.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sif", "a.sif.sha256", "apptainer"]


def test_an_image_that_is_there_is_not_replaced_unasked(tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    image.write_text("before")
    done = CliRunner().invoke(main, ["container", "build", "cpu", str(image)])
    assert done.exit_code == 2
    assert "--force replaces it" in done.output


def test_apptainer_that_is_missing_is_told_with_the_ways_out(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["container", "build", "cpu", str(tmp_path / "a.sif"), "--executable", "nowhere"])
    assert done.exit_code == 2
    assert "the command nowhere was not found" in done.output
    assert "--on-node --site SITE" in done.output


def test_the_build_on_a_node_is_the_same_command_behind_the_setup_lines() -> None:
    site = SlurmSite.model_validate(
        {"name": "c", "account": "mine", "partitions": {"cpu": "short"}, "max_time_minutes": 60, "python": "/py",
         "setup": ("module load apptainer",), "sbatch": {"constraint": "build"}}
    )  # fmt: skip
    command = srun_command(site, ["container", "build", "cuda", "a b.sif"])
    assert command[:8] == [
        "srun", "--account=mine", "--partition=short", "--constraint=build", "--mem=16G", "--ntasks=1",
        "--cpus-per-task=4", "--time=60",
    ]  # fmt: skip
    assert (
        command[-1]
        == "module load apptainer\nexport PYTHONSAFEPATH=1\nexec /py -m mrt_hpc.cli.main container build cuda 'a b.sif'"
    )


def test_what_an_image_holds_is_told_with_what_to_type(tmp_path: Path) -> None:
    seen = PythonLook("3.11.2", "0.0.1", packages={"torch": "2"}, errors={"vllm": "ImportError('x')"}, cuda=None)
    found = {one.what: one for one in image_contents(seen, tmp_path / "a.sif")}
    assert found["torch"].passed
    assert found["mrt-hpc"].evidence == f"0.0.1 in the image, {mrt_hpc.__version__} here"
    assert (found["vllm"].passed, found["vllm"].evidence) == (False, "ImportError('x')")
    assert all("--force" in one.remedy for one in found.values() if not one.passed)


def test_a_damaged_image_and_one_that_does_not_start_fail_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "a.sif"
    image.write_text("x")
    checksum_file(image).write_text("0  a.sif\n")
    command = stand_in(tmp_path, "#!/bin/sh\necho 'FATAL: no such format' >&2\nexit 255\n")
    site = tmp_path / "site.yaml"
    site.write_text(f"type: slurm\nname: s\ncontainer: {{image: {image}, executable: {command}}}\n")
    checks = check_image(Container(image=str(image), executable=command))
    assert [(one.what, one.passed) for one in checks] == [("checksum", False), ("start", False)]
    for words, default in ((["--site", str(site)], "local"), ([], str(site))):
        monkeypatch.setenv("MRT_HPC_SITE", default)
        done = CliRunner().invoke(main, ["container", "check", *words])
        assert done.exit_code == 2
        assert "FATAL: no such format" in " ".join(done.output.split())


# -- unpacking, where Apptainer is not installed setuid


def unpacking(tmp_path: Path, build: str) -> tuple[str, Path]:
    """The shell command of a task in an image that is to be unpacked, and the folder for temporary files. The stand-in
    for Apptainer writes down how it was called.
    """
    executable = tmp_path / "apptainer"
    executable.write_text(f"""#!/bin/bash
echo "$@" >> {tmp_path}/calls
case $1 in build) {build} ;; exec) ls "${{@: -4:1}}" > {tmp_path}/seen-$$ ;; esac
""")
    executable.chmod(0o755)
    (tmp_path / "a.sif").write_text("image")
    (tmp_path / "scratch").mkdir(exist_ok=True)
    container = Container(image=str(tmp_path / "a.sif"), executable=str(executable), unpack=True)
    site, recipe = SlurmSite(name="c", container=container), load_recipe(QUICKSTART)
    job = compile_plan(recipe, site).jobs[0]
    return f"{python_command(job, site, RunLayout(tmp_path / 'run'))} -m some.module", tmp_path / "scratch"


def starts(command: str, scratch: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TMPDIR": str(scratch)}
    return subprocess.Popen(["bash", "-c", command], env=environment, stderr=subprocess.DEVNULL)


def test_an_image_is_unpacked_once_on_a_node_and_all_its_tasks_start_in_the_folder(tmp_path: Path) -> None:
    command, scratch = unpacking(tmp_path, 'mkdir "$3" && sleep 0.3 && touch "$3/python"')
    tasks = [starts(command, scratch) for _ in range(3)]
    assert [task.wait(30) for task in tasks] == [0, 0, 0]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls].count("build") == 1
    assert {path.read_text() for path in tmp_path.glob("seen-*")} == {"python\n"}, "whole before a task started"
    assert starts(command, scratch).wait(30) == 0
    assert (tmp_path / "calls").read_text().count("build") == 1, "a later task finds it"
    (tmp_path / "a.sif").write_text("another image")
    assert starts(command, scratch).wait(30) == 0
    assert (tmp_path / "calls").read_text().count("build") == 2, "another image is unpacked"


def test_an_unpacked_image_that_lacks_files_is_unpacked_again(tmp_path: Path) -> None:
    command, scratch = unpacking(tmp_path, 'mkdir "$3" && touch "$3/python" "$3/torch"')
    assert starts(command, scratch).wait(30) == 0
    (lost,) = scratch.rglob("torch")
    lost.unlink()  # a cluster that empties TMPDIR of files that were not used for long
    assert starts(command, scratch).wait(30) == 0
    assert (tmp_path / "calls").read_text().count("build") == 2
    assert lost.exists()
    assert [path.name for path in scratch.rglob("image-*.old.*/*")] == ["python"], (
        "other tasks may run in the old folder"
    )


def test_a_folder_for_temporary_files_may_have_any_name(tmp_path: Path) -> None:
    command, scratch = unpacking(tmp_path, 'mkdir "$3" && touch "$3/python"')
    scratch = scratch.rename(tmp_path / "it's a & b")
    assert starts(command, scratch).wait(30) == 0
    assert {path.read_text() for path in tmp_path.glob("seen-*")} == {"python\n"}


def test_a_node_without_locks_says_what_to_set(tmp_path: Path) -> None:
    command, scratch = unpacking(tmp_path, 'mkdir "$3"')
    (tmp_path / "flock").write_text("#!/bin/sh\nexit 71\n")
    (tmp_path / "flock").chmod(0o755)
    environment = {**os.environ, "TMPDIR": str(scratch), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(scratch) in done.stderr
    assert "scratch in the site profile" in done.stderr


def test_an_image_that_cannot_be_unpacked_ends_the_task_and_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    command, scratch = unpacking(tmp_path, 'mkdir "$3"; exit 4')
    assert starts(command, scratch).wait(30) == 1
    assert not [path for path in scratch.rglob("image-*") if path.suffix not in (".lock", ".part")]
    command, scratch = unpacking(tmp_path, 'mkdir "$3" && touch "$3/python"')
    assert starts(command, scratch).wait(30) == 0, "what is left of the first attempt does not disturb the second"


# -- what a run notices


@pytest.fixture
def begun(tmp_path: Path) -> RunLayout:
    recipe = load_recipe(QUICKSTART)
    return create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))


def test_another_image_is_noticed_once(begun: RunLayout, tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    image.write_text("one")
    site = SlurmSite(name="s", container=Container(image=str(image)))
    assert list(noticed_changes(begun, site)) == []
    assert json.loads(begun.image_lock.read_text())["sha256"] == site.image_digest()
    image.write_text("two")
    (sentence,) = noticed_changes(begun, site)
    assert sentence.startswith("the image has changed (sha256 ")
    assert list(noticed_changes(begun, site)) == []
    assert list(noticed_changes(begun, LocalSite())) == []


def test_an_image_is_read_again_only_when_its_file_has_changed(
    begun: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return checksum(path)

    monkeypatch.setattr(site_module, "checksum", counted)
    image = tmp_path / "a.sif"
    image.write_text("one")
    site = SlurmSite(name="s", container=Container(image=str(image)))
    for _ in range(3):
        assert list(noticed_changes(begun, site)) == []
    assert len(read) == 1
    (tmp_path / "other").write_text("two")
    os.utime(tmp_path / "other", ns=(image.stat().st_atime_ns, image.stat().st_mtime_ns))
    (tmp_path / "other").rename(image)
    assert len(list(noticed_changes(begun, site))) == 1, "another file of the same size and time"
    image.touch()
    assert list(noticed_changes(begun, site)) == []
    assert len(read) == 3, "a later time asks for the content, which is the same"
    assert list(noticed_changes(begun, site)) == []
    assert len(read) == 3


def test_the_record_of_an_earlier_version_is_completed(begun: RunLayout, tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    image.write_text("one")
    site = SlurmSite(name="s", container=Container(image=str(image)))
    begun.image_lock.write_text(json.dumps({"sha256": site.image_digest()}))
    assert list(noticed_changes(begun, site)) == []
    assert json.loads(begun.image_lock.read_text())["file"]["size"] == 3
    begun.image_lock.write_text("{}")
    with pytest.raises(UserError, match="record of the image cannot be read"):
        list(noticed_changes(begun, site))


def test_another_version_is_noticed_and_what_holds_is_said(begun: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(noticed_changes(begun, LocalSite())) == []
    monkeypatch.setattr(mrt_hpc, "__version__", "99")
    (sentence,) = noticed_changes(begun, LocalSite())
    assert "and this is 99: finished results stay, the recipe keeps the values that the run began with" in sentence
