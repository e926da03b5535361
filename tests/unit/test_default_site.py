"""The site that a command takes: the one that is named, the run's own, the variable's, that of the settings, or this
machine; and what is refused on a machine from which a Slurm cluster is used.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from mrt_hpc.attempt.ledger import record_site, remember_site
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.sites import VARIABLE, chosen_site, find_site
from mrt_hpc.backends.slurm.commands import controller_here
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.run.layout import RunLayout

QUICKSTART = str(Path(__file__).parents[2] / "recipes" / "quickstart.yaml")
UP = "#!/bin/sh\necho 'Slurmctld(primary) at login1 is UP'\n"
SECOND = "#!/bin/sh\necho 'Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP'; exit 1\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a user with three profiles and no settings, who is in no job and has no Slurm; and an empty
    working directory.
    """
    folder = tmp_path / "config" / "mrt-hpc"
    (folder / "sites").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (folder / "sites" / f"{name}.yaml").write_text(f"type: slurm\nname: {name}\naccount: mine\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm(tmp_path, "#!/bin/sh\nexit 1\n")
    return folder


def slurm(tmp_path: Path, script: str) -> None:
    """Stand in for `scontrol`."""
    (tmp_path / "bin" / "scontrol").write_text(script)
    (tmp_path / "bin" / "scontrol").chmod(0o755)


def a_run(tmp_path: Path, site: str | None) -> RunLayout:
    """A run that was submitted to a site before."""
    recipe = load_recipe(Path(QUICKSTART))
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    if site is not None:
        record_site(layout, find_site(site))
        remember_site(layout, find_site(site))
    return layout


def typed(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("named", "run", "variable", "settings", "site"),
    [
        (None, None, None, None, "local"),
        (None, None, None, "three", "three"),
        (None, None, "", "three", "three"),
        (None, None, "two", "three", "two"),
        (None, None, "local", "three", "local"),
        (None, "one", "two", "three", "one"),
        (None, "local", "two", "three", "local"),
        ("two", "one", "three", None, "two"),
        ("local", "one", "two", "three", "local"),
    ],
)
def test_the_first_that_names_a_site_decides(
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    run: str | None,
    variable: str | None,
    settings: str | None,
    site: str,
) -> None:
    layout = a_run(tmp_path, run)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    if settings is not None:
        (home / "settings.yaml").write_text(f"site: {settings}\n")
    chosen = chosen_site(named, layout)
    assert chosen.site.name == site
    assert bool(chosen.why) == (named is None and (site != "local" or run is not None)), "what is not typed is told"


def test_a_run_takes_its_profile_as_it_is_now(tmp_path: Path, home: Path) -> None:
    layout, profile = a_run(tmp_path, "one"), home / "sites" / "one.yaml"
    profile.write_text("type: slurm\nname: one\naccount: corrected\n")
    assert chosen_site(None, layout).site == find_site("one")
    profile.unlink()
    site = chosen_site(None, layout).site
    assert isinstance(site, SlurmSite)
    assert site.account == "mine", "as it was recorded"


def test_a_default_is_no_file_of_the_working_directory(home: Path) -> None:
    """The user has not typed it there, and its commands would run in jobs."""
    (home / "settings.yaml").write_text("site: one\n")
    Path("one").write_text("type: slurm\nname: planted\nsetup: ['touch pwned']\n")
    assert find_site(None).name == "one"
    assert find_site("one").name == "planted"


@pytest.mark.parametrize(
    "text", ["", "[", "sit: one", "site: 7", "site: a/b", "site: ''", "- site", "\0", "site: nowhere"]
)
def test_settings_that_are_wrong_are_refused_with_their_file(home: Path, text: str) -> None:
    (home / "settings.yaml").write_text(text)
    done = typed("plan", QUICKSTART)
    assert done.exit_code == 2, done.output
    assert str(home / "settings.yaml") in done.stderr or "nowhere" in done.stderr
    assert "next:" in done.stderr
    assert typed("plan", QUICKSTART, "--site", "local").exit_code == 0


@pytest.fixture
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration that other users reach, with this machine as its site."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        home = Path(folder) / "mrt-hpc"
        home.mkdir(mode=0o755)
        (home / "settings.yaml").write_text("site: local\n")
        assert find_site(None) == LocalSite()
        yield home


@pytest.mark.parametrize("what", ["owner", "mode", "folder"])
def test_settings_that_another_user_can_change_are_not_read(open_home: Path, what: str) -> None:
    match what:
        case "owner" if os.geteuid() == 0:
            os.chown(open_home / "settings.yaml", 65534, -1)
        case "folder":
            open_home.chmod(0o777)
        case _:
            (open_home / "settings.yaml").chmod(0o666)
    with pytest.raises(UserError) as refused:
        find_site(None)
    assert str(open_home) in str(refused.value.where)
    assert find_site("local") == LocalSite()


def test_a_variable_that_names_no_site_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "some/where")
    with pytest.raises(UserError) as refused:
        find_site(None)
    assert refused.value.where == VARIABLE


