"""Whoever opens a run of another user runs none of that user's code, unless the option says so."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from evaluated import BENCHMARK, commit_all, run_directory

from mrt_hpc.attempt.ledger import record_site, record_submission, recorded_site, remember_site
from mrt_hpc.backends.sites import chosen_site, find_site
from mrt_hpc.backends.slurm.containers import srun_command
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import look_at_lock, read_lock
from mrt_hpc.recipe.ownership import is_written_by_others, refuse_changeable
from mrt_hpc.recipe.registry import NotImported
from mrt_hpc.recipe.user_code import keep
from mrt_hpc.run.process import import_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
MY_VERIFIER = ROOT / "tests" / "examples" / "my_verifier.py"
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
ANOTHER, THIRD = 65534, 65533
"""Ids of other users."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")

CODE = """
from mrt_hpc.domains.simple import ExactVerifier
from mrt_hpc.backends.backend import Site
from mrt_hpc.modes.base import Direct

with open({mark!r}, "a") as stream:
    stream.write("imported")


class Mine(ExactVerifier):
    type: str
    width: int = 3


class Way(Direct):
    type: str


class Place(Site):
    type: str

    def backend(self):
        raise NotImplementedError
"""


@dataclass(frozen=True)
class Planted:
    """A run whose recipe names classes of a module that leaves a mark when it is imported."""

    layout: RunLayout
    module: str
    mark: Path

    @property
    def was_imported(self) -> bool:
        """Whether the module was imported since the last call; it is forgotten."""
        found = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        sys.modules.pop(self.module, None)
        sys.path[:] = [place for place in sys.path if place != str(self.layout.code.resolve())]
        importlib.invalidate_caches()
        return found

    def give_away(self, owner: int = ANOTHER) -> None:
        """Make another user the owner of all, readable by everybody."""
        for path in (self.layout.root, *self.layout.root.rglob("*")):
            os.chown(path, owner, owner)
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users may enter."""
    path = Path(tempfile.mkdtemp(prefix="shared-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def plant(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Planted]:
    """Makes a run, evaluated at the weights versions 0 and 1."""

    def made(benchmark: str = "{{problems: {{verifier: {{type: '{module}:Mine'}}}}}}") -> Planted:
        module, mark = f"planted_{shared.name.replace('-', '_')}", shared / "mark"
        before = shared / "before"
        before.mkdir()
        (before / f"{module}.py").write_text(CODE.format(mark=str(mark)))
        monkeypatch.syspath_prepend(before)
        option = benchmark.format(module=module)
        layout = run_directory(shared / "run", f"evaluation.benchmarks=[{option}]")
        for version in (0, 1):
            commit_all(layout, version)
        monkeypatch.undo()
        shutil.rmtree(before)
        planted = Planted(layout, module, mark)
        assert planted.was_imported, "the module leaves a mark"
        return planted

    return made


PROBLEMS = "type: small_world, split: held_out, problems: 2"
VERIFIER = (
    f"{{{{name: {BENCHMARK}, samples: 2, problems: {{{{{PROBLEMS}, verifier: {{{{type: '{{module}}:Mine'}}}}}}}}}}}}"
)
MODE = f"{{{{name: {BENCHMARK}, samples: 2, mode: {{{{type: '{{module}}:Way'}}}}, problems: {{{{{PROBLEMS}}}}}}}}}"


def typed(*words: object) -> tuple[int, str]:
    """The exit code of a command, and what it prints."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def looking(planted: Planted) -> list[tuple[object, ...]]:
    run = planted.layout.root
    return [
        ("status", run), ("explain", run), ("runs", run.parent), ("cost", run),
        ("compare", f"{run}@0", f"{run}@1"), ("compare", f"{run}@0", f"{run}@1", "--measure", "maj@2", "--json"),
    ]  # fmt: skip


@pytest.mark.parametrize("owner", [os.geteuid(), pytest.param(ANOTHER, marks=ROOT_ONLY)])
def test_commands_that_only_look_import_nothing(plant: Callable[..., Planted], owner: int) -> None:
    planted = plant(VERIFIER)
    planted.give_away(owner)
    for words in looking(planted):
        code, output = typed(*words)
        assert not planted.was_imported, words
        assert code == 0, output


def test_a_class_is_shown_as_its_text_and_its_fields_are_kept(plant: Callable[..., Planted]) -> None:
    planted = plant(VERIFIER)
    recipe = look_at_lock(planted.layout.recipe_lock)
    verifier = recipe.evaluation.benchmarks[0].problems.verifier
    assert isinstance(verifier, NotImported)
    assert verifier.model_dump() == {"type": f"{planted.module}:Mine", "ignore_case": False, "width": 3}
    assert not planted.was_imported
    assert recipe.model_dump(mode="json") == read_lock(planted.layout.recipe_lock).model_dump(mode="json")


