"""Container images: what they are built from, that they appear whole, and what a run notices of another image."""

import json
import os
import re
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from basics import QUICKSTART, ROOT, executable, look_first_in
from commands import refusal, typed
from run_of import run_of

import mrt_hpc
from mrt_hpc import RunLayout, images
from mrt_hpc.attempt.python_look import PythonLook
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import site as site_module
from mrt_hpc.backends.slurm.parameters import python_command
from mrt_hpc.backends.slurm.site import Container, SlurmSite, checksum_file
from mrt_hpc.cli.container import srun_command
from mrt_hpc.images import ARGUMENTS, KINDS, ImageAsked, build_command, build_image, make_tree
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.run.atomic import checksum
from mrt_hpc.submit.software import noticed_changes

IMAGE = Path("/i/a.sif")


def arguments_of(asked: ImageAsked, tree: Path) -> list[str]:
    """The arguments that the definition gets, in order; Apptainer takes the last of a name."""
    command = build_command(asked, Path("/i/.a"), tree)
    assert command[command.index("--build-arg-file") + 1] == ARGUMENTS
    return (tree / ARGUMENTS).read_text().splitlines()


def test_the_tree_has_every_file_that_a_definition_copies(tmp_path: Path) -> None:
    make_tree(tmp_path)
    for kind in KINDS:
        definition = (tmp_path / "containers" / f"{kind}.def").read_text()
        sources = re.findall(r"^    (\S+) /opt/mrt-hpc/", definition, re.MULTILINE)
        assert len(sources) == (0 if kind == "debian" else 5)
        assert all((tmp_path / source).exists() for source in sources)
        by_digest = re.search(r"^    BASE=\S+@sha256:[0-9a-f]{64}$", definition, re.MULTILINE)
        assert (by_digest is None) == (kind == "debian")
    assert (tmp_path / "env" / "setup").stat().st_mode & 0o100, "it can be run"
    own, users = arguments_of(ImageAsked("debian", IMAGE, build_arguments=("MIRROR=https://m.org/d",)), tmp_path)
    assert (own.startswith("MIRROR=http"), users) == (True, "MIRROR=https://m.org/d"), "the user's mirror comes last"


def test_the_command_names_arguments_and_binds_and_makes_their_places(tmp_path: Path) -> None:
    (conf := tmp_path / "pip.conf").touch()
    first, base = f"{tmp_path}:/opt/wheels:ro", f"registry.example.org:5000/debian@sha256:{'0' * 64}"
    asked = ImageAsked("cpu", IMAGE, base, ("N=1,2",), (first, str(conf)), ("A=b c", "B=x,y"))
    places, settings = f"PLACES=/opt/wheels/ {conf}", "SETTINGS='A=b c' B=x,y"
    assert arguments_of(asked, tmp_path) == [places, settings, f"BASE={base}", "N=1,2"]
    built, binds = ["apptainer", "build", "--fakeroot"], ["--bind", first, "--bind", str(conf)]
    command = [*built, "--build-arg-file", ARGUMENTS, *binds, "/i/.a", "containers/cpu.def"]
    assert build_command(asked, Path("/i/.a"), tmp_path) == command
    assert build_command(ImageAsked("cpu", IMAGE), Path("/i/.a"), tmp_path) == [*built, "/i/.a", "containers/cpu.def"]


def test_a_base_is_a_file_or_has_a_digest_and_binds_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("debian.sif", "pip.conf"):
        (tmp_path / name).touch()
    found = arguments_of(ImageAsked("cpu", IMAGE, "debian.sif"), tmp_path)
    assert found == ["FROM=localimage", f"BASE={tmp_path / 'debian.sif'}"]
    for wrong in ("debain.sif", "./debian", "/images/debian"):
        assert "is not there" in refusal(arguments_of, ImageAsked("cpu", IMAGE, wrong), tmp_path).what
    for name in ("debian", "debian:12", "r.example.org:5000/d/debian:12", "debian@sha256:12"):
        assert "--any-base" in str(refusal(arguments_of, ImageAsked("cpu", IMAGE, name), tmp_path).advice)
        assert arguments_of(ImageAsked("cpu", IMAGE, name, any_base=True), tmp_path) == [f"BASE={name}"]
    asked = ImageAsked("cpu", IMAGE, binds=("pip.conf",))
    assert arguments_of(asked, tmp_path) == [f"PLACES={tmp_path}/pip.conf"]
    command = build_command(asked, Path("/i/.a"), tmp_path)
    assert command[command.index("--bind") + 1] == f"{tmp_path}/pip.conf"
    for bind in ("pip.conf:etc/pip.conf", "pip.conf:/etc/pip conf", str(tmp_path / "missing")):
        assert refusal(arguments_of, ImageAsked("cpu", IMAGE, binds=(bind,)), tmp_path).value == bind.rpartition(":")[2]


