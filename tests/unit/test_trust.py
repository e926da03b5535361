"""Whoever opens a run of another user runs none of that user's code, unless the option says so; and what commands do
with the runs and the model directories of other users.
"""

import importlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from basics import QUICKSTART, ROOT
from commands import python, refusal, typed
from evaluated import BENCHMARK, commit_all, evaluated_run, run_directory
from families import holder_of
from hostile import CODE
from other_users import ANOTHER, ROOT_ONLY, give_away
from run_of import bare_run

from mrt_hpc import RunLayout, UserError
from mrt_hpc.attempt.ledger import record_site, record_submission, recorded_site, remember_site
from mrt_hpc.backends.sites import chosen_site, find_site
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.container import srun_command
from mrt_hpc.cli.main import main
from mrt_hpc.cli.options import RunName, RunUse
from mrt_hpc.domains.weighted import WeightedVerifier
from mrt_hpc.recipe.load import load_recipe, load_site
from mrt_hpc.recipe.lock import look_at_lock, read_lock
from mrt_hpc.recipe.ownership import Opened, folder_below, look_at_path, read_file, refuse_changeable, refuse_to_write
from mrt_hpc.recipe.registry import NotImported
from mrt_hpc.recipe.user_code import keep
from mrt_hpc.run.access import CLOSED_TO_OTHERS, open_to_group
from mrt_hpc.run.manifest import MANIFEST, commit_whole, write_manifest
from mrt_hpc.run.process import import_path
from mrt_hpc.run.weights import take_over

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


# -- what commands do with the runs and the model directories of other users


OF_RUNS = {"run", "runs", "run_before", "what", "models", "places"}
"""The names of parameters that take runs; ``--run`` of some commands is the place of a new one."""
WRITING = ("submit", "resume", "cancel", "clean --yes", "clean --yes --what logs", "regrade", "sync", "report")


def uses() -> Iterator[tuple[str, RunUse]]:
    """What each command does with the runs that it names."""
    for name, command in main.commands.items():
        below = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        for parameter in (p for each in below for p in each.params):
            if isinstance(parameter.type, RunName):
                yield name, parameter.type.use


def test_each_parameter_that_takes_a_run_declares_its_use() -> None:
    for name, command in main.commands.items():
        for parameter in command.params:
            if parameter.name in OF_RUNS and isinstance(parameter, click.Argument):
                assert isinstance(parameter.type, RunName), (name, parameter.name)


def test_the_table_of_the_page_is_what_commands_declare() -> None:
    page = (ROOT / "docs/running.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \| (looks|copies|writes) \|", page, re.MULTILINE)
    assert {(name, use) for names, use in rows for name in re.findall(r"`([\w-]+)`", names)} == {*uses()}


@pytest.fixture
def hostile(shared: Path) -> RunLayout:
    """A finished run, whose folders are links to those of the one who types the command."""
    layout = evaluated_run(shared / "run", 0, 1)
    precious = shared / "precious"
    for name in ("set_aside", "logs", "checkpoints"):
        (precious / name / "step000001").mkdir(parents=True)
        (precious / name / "thesis.log").write_text("years of work")
        shutil.rmtree(layout.root / name, ignore_errors=True)
        (layout.root / name).symlink_to(precious / name)
    return layout


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@ROOT_ONLY
def test_a_command_that_writes_refuses_a_run_of_another_user(hostile: RunLayout) -> None:
    give_away(hostile.root)
    before = held(hostile.root.parent)
    for words in WRITING:
        command, *options = words.split()
        said = typed(command, hostile.root, *options, exits=2).output
        assert f"this run belongs to the user nobody ({ANOTHER})" in said, words
        assert "go-w" not in said, "its mode is not the cause"
        assert f"next:     mrt-hpc {'report' if words == 'report' else 'fork'} {hostile.root} --" in said, words
        assert held(hostile.root.parent) == before, words
    assert "this run belongs to" in typed("analyze", "scaling", hostile.root, exits=2).output


@pytest.mark.parametrize("kind", ["", "logs", "checkpoints"])
def test_clean_removes_nothing_that_a_link_leads_to(hostile: RunLayout, kind: str) -> None:
    """Also in a run of one's own: a checkpoint of another disk may be one of several runs."""
    precious = hostile.root.parent / "precious"
    before = held(precious)
    typed("clean", hostile.root, "--yes", *(("--what", kind) if kind else ()))
    assert held(precious) == before
    with pytest.raises(UserError, match="no folder of your own"), folder_below(hostile.root, hostile.set_aside):
        pass


@ROOT_ONLY
def test_no_process_ends_that_a_link_in_a_run_of_another_user_leads_to(hostile: RunLayout, shared: Path) -> None:
    give_away(hostile.root)
    mine = evaluated_run(shared / "mine", 0)
    with holder_of(mine.root) as holder:
        shutil.rmtree(hostile.jobs, ignore_errors=True)
        hostile.jobs.symlink_to(mine.jobs)
        typed("cancel", hostile.root, exits=2)
        assert holder.poll() is None


