"""The site that a command takes, and what is refused where a Slurm cluster is used."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from basics import QUICKSTART, executable, look_first_in
from commands import refusal, typed
from other_users import ANOTHER
from run_of import run_of
from tables import tables

from mrt_hpc.attempt.ledger import record_site, remember_site
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.sites import chosen_site, find_site
from mrt_hpc.backends.slurm.arrays import ArrayExecutor
from mrt_hpc.backends.slurm.commands import controller_here
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.backends.user_settings import VARIABLE
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.access import CLOSED_TO_OTHERS, open_to_group
from mrt_hpc.run.layout import RunLayout

ON_GPUS = ("--set", "resources.inference.gpus=1", "--set", "resources.evaluation.gpus=1")
UP = "echo 'Slurmctld(primary) at login1 is UP'"


@dataclass
class User:
    """Somebody with three profiles and no settings, in an empty working directory, in no job and without Slurm."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "config" / "mrt-hpc"

    def settings(self, text: str) -> None:
        (self.home / "settings.yaml").write_text(text)

    def scontrol(self, script: str) -> None:
        executable(self.root / "bin" / "scontrol", script)

    def run(self, site: str | None) -> RunLayout:
        layout = run_of(self.root / "run")
        if site is not None:
            record_site(layout, find_site(site))
            remember_site(layout, find_site(site))
        return layout


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    user = User(tmp_path)
    for folder in (user.home / "sites", tmp_path / "bin", tmp_path / "work"):
        folder.mkdir(parents=True)
    for name in ("one", "two", "three"):
        (user.home / "sites" / f"{name}.yaml").write_text(f"type: slurm\nname: {name}\naccount: mine\n")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    look_first_in(tmp_path / "bin", monkeypatch)
    user.scontrol("exit 1")
    return user


@pytest.mark.parametrize(("named_by", "site"), tables("default_site")["named"])
def test_the_first_that_names_a_site_decides(
    user: User, monkeypatch: pytest.MonkeyPatch, named_by: dict[str, str], site: str
) -> None:
    layout = user.run(named_by.get("run"))
    if "variable" in named_by:
        monkeypatch.setenv(VARIABLE, named_by["variable"])
    if "settings" in named_by:
        user.settings(f"site: {named_by['settings']}\n")
    chosen = chosen_site(named_by.get("typed"), layout)
    assert chosen.site.name == site
    assert bool(chosen.why) == ("typed" not in named_by and (site != "local" or "run" in named_by))


def test_a_run_takes_its_profile_as_it_is_now(user: User) -> None:
    layout = user.run("one")
    (user.home / "sites" / "one.yaml").write_text("type: slurm\nname: one\naccount: corrected\n")
    assert chosen_site(None, layout).site == find_site("one")


def test_a_profile_of_another_user_is_taken_as_it_was_when_its_path_was_typed(user: User, shared: Path) -> None:
    profile = shared / "theirs.yaml"
    profile.write_text("type: slurm\nname: theirs\n")
    if os.geteuid() == 0:
        os.chown(profile, ANOTHER, ANOTHER)
    else:
        profile.chmod(0o666)
    layout = user.run(str(profile))
    assert chosen_site(None, layout).site.name == "theirs"
    added = "setup: ['id > ~/read']"
    profile.write_text(f"type: slurm\nname: theirs\n{added}\n")
    refused = refusal(chosen_site, None, layout)
    assert f"+{added}" in str(refused.value) and f"--site {profile}" in str(refused.advice)
    accepted = chosen_site(str(profile), layout).site
    remember_site(layout, accepted)
    assert chosen_site(None, layout).site == accepted
    profile.unlink()
    assert chosen_site(None, layout).site.name == "theirs", "as it was recorded"


def test_a_default_that_another_user_can_change_is_not_taken_unasked(user: User, shared: Path) -> None:
    profile = shared / "theirs.yaml"
    profile.write_text("type: slurm\nname: theirs\n")
    user.settings(f"site: {profile}\n")
    assert find_site(None).name == "theirs"
    profile.chmod(0o666)
    assert f"chmod go-w {profile}" in str(refusal(find_site, None).advice)
    assert find_site(str(profile)).name == "theirs", "its path is typed"


def test_secrets_of_a_profile_stand_in_no_file_that_the_group_reads(user: User) -> None:
    token = "hf_secret"
    profile = user.home / "sites" / "one.yaml"
    profile.write_text(f"type: slurm\nname: one\ngroup_access: true\nenvironment: {{HF_TOKEN: {token}, A: plain}}\n")
    layout = user.run(None)
    open_to_group(layout.root)
    before = os.umask(CLOSED_TO_OTHERS)
    try:
        layout = user.run("one")
        (job, *_), site = read_plan(layout.plan).jobs, find_site("one")
        assert isinstance(site, SlurmSite)
        executable(user.root / "bin" / "sbatch", "echo 12")
        ArrayExecutor(job, site, layout, waited_for=False).submit_call(print, {}, print)
    finally:
        os.umask(before)
    holding = [path for path in layout.root.rglob("*") if path.is_file() and token in path.read_text(errors="replace")]
    assert len(holding) == 3 and not any(path.stat().st_mode & 0o077 for path in holding)
    shown = typed("plan", QUICKSTART, "--site", "one", "--sbatch", *ON_GPUS).output
    assert token not in shown and "export A=plain" in shown and "export HF_TOKEN=..." in shown