WORK = [
    ("submit", QUICKSTART, "--run", "RUN"),
    ("submit", QUICKSTART, "--run", "new"),
    ("eval", "RUN@0", "--suite", "small_world"),
    ("analyze", "regret", "RUN@0", "--suite", "small_world_modes", "--benchmark", "direct"),
    ("serve", QUICKSTART),
    ("regrade", "RUN"),
    ("extend", "RUN", "--iterations", "500"),
]
"""Commands that work on this machine where nothing names another."""


@pytest.mark.parametrize("words", WORK, ids=lambda words: words[0])
def test_nothing_works_on_a_login_node_unasked(tmp_path: Path, words: tuple[str, ...]) -> None:
    slurm(tmp_path, UP)
    layout = a_run(tmp_path, "local")
    layout.weights_version(0).mkdir(parents=True)
    before = [*Path().rglob("*"), *layout.root.rglob("*")]
    done = typed(*(word.replace("RUN", str(layout.root)) for word in words))
    assert done.exit_code == 2
    for told in ("mrt-hpc init", "--site local", "login1"):
        assert told in done.stderr
    assert [*Path().rglob("*"), *layout.root.rglob("*")] == before


@pytest.mark.parametrize("command", ["serve", "regrade"])
@pytest.mark.parametrize("named", ["settings", "typed"])
def test_what_works_here_is_not_sent_to_a_site(tmp_path: Path, home: Path, command: str, named: str) -> None:
    (home / "settings.yaml").write_text(f"site: {'one' if named == 'settings' else 'local'}\n")
    what = QUICKSTART if command == "serve" else str(a_run(tmp_path, None).root)
    done = typed(command, what, *(["--site", "one"] if named == "typed" else []))
    assert done.exit_code == 2
    assert "srun" in done.stderr
    assert "--site local" in done.stderr


def test_plan_and_doctor_say_what_submit_will_refuse(tmp_path: Path) -> None:
    slurm(tmp_path, UP)
    planned = typed("plan", QUICKSTART)
    assert planned.exit_code == 0, planned.output
    assert "mrt-hpc init" in planned.stdout
    examined = typed("doctor", "--recipe", "quickstart")
    assert examined.exit_code == 2, examined.output
    assert "mrt-hpc init" in examined.stdout


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        (UP, "Slurmctld(primary) at login1 is UP"),
        (SECOND, "Slurmctld(backup) at b is UP"),
        ("#!/bin/sh\necho 'Slurmctld(primary) at login1 is DOWN'; exit 1\n", None),
        ("#!/bin/sh\necho 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1\n", None),
        ("#!/bin/sh\nexec sleep 60\n", "scontrol did not answer within 1 s"),
    ],
)
def test_a_controller_is_one_that_answers_or_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, answer: str | None
) -> None:
    monkeypatch.setattr("mrt_hpc.backends.slurm.commands.PING_S", 1.0)
    slurm(tmp_path, script)
    assert controller_here() == answer
    assert (chosen_site(None).refusal() is None) == (answer is None)


@pytest.mark.parametrize("before", [None, "local"])
@pytest.mark.parametrize("by", ["typed", "variable", "settings", "job"])
def test_this_machine_works_where_it_is_asked_for(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, by: str, before: str | None
) -> None:
    slurm(tmp_path, UP)
    if by == "settings":
        (home / "settings.yaml").write_text("site: local\n")
    elif by != "typed":
        monkeypatch.setenv({"variable": VARIABLE, "job": "SLURM_JOB_ID"}[by], "local")
    chosen = chosen_site("local" if by == "typed" else None, a_run(tmp_path, before))
    assert chosen.refusal() is None
    assert chosen.site == LocalSite()