def test_an_image_appears_whole_with_its_checksum(tmp_path: Path) -> None:
    command = executable(tmp_path / "apptainer", 'test -f containers/cpu.def || exit 9\nprintf image > "$3"')
    image = tmp_path / "images" / "a.sif"
    digest = build_image(ImageAsked("cpu", image, executable=str(command)), lambda _: None)
    found = {path.name: path.read_text() for path in image.parent.iterdir()}
    assert found == {"a.sif": "image", "a.sif.sha256": f"{digest}  a.sif\n"}


def test_a_build_that_fails_or_was_not_asked_for_leaves_the_image_that_was_there(tmp_path: Path) -> None:
    image = tmp_path / "a.sif"
    image.write_text("before")
    checksum_file(image).write_text("0  a.sif\n")
    command = executable(tmp_path / "apptainer", 'printf half > "$3"; exit 3')
    failed = refusal(build_image, ImageAsked("cpu", image, executable=str(command)), lambda _: None)
    assert ("exit code 3" in failed.message(), "--on-node --site SITE" in str(failed.advice)) == (True, True)
    assert "--force" in typed("container", "build", "cpu", image, exits=2).output
    assert image.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sif", "a.sif.sha256", "apptainer"]


def test_the_checksum_beside_an_image_counts_only_where_it_can_be_that_of_the_image(tmp_path: Path) -> None:
    image, stated = tmp_path / "a.sif", "ab" * 32
    image.write_text("image")
    site = SlurmSite(name="c", container={"image": str(image)})
    for text, later, digest in (
        (f"{stated}  a.sif\n", 1, stated),
        (f"{stated}  a.sif\n", -1, checksum(image)),
        ("goodbye\n", 1, checksum(image)),
    ):
        checksum_file(image).write_text(text)
        moment = image.stat().st_mtime + later
        os.utime(checksum_file(image), (moment, moment))
        assert site.image_digest() == digest, (text, later)


def test_the_build_on_a_node_is_the_same_command_behind_the_setup_lines() -> None:
    site = SlurmSite(
        name="c", account="mine", partitions={"cpu": "short"}, max_time_minutes=60, python="/py",
        setup=("module load apptainer",), sbatch={"constraint": "build"},
    )  # fmt: skip
    *words, script = srun_command(site, ["container", "build", "cuda", "a b.sif"])
    options = "--account=mine --partition=short --constraint=build --mem=16G --ntasks=1 --cpus-per-task=4 --time=60"
    assert words[:8] == ["srun", *options.split()]
    lines = ["module load apptainer", "export PYTHONSAFEPATH=1"]
    assert script.splitlines() == [*lines, "exec /py -m mrt_hpc container build cuda 'a b.sif'"]


def test_a_damaged_image_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, site = tmp_path / "a.sif", tmp_path / "site.yaml"
    image.write_text("x")
    checksum_file(image).write_text("0  a.sif\n")
    command = executable(tmp_path / "apptainer", "echo 'FATAL: no such format' >&2; exit 255")
    site.write_text(f"type: slurm\nname: s\ncontainer: {{image: {image}, executable: {command}}}\n")
    checks = images.check_image(Container(image=str(image), executable=str(command)))
    assert [(one.what, one.passed) for one in checks] == [("checksum", False), ("start", False)]
    for words, default in ((["--site", site], "local"), ([], str(site))):
        monkeypatch.setenv("MRT_HPC_SITE", default)
        assert "FATAL: no such format" in " ".join(typed("container", "check", *words, exits=2).output.split())
    seen = PythonLook("3.11.2", "0.0.1", packages={"torch": "2"}, errors={"vllm": "ImportError('x')"}, cuda=None)
    found = {one.what: one.passed for one in images.image_contents(seen, image)}
    assert [found[what] for what in ("torch", "mrt-hpc", "vllm")] == [True, False, False]