def test_a_default_is_no_file_of_the_working_directory(user: User) -> None:
    """The user has not typed it there, and its commands would run in jobs."""
    user.settings("site: one\n")
    Path("one").write_text("type: slurm\nname: planted\nsetup: ['touch pwned']\n")
    assert (find_site(None).name, find_site("one").name) == ("one", "planted")


def test_a_default_that_is_wrong_is_refused_with_its_place(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "[", "sit: one", "site: 7", "site: a/b", "site: ''", "- site", "\0", "site: nowhere"):
        user.settings(text)
        refused = typed("plan", QUICKSTART, exits=2).stderr
        assert str(user.home / "settings.yaml") in refused or "nowhere" in refused
        typed("plan", QUICKSTART, "--site", "local")
    (user.home / "settings.yaml").unlink()
    (user.home / "settings.yaml").symlink_to("gone")
    assert str(user.home / "settings.yaml") in typed("plan", QUICKSTART, exits=2).stderr
    for wrong in ("some/where", "gone"):
        monkeypatch.setenv(VARIABLE, wrong)
        assert VARIABLE in refusal(find_site, None).message()


def test_settings_that_another_user_can_change_are_not_read(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which ways others can change a file: tests/unit/test_trust.py."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(shared))
    (home := shared / "mrt-hpc").mkdir(mode=0o755)
    (settings := home / "settings.yaml").write_text("site: local\n")
    assert find_site(None) == LocalSite()
    settings.chmod(0o666)
    assert str(home) in str(refusal(find_site, None).where)
    assert find_site("local") == LocalSite()


def test_nothing_works_on_a_login_node_unasked(user: User) -> None:
    user.scontrol(UP)
    layout = user.run(None)
    layout.weights_version(0).mkdir(parents=True)
    run, before = layout.root, [*Path().rglob("*"), *layout.root.rglob("*")]
    for words in (
        ("submit", QUICKSTART, "--run", run),
        ("submit", QUICKSTART, "--run", "new"),
        ("eval", f"{run}@0", "--suite", "small_world"),
        ("analyze", "regret", f"{run}@0", "--suite", "small_world_modes", "--benchmark", "direct"),
        ("regrade", run),
        ("submit", run, "--set", "schedule.iterations=500"),
    ):
        refused = typed(*words, exits=2).stderr
        assert all(word in refused for word in ("mrt-hpc init", "--site local", "login1")), words
    for words, code in (("plan", QUICKSTART), 0), (("doctor", "--recipe", "quickstart"), 2):
        assert "mrt-hpc init" in typed(*words, exits=code).stdout
    assert [*Path().rglob("*"), *run.rglob("*")] == before


def test_what_works_here_is_not_sent_to_a_site(user: User) -> None:
    words = ("regrade", user.run(None).root)
    for settings, named in (("one", ()), ("local", ("--site", "one"))):
        user.settings(f"site: {settings}\n")
        refused = typed(*words, *named, exits=2).stderr
        assert all(word in refused for word in ("srun", "--site local")), named


def test_a_controller_is_one_that_answers_or_takes_long(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrt_hpc.backends.slurm.commands.PING_S", 1.0)
    backup = "echo 'Slurmctld(backup) at b is UP'; exit 1"
    for script, answer in {
        f"echo 'Slurmctld(primary) at a is DOWN'; {backup}": "Slurmctld(backup) at b is UP",
        "echo 'Slurmctld(primary) at login1 is DOWN'; exit 1": None,
        "echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1": None,
        "exec sleep 60": "scontrol did not answer within 1 s",
    }.items():
        user.scontrol(script)
        assert controller_here() == answer
        assert (chosen_site(None).refusal() is None) == (answer is None)


@pytest.mark.parametrize("before", [None, "local"])
def test_this_machine_works_on_request(user: User, monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    user.scontrol(UP)
    layout = user.run(before)

    def works(named: str | None = None) -> bool:
        chosen = chosen_site(named, layout)
        return chosen.refusal() is None and chosen.site == LocalSite()

    assert (works("local"), works()) == (True, before == "local"), "the record of a run names its site"
    for variable, has_named in ((VARIABLE, True), ("SLURMD_NODENAME", True), ("SLURM_JOB_ID", before == "local")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "local")
            assert works() == has_named, "the shell of salloc runs on the login node"
    user.settings("site: local\n")
    assert works()
    user.settings("site: one\n")
    assert works() == (before == "local")