@ROOT_ONLY
def test_the_place_that_was_looked_at_is_the_one_that_is_used(shared: Path) -> None:
    """A path through a folder of another user may lead elsewhere at the next look."""
    mine, theirs = shared / "mine", shared / "theirs"
    mine.mkdir()
    theirs.mkdir()
    (theirs / "link").symlink_to(mine)
    assert refuse_to_write(mine) == mine
    os.chown(theirs, ANOTHER, ANOTHER)
    assert refuse_to_write(theirs / "link") == mine


# -- what a run takes of a model directory of another user


SECRET = "for the first user alone"
NEEDED = ("config.json", "model.safetensors", "tokenizer.model", "merges.txt", "chat_template.jinja")


@pytest.fixture
def secret(shared: Path) -> Path:
    path = shared / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def model(shared: Path) -> Path:
    folder = shared / "model"
    folder.mkdir()
    for name in (*NEEDED, "README.md", "pytorch_model.bin", "custom.py", ".hidden.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def taken(shared: Path) -> Path:
    folder = shared / "taken"
    folder.mkdir()
    return folder


def linked(link: Path, target: object) -> None:
    """A link of another user."""
    link.symlink_to(str(target))
    os.lchown(link, ANOTHER, ANOTHER)


def test_of_a_model_the_files_that_are_needed_are_taken(model: Path, taken: Path) -> None:
    take_over(model, taken)
    assert {path.name for path in taken.iterdir()} == {*NEEDED}
    assert (taken / "config.json").samefile(model / "config.json"), "what is this user's own takes no room"


@ROOT_ONLY
@pytest.mark.parametrize("target", ["secret", "../../blobs/../secret", "../secret"])
def test_a_link_of_another_user_leads_nowhere(model: Path, taken: Path, secret: Path, target: str) -> None:
    linked(model / "notes.txt", secret if target == "secret" else target)
    with pytest.raises(UserError, match="leads out of the model"):
        take_over(model, taken)
    assert all(SECRET not in path.read_text() for path in taken.iterdir())


def test_a_link_of_ones_own_is_followed(model: Path, taken: Path, shared: Path) -> None:
    (shared / "tokenizer.json").write_text("mine")
    (model / "tokenizer.json").symlink_to("../tokenizer.json")
    take_over(model, taken)
    assert (taken / "tokenizer.json").read_text() == "mine"


@ROOT_ONLY
def test_links_of_the_hubs_cache_lead_to_its_blobs_alone(shared: Path, taken: Path, secret: Path) -> None:
    folder = shared / "models--o--n" / "snapshots" / ("0" * 40)
    blobs = folder.parents[1] / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "digest").write_text("{}")
    os.chown(blobs / "digest", ANOTHER, ANOTHER)
    linked(folder / "config.json", "../../blobs/digest")
    take_over(folder, taken)
    assert (taken / "config.json").read_text() == "{}"
    assert (taken / "config.json").stat().st_nlink == 1, "the other user could write to it afterwards"
    linked(blobs / "inner", secret)
    linked(folder / "a.json", "../../blobs/inner")
    with pytest.raises((UserError, OSError)):
        take_over(folder, taken)
    (folder / "a.json").unlink()
    blobs.rename(shared / "aside")
    linked(blobs, shared)
    linked(folder / "b.json", "../../blobs/secret")
    with pytest.raises((UserError, OSError)):
        take_over(folder, taken)
    assert all(SECRET not in path.read_text() for path in taken.iterdir())


@ROOT_ONLY
def test_no_file_is_shared_that_another_user_can_write_to(model: Path, taken: Path) -> None:
    os.chown(model / "config.json", ANOTHER, ANOTHER)
    (model / "merges.txt").chmod(0o666)
    take_over(model, taken)
    shared_files = {path.name for path in taken.iterdir() if path.samefile(model / path.name)}
    assert shared_files == {*NEEDED} - {"config.json", "merges.txt"}


def test_the_mode_of_an_original_never_changes(model: Path, shared: Path) -> None:
    """A run that the group reads has a copy of what only this user may read."""
    run = bare_run(shared / "run").root
    open_to_group(run)
    (model / "tokenizer.model").chmod(0o600)
    before = os.umask(CLOSED_TO_OTHERS)
    try:
        commit_whole(run / "weights" / "v000000", lambda folder: take_over(model, folder))
    finally:
        os.umask(before)
    taken = run / "weights" / "v000000" / "tokenizer.model"
    assert stat.S_IMODE((model / "tokenizer.model").stat().st_mode) == 0o600
    assert stat.S_IMODE(taken.stat().st_mode) == 0o640


def test_of_a_weights_version_only_what_its_manifest_names_is_taken(model: Path, taken: Path) -> None:
    write_manifest(model)
    (model / "extra.json").write_text("{}")
    take_over(model, taken)
    assert not (taken / "extra.json").exists() and (taken / MANIFEST).exists()