class Node:
    """A node whose task unpacks its image; the stand-in for Apptainer writes down how it was called."""

    def __init__(self, root: Path) -> None:
        self.root, self.scratch = root, root / "scratch"
        self.scratch.mkdir()
        (root / "a.sif").write_text("image")

    def starts(self, build: str = 'mkdir "$3" && touch "$3/python"') -> subprocess.Popen[str]:
        fourth_last = "for word; do fourth=$third; third=$second; second=$last; last=$word; done"
        case = f'case $1 in build) {build} ;; exec) ls "$fourth" > {self.root}/seen-$$ ;; esac'
        apptainer = executable(self.root / "apptainer", f'echo "$@" >> {self.root}/calls\n{fourth_last}\n{case}')
        container = Container(image=str(self.root / "a.sif"), executable=str(apptainer), unpack=True)
        site = SlurmSite(name="c", container=container)
        job = compile_plan(load_recipe(QUICKSTART), site).jobs[0]
        command = f"{python_command(job, site, RunLayout(self.root / 'run'))} -m some.module"
        environment = {**os.environ, "TMPDIR": str(self.scratch)}
        return subprocess.Popen(["bash", "-c", command], env=environment, stderr=subprocess.PIPE, text=True)

    @property
    def built(self) -> int:
        return [line.split()[0] for line in (self.root / "calls").read_text().splitlines()].count("build")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_image_is_unpacked_once_on_a_node_and_all_its_tasks_start_in_the_folder(node: Node) -> None:
    node.scratch = node.scratch.rename(node.root / "it's a & b")
    tasks = [node.starts('mkdir "$3" && sleep 0.3 && touch "$3/python"') for _ in range(3)]
    assert [task.wait(30) for task in tasks] == [0, 0, 0]
    seen = {path.read_text() for path in node.root.glob("seen-*")}
    assert (node.built, seen) == (1, {"python\n"}), "whole before a task started"
    assert (node.starts().wait(30), node.built) == (0, 1), "a later task finds it"
    (node.root / "a.sif").write_text("another image")
    assert (node.starts().wait(30), node.built) == (0, 2)


def test_an_unpacked_image_that_lacks_files_is_unpacked_again(node: Node) -> None:
    build = 'mkdir "$3" && touch "$3/python" "$3/torch"'
    assert node.starts(build).wait(30) == 0
    (lost,) = node.scratch.rglob("torch")
    lost.unlink()  # a cluster that empties TMPDIR of files that were not used for long
    assert (node.starts(build).wait(30), node.built, lost.exists()) == (0, 2, True)
    old = [path.name for path in node.scratch.rglob("image-*.old.*/*")]
    assert old == ["python"], "other tasks may run in the old folder"


def test_a_node_without_locks_says_what_to_set(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(node.root / "flock", "exit 71")
    look_first_in(node.root, monkeypatch)
    _, error = (task := node.starts()).communicate(timeout=30)
    assert (task.returncode, "scratch in the site profile" in error) == (1, True)


def test_an_image_that_cannot_be_unpacked_ends_the_task_and_leaves_nothing_that_looks_whole(node: Node) -> None:
    assert node.starts('mkdir "$3"; exit 4').wait(30) == 1
    assert not [path for path in node.scratch.rglob("image-*") if path.suffix not in (".lock", ".part")]
    assert node.starts().wait(30) == 0, "what is left of the first attempt does not disturb the second"


def test_another_image_is_noticed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, image, other = run_of(tmp_path / "run"), tmp_path / "a.sif", tmp_path / "other"
    image.write_text("one")
    site, read = SlurmSite(name="s", container=Container(image=str(image))), Mock(side_effect=checksum)
    monkeypatch.setattr(site_module, "checksum", read)
    for _ in range(3):
        assert list(noticed_changes(begun, site)) == []
    assert read.call_count == 1
    assert json.loads(begun.image_lock.read_text())["sha256"] == checksum(image)
    other.write_text("two")
    os.utime(other, ns=(image.stat().st_atime_ns, image.stat().st_mtime_ns))
    other.rename(image)
    (sentence,) = noticed_changes(begun, site)
    assert "image" in sentence, "another file of the same size and time"
    assert [*noticed_changes(begun, site), *noticed_changes(begun, LocalSite())] == []
    image.touch()
    for _ in range(2):
        assert list(noticed_changes(begun, site)) == []
    assert read.call_count == 3, "a later time asks for the content, which is the same"
    begun.image_lock.write_text(json.dumps({"sha256": checksum(image)}))  # of an earlier version of mrt-hpc
    assert list(noticed_changes(begun, site)) == []
    assert json.loads(begun.image_lock.read_text())["file"]["size"] == 3
    monkeypatch.setattr(mrt_hpc, "__version__", "99")
    (sentence,) = noticed_changes(begun, LocalSite())
    assert "99" in sentence


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    shown = re.findall(r"`(container: \{.*command: .*\})`", (ROOT / "docs" / "first-day.md").read_text())
    assert len(shown) == 3
    for line in shown:
        (tmp_path / "site.yaml").write_text(f"type: slurm\nname: here\n{line}\n")
        site = load_site(tmp_path / "site.yaml")
        assert isinstance(site, SlurmSite) and site.container is not None
        assert any("/run:/run" in word for word in site.container.words("exec", "/run:/run"))
