"""Whoever opens a run of another user runs none of that user's code, unless the option says so."""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from basics import QUICKSTART, ROOT
from commands import python, refusal, typed
from evaluated import BENCHMARK, commit_all, run_directory
from hostile import CODE
from other_users import ANOTHER, ROOT_ONLY, give_away

from mrt_hpc.attempt.ledger import record_site, record_submission, recorded_site, remember_site
from mrt_hpc.backends.sites import chosen_site, find_site
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.container import srun_command
from mrt_hpc.domains.weighted import WeightedVerifier
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import look_at_lock, read_lock
from mrt_hpc.recipe.ownership import Opened, look_at_path, read_file, refuse_changeable
from mrt_hpc.recipe.registry import NotImported
from mrt_hpc.recipe.user_code import keep
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.process import import_path

Plant = Callable[..., "Planted"]


CHANGEABLE = "because another user can change it"
PROBLEMS = "type: small_world, split: held_out, problems: 2"
VERIFIER = f"name: {BENCHMARK}, samples: 2, problems: {{{PROBLEMS}, verifier: {{type: 'MODULE:Mine'}}}}"
PARTS = "[{verifier: exact, weight: 0.9}, {verifier: {type: 'MODULE:Mine'}, weight: 0.1}]"
WITHIN = f"name: {BENCHMARK}, samples: 2, problems: {{{PROBLEMS}, verifier: {{type: weighted, parts: {PARTS}}}}}"
MODE = f"name: {BENCHMARK}, samples: 2, mode: {{type: 'MODULE:Way'}}, problems: {{{PROBLEMS}}}"


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

    def with_site(self) -> None:
        """Jobs of the run were submitted with a site of a class of its own, whose module lies in the run."""
        self.layout.jobs.mkdir(exist_ok=True)
        record_submission(self.layout, "prepare", "5", "x")
        entry = {"site": {"type": f"{self.module}:Place", "name": "x"}, "folder": str(self.layout.code)}
        (self.layout.jobs / "site-x.json").write_text(json.dumps(entry))