@ROOT_ONLY
@pytest.mark.parametrize(
    "words", [("report",), ("fork", "--at", "0"), ("clean", "--yes"), ("extend", "--iterations", "99")]
)
def test_what_needs_the_code_refuses_that_of_another_user(
    plant: Callable[..., Planted], words: tuple[str, ...]
) -> None:
    planted = plant(VERIFIER)
    planted.give_away()
    code, output = typed(words[0], planted.layout.root, *words[1:])
    assert not planted.was_imported
    assert code == 2
    for word in (str(planted.layout.root), "another user can change it", f"({ANOTHER})", "--trust"):
        assert word in output


@ROOT_ONLY
def test_another_users_run_does_not_choose_among_what_is_installed_either(shared: Path) -> None:
    """A function of some package may do with two texts what its user would not."""
    option = f"evaluation.benchmarks=[{VERIFIER.format(module='click')}]"
    layout = run_directory(shared / "run", option.replace(":Mine", ":echo"))
    read_lock(layout.recipe_lock)
    os.chown(layout.recipe_lock, ANOTHER, -1)
    with pytest.raises(UserError, match="classes that this file names are not imported"):
        read_lock(layout.recipe_lock)
    read_lock(layout.recipe_lock, trust=True)


@ROOT_ONLY
def test_the_option_lets_it_run(plant: Callable[..., Planted], tmp_path: Path) -> None:
    planted = plant(MODE)
    planted.give_away()
    run, page = planted.layout.root, tmp_path / "page.html"
    for words in (("report", run, "--page", page), ("compare", f"{run}@0", f"{run}@1")):
        code, output = typed(*words)
        assert (code, planted.was_imported) == (2, False), output
        code, output = typed(*words, "--trust")
        assert (code, planted.was_imported) == (0, True), output
    assert page.is_file()
    assert not planted.layout.report.exists(), "a page elsewhere leaves the run as it is"


def test_ones_own_run_needs_no_option(plant: Callable[..., Planted]) -> None:
    planted = plant(MODE)
    assert typed("report", planted.layout.root)[0] == 0
    assert planted.was_imported
    assert typed("compare", f"{planted.layout.root}@0", f"{planted.layout.root}@1")[0] == 0
    assert planted.was_imported