@pytest.fixture
def plant(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    def made(benchmark: str) -> Planted:
        module, mark, before = f"planted_{shared.name.replace('-', '_')}", shared / "mark", shared / "before"
        before.mkdir()
        (before / f"{module}.py").write_text(CODE.format(mark=repr(str(mark))))
        monkeypatch.syspath_prepend(before)
        layout = run_directory(shared / "run", f"evaluation.benchmarks=[{{{benchmark.replace('MODULE', module)}}}]")
        for version in (0, 1):
            commit_all(layout, version)
        monkeypatch.undo()
        shutil.rmtree(before)
        planted = Planted(layout, module, mark)
        assert planted.was_imported, "the module leaves a mark"
        return planted

    return made


def looked_at(planted: Planted, *words: object, exits: int = 0, imports: bool = False) -> str:
    """What a command prints, which must end like this and import the module or not."""
    output = typed(*words, exits=exits).output
    assert planted.was_imported is imports, (words, output)
    return output


@pytest.mark.parametrize("owner", [os.geteuid(), pytest.param(ANOTHER, marks=ROOT_ONLY)])
@pytest.mark.parametrize("named", [VERIFIER, WITHIN], ids=["alone", "within another class"])
def test_commands_that_only_look_import_nothing(plant: Plant, owner: int, named: str) -> None:
    planted = plant(named)
    run = planted.layout.root
    give_away(run, owner)
    compare = ("compare", f"{run}@0", f"{run}@1")
    looking = [("status", run), ("explain", run), ("runs", run.parent), ("cost", run), compare]
    for words in (*looking, (*compare, "--measure", "maj@2", "--json")):
        looked_at(planted, *words)
    recipe = look_at_lock(planted.layout.recipe_lock)
    verifier = recipe.evaluation.benchmarks[0].problems.verifier
    assert isinstance(verifier.parts[1].verifier if isinstance(verifier, WeightedVerifier) else verifier, NotImported)
    assert not planted.was_imported
    assert recipe.model_dump(mode="json") == read_lock(planted.layout.recipe_lock, trust=True).model_dump(mode="json")


@ROOT_ONLY
def test_what_needs_the_code_of_another_user_is_refused_unless_the_option_is_typed(plant: Plant) -> None:
    planted = plant(MODE)
    run = planted.layout.root
    give_away(run)
    page = run.parent / "page.html"
    report, compare = ("report", run, "--page", page), ("compare", f"{run}@0", f"{run}@1")
    for words in (report, compare, ("fork", run, "--at", "0"), ("traces", run, "--evaluation", 0)):
        output = looked_at(planted, *words, exits=2)
        assert all(word in output for word in (str(run), f"({ANOTHER})", "--trust")), output
    for words in (report, compare):
        looked_at(planted, *words, "--trust", imports=True)
    assert page.is_file()
    assert not planted.layout.report.exists(), "a page elsewhere leaves the run as it is"


def test_ones_own_run_needs_no_option(plant: Plant) -> None:
    planted = plant(MODE)
    run = planted.layout.root
    for words in (("report", run), ("compare", f"{run}@0", f"{run}@1")):
        looked_at(planted, *words, imports=True)
    planted.with_site()
    assert recorded_site(planted.layout, "x").type == f"{planted.module}:Place"
    assert planted.was_imported


@ROOT_ONLY
def test_the_back_end_of_another_users_run_is_not_imported_and_nothing_is_cancelled(plant: Plant) -> None:
    """Its ledger may name jobs and processes of whoever types the command."""
    planted = plant(VERIFIER)
    planted.with_site()
    run = planted.layout.root
    give_away(run)
    for words in (("explain", run), ("runs", run.parent), ("cost", run)):
        looked_at(planted, *words)
    assert CHANGEABLE in looked_at(planted, "status", run)
    record = planted.layout.jobs / "site-x.json"
    record.write_text(json.dumps({"site": {"type": "mrt_hpc.backends.slurm.site:SlurmSite", "name": "x"}}))
    os.chown(record, ANOTHER, ANOTHER)
    assert CHANGEABLE in typed("status", run).output, "no class of what is installed, too"
    record.unlink()
    assert "this run belongs to" in typed("cancel", run, exits=2).output


@ROOT_ONLY
def test_another_users_run_chooses_no_site_and_nothing_among_what_is_installed(
    shared: Path, judging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is asked of the lock that was read, and not of what has its path afterwards."""
    monkeypatch.syspath_prepend(judging)
    benchmark, site = VERIFIER.replace("MODULE:Mine", "judging:same"), SlurmSite(name="x")
    layout = run_directory(shared / "run", f"evaluation.benchmarks=[{{{benchmark}}}]")
    read_lock(layout.recipe_lock)
    record_site(layout, site)
    remember_site(layout, site)
    assert chosen_site(None, layout).site == site
    give_away(layout.root)
    assert CHANGEABLE in str(refusal(read_lock, layout.recipe_lock))
    read_lock(layout.recipe_lock, trust=True)
    refusal(chosen_site, None, layout)
    assert (chosen_site(None, layout, trust=True).site, chosen_site("local", layout).site.name) == (site, "local")

    def exchanged_once_it_was_read(path: Path, most: int) -> Opened:
        found = read_file(path, most)
        path.unlink()
        path.symlink_to("/etc/hostname")
        return found

    monkeypatch.setattr("mrt_hpc.recipe.source.read_file", exchanged_once_it_was_read)
    assert CHANGEABLE in str(refusal(read_lock, layout.recipe_lock))


@pytest.fixture
def judging(shared: Path) -> Path:
    """A folder with an installed package of two functions of two texts, of which one says that it is a verifier."""
    folder = shared / "site-packages"
    folder.mkdir()
    code = "def same(answer, gold):\n    return answer == gold\n\n\ndef run(answer, gold):\n    raise SystemExit\n\n\n"
    (folder / "judging.py").write_text(f"{code}same.is_verifier = True\n")
    return folder


def test_a_function_of_a_package_is_a_verifier_only_if_it_says_so(
    judging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(judging)
    load_recipe(QUICKSTART, ("data.verifier=judging:same",))
    for name in ("judging:run", "mrt_hpc.errors:word", "pty:spawn"):  # which would run its first text as a program
        told = refusal(load_recipe, QUICKSTART, (f"data.verifier={name}",)).message()
        assert "a class of kind verifier" in told and "is_verifier = True" in told


def recipe_with(verifier: str) -> str:
    return f"extends: {QUICKSTART}\ndata: {{type: small_world, split: train, verifier: '{verifier}'}}\n"


@pytest.mark.parametrize("kind", ["recipe", "site"])
def test_code_beside_a_file_is_not_imported_where_others_may_put_it(shared: Path, kind: str) -> None:
    (shared / f"beside_{kind}.py").write_text("raise SystemExit('imported')")
    file = shared / "file.yaml"
    file.write_text(recipe_with("beside_recipe:same") if kind == "recipe" else "type: beside_site:Place\nname: x\n")
    shared.chmod(0o777)
    refused = refusal(load_recipe if kind == "recipe" else load_site, file)
    assert CHANGEABLE in str(refused) and f"chmod go-w {shared}" in str(refused.advice)
    file.write_text(f"extends: {QUICKSTART}\n")
    assert load_recipe(file).name, "a file that names no class may lie anywhere"
    assert str(shared) not in sys.path


def test_copies_that_a_run_keeps_are_written_by_nobody_else(shared: Path) -> None:
    (shared / ".#open_verifier.py").symlink_to("user@host.1:2")  # editors leave such links while a file is changed
    shutil.copy(ROOT / "recipes" / "examples" / "my_verifier.py", shared / "open_verifier.py")
    (shared / "file.yaml").write_text(recipe_with("open_verifier:same_words"))
    recipe = load_recipe(shared / "file.yaml")
    (shared / "open_verifier.py").chmod(0o664)
    keep(recipe, shared / "code")
    assert not look_at_path(shared / "code" / "open_verifier.py").is_written_by_others


def test_profiles_that_others_can_change(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(shared / "config"))
    monkeypatch.setattr("mrt_hpc.recipe.find.installed_folders", lambda: [shared / "package"])
    for folder, name in (("slurm", "beside"), ("config/mrt-hpc", "own"), ("package", "shipped")):
        profile = shared / folder / "sites" / f"{name}.yaml"
        profile.parent.mkdir(parents=True)
        profile.write_text(f"type: slurm\nname: {name}\n")
        assert find_site(name).name == name
        profile.chmod(0o666)
    for name in ("beside", "own"):
        refused = refusal(find_site, name)
        assert CHANGEABLE in str(refused) and str(refused.advice).startswith("chmod go-w")
    assert find_site("slurm/sites/beside.yaml").name == "beside", "its path is named"
    assert find_site("shipped").name == "shipped", "as safe as the package, which a group may share"


PLACE, HOLDER = "holder/place", "holder"


def test_a_place_that_another_user_can_change(shared: Path) -> None:
    for number, (target, mode, owner, group) in enumerate((
        (PLACE, 0o777, -1, -1), (PLACE, 0o1777, -1, -1), (HOLDER, 0o777, -1, -1),
        (PLACE, 0o775, -1, 4), (PLACE, 0o755, ANOTHER, -1), (HOLDER, 0o755, ANOTHER, -1),
    )):  # fmt: skip
        if os.geteuid() != 0 and max(owner, group) >= 0:
            continue  # only root may give a folder away
        root = shared / str(number)
        (root / PLACE).mkdir(parents=True)
        (root / "link").symlink_to(root / PLACE)
        refuse_changeable(root / "link", "x")
        os.chown(root / target, owner, group)
        (root / target).chmod(mode)
        for place in (root / PLACE, root / "link"):
            assert CHANGEABLE in str(refusal(refuse_changeable, place, "x"))


def test_a_place_that_nobody_else_can_change(shared: Path) -> None:
    path = shared / PLACE
    path.mkdir(parents=True)
    for mode, above in ((0o755, 0o1777), (0o777, 0o700)):
        path.chmod(mode)
        path.parent.chmod(above)
        refuse_changeable(path, "x")
    if os.geteuid() == 0:
        shared.chmod(0o775)
        for group, others in ((0, False), (4, True)):  # many systems give a group to each user
            os.chown(shared, 0, group)
            assert look_at_path(shared).is_written_by_others is others


@ROOT_ONLY
def test_each_file_that_an_import_reads_is_looked_at(shared: Path) -> None:
    compiled = "__pycache__/planted.cpython-311.pyc"
    for folder in ("package", "other", "__pycache__"):
        (shared / folder).mkdir()
    for name in ("planted.py", "helper.py", "package/__init__.py", "other/deep.py", compiled):
        (shared / name).write_text("")
    (shared / "package" / "inner.py").write_text("from other import deep")
    (shared / "site.yaml").write_text("type: package:Place\nname: x\n")
    for name in ("planted.py", "helper.py", "package/inner.py", "other/deep.py", "__pycache__", compiled):
        os.chown(shared / name, ANOTHER, -1)
        assert CHANGEABLE in str(refusal(load_site, shared / "site.yaml"))
        os.chown(shared / name, os.geteuid(), -1)


def test_a_child_imports_nothing_from_the_folder_that_the_command_was_typed_in(tmp_path: Path) -> None:
    (tmp_path / "mrt_hpc.py").write_text("raise SystemExit('imported')")
    python("-m", "mrt_hpc", "--version", cwd=tmp_path, **import_path())
    assert "export PYTHONSAFEPATH=1\nexec " in srun_command(SlurmSite(name="x"), ["container", "check", "i.sif"])[-1]