@ROOT_ONLY
def test_a_second_user_reads_a_run_and_none_of_its_code_runs(plant: Callable[..., Planted], shared: Path) -> None:
    """Two ordinary users: one owns the run, the other types the commands."""
    planted = plant(VERIFIER)
    planted.give_away()
    home = shared / "home"
    home.mkdir()
    os.chown(home, THIRD, THIRD)
    shared.chmod(0o777)  # so that whoever imported the module could leave its mark
    run = planted.layout.root
    for words, code in ((("cost", run), 0), (("report", run, "--page", home / "p.html"), 2)):
        done = subprocess.run(
            [sys.executable, "-m", "mrt_hpc", *map(str, words)], cwd=home, user=THIRD, group=THIRD, extra_groups=[],
            env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not planted.mark.exists(), words
        assert done.returncode == code, done.stderr
    assert "--trust" in done.stderr


# -- the back end of a site


def with_site(planted: Planted) -> None:
    """Jobs of the run were submitted with a site of a class of its own, whose module lies in the run."""
    layout = planted.layout
    layout.jobs.mkdir(exist_ok=True)
    record_submission(layout, "prepare", "5", "x")
    entry = {"site": {"type": f"{planted.module}:Place", "name": "x"}, "folder": str(layout.code)}
    (layout.jobs / "site-x.json").write_text(json.dumps(entry))


@ROOT_ONLY
def test_the_queue_of_another_users_back_end_is_not_asked(plant: Callable[..., Planted]) -> None:
    planted = plant(VERIFIER)
    with_site(planted)
    planted.give_away()
    for words in (
        ("status", planted.layout.root),
        ("explain", planted.layout.root),
        ("runs", planted.layout.root.parent),
    ):
        code, output = typed(*words)
        assert (code, planted.was_imported) == (0, False), output
    assert "is not imported, because another user can change it" in typed("status", planted.layout.root)[1]
    assert typed("cost", planted.layout.root)[0] == 0
    assert not planted.was_imported


@ROOT_ONLY
def test_nothing_is_cancelled_that_another_users_run_names(plant: Callable[..., Planted]) -> None:
    """Its ledger may name jobs and processes of whoever types the command."""
    planted = plant(VERIFIER)
    planted.layout.jobs.mkdir(exist_ok=True)
    planted.give_away()
    code, output = typed("cancel", planted.layout.root)
    assert code == 2
    assert "nothing is cancelled" in output


@ROOT_ONLY
def test_a_fork_does_not_take_the_site_of_another_users_run(shared: Path) -> None:
    """Jobs run the commands of a site profile; the run names no class of its own here."""
    layout = run_directory(shared / "run")
    site = SlurmSite(name="x")
    record_site(layout, site)
    remember_site(layout, site)
    assert chosen_site(None, layout).site == site
    for path in (layout.root, *layout.root.rglob("*")):
        os.chown(path, ANOTHER, ANOTHER)
    with pytest.raises(UserError, match="the site profile of the run is not taken"):
        chosen_site(None, layout)
    assert chosen_site(None, layout, trust=True).site == site
    assert chosen_site("local", layout).site.name == "local"


def test_ones_own_back_end_is_loaded(plant: Callable[..., Planted]) -> None:
    planted = plant(VERIFIER)
    with_site(planted)
    assert recorded_site(planted.layout, "x").type == f"{planted.module}:Place"
    assert planted.was_imported


# -- what is beside a recipe or a profile


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_code_beside_a_file_is_not_imported_where_others_may_put_it(shared: Path, kind: str) -> None:
    (shared / f"beside_{kind}.py").write_text("raise SystemExit('imported')")
    recipe = f"extends: {QUICKSTART}\ndata: {{type: small_world, split: train, verifier: 'beside_{kind}:same'}}\n"
    (shared / "file.yaml").write_text(recipe if kind == "recipe" else f"type: beside_{kind}:Place\nname: x\n")
    shared.chmod(0o777)
    with pytest.raises(UserError, match="because another user can change it") as refused:
        load_recipe(shared / "file.yaml") if kind == "recipe" else load_site(shared / "file.yaml")
    assert f"chmod go-w {shared}" in str(refused.value.advice)


def test_a_file_that_names_no_class_may_lie_anywhere(shared: Path) -> None:
    (shared / "file.yaml").write_text(f"extends: {QUICKSTART}\n")
    shared.chmod(0o777)
    assert load_recipe(shared / "file.yaml").name
    assert str(shared) not in sys.path


def recipe_with(verifier: str) -> str:
    return f"extends: {QUICKSTART}\ndata: {{type: small_world, split: train, verifier: '{verifier}'}}\n"


def test_a_link_to_nothing_beside_a_module_is_passed_over(shared: Path) -> None:
    """Editors leave them while a file is changed."""
    (shared / ".#linked.py").symlink_to("user@host.1:2")
    (shared / "file.yaml").write_text(recipe_with("linked:same_words"))
    shutil.copy(MY_VERIFIER, shared / "linked.py")
    assert load_recipe(shared / "file.yaml").name


def test_copies_that_a_run_keeps_are_written_by_nobody_else(shared: Path) -> None:
    shutil.copy(MY_VERIFIER, shared / "open_verifier.py")
    (shared / "file.yaml").write_text(recipe_with("open_verifier:same_words"))
    recipe = load_recipe(shared / "file.yaml")
    (shared / "open_verifier.py").chmod(0o664)
    keep(recipe, shared / "code")
    assert not is_written_by_others(shared / "code" / "open_verifier.py")


def test_a_site_profile_is_not_taken_by_its_name_from_a_folder_of_another_user(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = shared / "slurm" / "sites"
    sites.mkdir(parents=True)
    profile = sites / "planted.yaml"
    profile.write_text("type: slurm\nname: planted\nsetup: ['touch pwned']\n")
    monkeypatch.chdir(shared)
    profile.chmod(0o666)
    with pytest.raises(UserError, match="is not taken by its name, because another user can change it"):
        find_site("planted")
    assert find_site(str(profile)).name == "planted"  # its path is named


def test_a_site_profile_of_the_users_own_folder_is_not_taken_by_its_name_where_all_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    profile = tmp_path / "mrt-hpc" / "sites" / "box.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("type: slurm\nname: box\n")
    assert find_site("box").name == "box"
    profile.chmod(0o666)
    monkeypatch.setattr("mrt_hpc.recipe.ownership.REACHED_BY_OTHERS", 0o777)  # pytest's folder is this user's alone
    with pytest.raises(UserError, match="is not taken by its name") as refused:
        find_site("box")
    assert str(refused.value.advice).startswith("chmod go-w")


def test_a_site_profile_of_the_package_is_as_safe_as_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation that a group shares belongs to one of its members."""
    profile = tmp_path / "sites" / "shipped.yaml"
    profile.parent.mkdir()
    profile.write_text("type: slurm\nname: shipped\n")
    profile.chmod(0o666)
    monkeypatch.setattr("mrt_hpc.recipe.ownership.REACHED_BY_OTHERS", 0o777)
    for module in ("mrt_hpc.recipe.find", "mrt_hpc.backends.sites"):
        monkeypatch.setattr(f"{module}.installed_folders", lambda: [tmp_path])
    assert find_site("shipped").name == "shipped"


def test_functions_of_pythons_own_library_are_no_verifiers() -> None:
    """`pty:spawn` takes two texts, and would run the first as a program."""
    with pytest.raises(UserError, match="a class of kind verifier"):
        load_recipe(QUICKSTART, ("data.verifier=pty:spawn",))


# -- whose a place is


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def sticky(path: Path) -> None:
    path.chmod(0o1777)


def open_to_a_group(path: Path) -> None:
    os.chown(path, -1, 4)
    path.chmod(0o775)


def given_away(path: Path) -> None:
    os.chown(path, ANOTHER, -1)


def holder_open(path: Path) -> None:
    path.parent.chmod(0o777)


def holder_given_away(path: Path) -> None:
    os.chown(path.parent, ANOTHER, -1)


def holder_sticky(path: Path) -> None:
    path.parent.chmod(0o1777)


def open_in_a_closed_one(path: Path) -> None:
    path.chmod(0o777)
    path.parent.chmod(0o700)


def given_away_in_a_closed_one(path: Path) -> None:
    os.chown(path, ANOTHER, -1)
    path.parent.chmod(0o700)


AS_ROOT = [open_to_a_group, given_away, holder_given_away, given_away_in_a_closed_one]
REFUSED = [open_to_all, sticky, holder_open, *(pytest.param(change, marks=ROOT_ONLY) for change in AS_ROOT)]


@pytest.mark.parametrize("change", REFUSED)
def test_a_place_that_another_user_can_change(shared: Path, change: Callable[[Path], None]) -> None:
    path = shared / "holder" / "place"
    path.mkdir(parents=True)
    refuse_changeable(path, "x")
    link = shared / "link"
    link.symlink_to(path)
    change(path)
    for place in (path, link):
        with pytest.raises(UserError, match="because another user can change it"):
            refuse_changeable(place, "x")


@pytest.mark.parametrize("change", [holder_sticky, open_in_a_closed_one])
def test_a_place_that_nobody_else_can_change(shared: Path, change: Callable[[Path], None]) -> None:
    path = shared / "holder" / "place"
    path.mkdir(parents=True)
    change(path)
    refuse_changeable(path, "x")


def test_the_group_of_one_user_alone_is_no_other_user(shared: Path) -> None:
    """Many systems give a group to each user, and a umask by which it may write."""
    shared.chmod(0o775)
    if os.geteuid() == 0:
        os.chown(shared, 0, 0)
        assert not is_written_by_others(shared)
        os.chown(shared, 0, 4)
        assert is_written_by_others(shared)


READ = {
    "module": "planted.py",
    "beside": "helper.py",
    "package": "package/inner.py",
    "imported": "other/deep.py",
    "compiled": "__pycache__",
    "compiled file": "__pycache__/planted.cpython-311.pyc",
}


@pytest.mark.parametrize("where", READ)
@ROOT_ONLY
def test_each_file_that_an_import_reads_is_looked_at(shared: Path, where: str) -> None:
    for folder in ("package", "other", "__pycache__"):
        (shared / folder).mkdir()
    for name in ("planted.py", "helper.py", "package/__init__.py", "other/deep.py", READ["compiled file"]):
        (shared / name).write_text("")
    (shared / "package" / "inner.py").write_text("from other import deep")
    os.chown(shared / READ[where], ANOTHER, -1)
    (shared / "site.yaml").write_text("type: package:Place\nname: x\n")
    with pytest.raises(UserError, match="because another user can change it"):
        load_site(shared / "site.yaml")


def test_a_child_imports_nothing_from_the_folder_that_the_command_was_typed_in(tmp_path: Path) -> None:
    (tmp_path / "mrt_hpc.py").write_text("raise SystemExit('imported')")
    environment = {**os.environ, **import_path()}
    done = subprocess.run([sys.executable, "-m", "mrt_hpc", "--version"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0
    command = srun_command(SlurmSite(name="x"), ["container", "check", "i.sif"])
    assert "export PYTHONSAFEPATH=1\nexec " in command[-1]
