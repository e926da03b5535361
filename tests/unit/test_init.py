"""`mrt-hpc init` on clusters that answer with recorded texts: what it writes, asks and refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from slurm_texts import USER, RecordedSlurm

from mrt_hpc.backends.sites import default_site, find_site
from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli import init as init_command
from mrt_hpc.cli.main import main
from mrt_hpc.cluster import login_node
from mrt_hpc.cluster.login_node import LoginNode, module_of, mounts_by_kernel
from mrt_hpc.cluster.questions import Wishes, open_questions, with_proposals

if TYPE_CHECKING:
    from pathlib import Path

NODE = LoginNode("/shared/env/bin/python", modules="LMOD_CMD=/opt/lmod")
TYPED = {"nodes": [("gpu|gpu:2|4", "gpu|gpu:a100:4(S:0-1)|2|64|512000\ngpu|gpu:h100:8|4")]}
TWO_ACCOUNTS = {"associations": [("lab||", "lab||lowly,normal,urgent||200|\nteaching||")]}


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(survey.User, "current", classmethod(lambda _: USER))
    monkeypatch.setattr(login_node, "look_at_login_node", lambda: NODE)


def init(monkeypatch: pytest.MonkeyPatch, slurm: RecordedSlurm, *arguments: str, answers: str | None = None) -> Result:
    monkeypatch.setattr(survey, "run_slurm", slurm)
    if answers is not None:
        monkeypatch.setattr(init_command, "_is_terminal", lambda: True)
    return CliRunner().invoke(main, ["init", *arguments], input=answers)


def written(tmp_path: Path, name: str) -> str:
    return (tmp_path / "config" / "mrt-hpc" / "sites" / f"{name}.yaml").read_text()


def test_the_profile_is_read_back_with_the_clusters_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = init(monkeypatch, RecordedSlurm(), "--yes", "--gpu-partition", "preempt")
    assert done.exit_code == 0, done.output
    site = find_site("onehost")
    assert isinstance(site, SlurmSite)
    assert (site.account, site.partitions.cpu, site.partitions.gpu) == ("lab", "cpu", "preempt")
    assert (site.max_array_size, site.max_submit_jobs, site.max_time_minutes) == (1001, 5000, 2880)
    assert site.preemption_notice_s == 25, "GraceTime 15 and KillWait 10"
    text = written(tmp_path, "onehost")
    assert "max_array_size: 1001 # scontrol show config: MaxArraySize\n" in text
    assert "account: lab # sacctmgr show associations: your only account\n" in text
    values = [line for line in text.splitlines() if not line.startswith(("#", "type:", "partitions:"))]
    assert [line for line in values if " # " not in line] == [], "each value has its reason"


def test_a_cluster_of_parts_of_gpus_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = tmp_path / "box.yaml"
    parts = RecordedSlurm(changes={"nodes": [("gpu:2", "gpu:1g.10gb:2(S:0)")]})
    assert init(monkeypatch, parts, "box", "--yes", "--output", str(profile)).exit_code == 0
    assert "parts of GPUs (MIG) only in your partitions: 1g.10gb" in profile.read_text()
    wrong = init(monkeypatch, parts, "box", "--yes", "--output", str(tmp_path / "two.yaml"), "--gpu-type", "1g.10gb")
    assert (wrong.exit_code, "the options of mrt-hpc init" in wrong.output, ".tmp-" in wrong.output) == (2, True, False)


def test_the_profile_becomes_the_site_of_all_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "config" / "mrt-hpc" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.parent.chmod(0o777)
    for name in ("first", "123"):
        done = init(monkeypatch, RecordedSlurm(), name, "--yes")
        assert done.exit_code == 0, done.output
        assert default_site() == (name, str(settings))
        assert find_site(None).name == name
        assert str(settings) in done.output
    assert not settings.parent.stat().st_mode & 0o022, "else the settings would not be read"
    elsewhere = tmp_path / "elsewhere.yaml"
    assert init(monkeypatch, RecordedSlurm(), "third", "--yes", "--output", str(elsewhere)).exit_code == 0
    assert find_site(None).read_from == elsewhere


def test_no_profile_is_called_as_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert init(monkeypatch, RecordedSlurm(), "local", "--yes").exit_code == 2
    named = RecordedSlurm(changes={"config": [("= onehost", "= local")]})
    assert init(monkeypatch, named, "--yes").exit_code == 0
    assert find_site(None).name == "cluster"
    (tmp_path / "config" / "mrt-hpc" / "settings.yaml").write_text("sites: x\n")
    assert init(monkeypatch, RecordedSlurm(), "fourth", "--yes").exit_code == 2, "nothing is written over"


def test_without_accounting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert init(monkeypatch, RecordedSlurm("plain"), "small", "--yes").exit_code == 0
    site = find_site("small")
    assert isinstance(site, SlurmSite)
    assert (site.account, site.qos, site.max_array_size, site.max_submit_jobs) == (None, None, 10, 60)
    assert "account: null # not seen: this cluster has no accounting" in written(tmp_path, "small")


def test_without_slurms_commands_the_options_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = RecordedSlurm(missing=frozenset({"sinfo", "scontrol", "sacctmgr"}))
    done = init(
        monkeypatch, missing, "bare", "--yes", "--gpu-partition", "big", "--account", "me", "--gpu-type", "a100"
    )
    assert done.exit_code == 0, done.output
    assert "not seen: scontrol was not found" in done.output
    assert "still open: The partition of jobs without GPUs" in done.output
    assert "type the command again with --partition VALUE --force" in done.output
    site = find_site("bare")
    assert isinstance(site, SlurmSite)
    assert (site.account, site.partitions.gpu, site.partitions.cpu, site.gpu_type) == ("me", "big", None, "a100")
    assert "cpu: null # not seen: scontrol was not found" in written(tmp_path, "bare")


BUILD = "APPTAINER_SUID_INSTALL={suid}\\nLIBEXECDIR={root}/libexec\\nAPPTAINER_CONF_FILE={root}/apptainer.conf\\n"


@pytest.mark.parametrize(
    ("suid", "starter", "configuration", "kernel"),
    [
        ("0", False, "", False),
        ("1", False, "", False),
        ("1", True, "allow setuid-mount squashfs = yes\n", True),
        ("1", True, "# a comment\nallow setuid-mount squashfs = no\n", False),
        ("1", True, "allow setuid-mount squashfs = iflimited\n", None),
        ("1", True, "", None),
    ],
)
def test_who_mounts_images_is_told_by_starter_and_configuration(
    tmp_path: Path, suid: str, starter: bool, configuration: str, kernel: bool | None
) -> None:
    (tmp_path / "apptainer.conf").write_text(configuration)
    if starter:
        (tmp_path / "libexec" / "apptainer" / "bin").mkdir(parents=True)
        (tmp_path / "libexec" / "apptainer" / "bin" / "starter-suid").touch()
    command = tmp_path / "apptainer"
    command.write_text(f"#!/bin/sh\nprintf '{BUILD.format(suid=suid, root=tmp_path)}'\n")
    command.chmod(0o755)
    assert mounts_by_kernel(str(command)) is kernel


def test_where_it_is_not_known_who_mounts_images_they_are_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert mounts_by_kernel(str(tmp_path / "none")) is None
    assert init(monkeypatch, RecordedSlurm(), "mine", "--yes", "--image", "/i/a.sif").exit_code == 0
    assert "  unpack: true # not seen: who mounts images" in written(tmp_path, "mine")


def test_a_profile_that_is_there_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert init(monkeypatch, RecordedSlurm(), "mine", "--yes").exit_code == 0
    before = written(tmp_path, "mine")
    again = init(monkeypatch, RecordedSlurm("plain"), "mine", "--yes")
    assert again.exit_code == 2
    assert "--force" in again.output
    assert written(tmp_path, "mine") == before
    assert init(monkeypatch, RecordedSlurm("plain"), "mine", "--yes", "--force").exit_code == 0
    assert "max_array_size: 10 #" in written(tmp_path, "mine")


def test_a_wrong_value_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused = init(monkeypatch, RecordedSlurm(), "mine", "--yes", "--account", "two\nlines")
    assert refused.exit_code == 2
    assert list((tmp_path / "config" / "mrt-hpc" / "sites").iterdir()) == []
    assert init(monkeypatch, RecordedSlurm(), "no/name", "--yes").exit_code == 2


def test_without_a_terminal_the_options_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = init(monkeypatch, RecordedSlurm(), "mine")
    assert refused.exit_code == 2
    assert "add --partition VALUE, or --yes" in refused.output


def test_choices_are_asked_at_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slurm = RecordedSlurm(changes={**TYPED, **TWO_ACCOUNTS})
    done = init(monkeypatch, slurm, "asked", answers="teaching\n\n\na100\n")
    assert done.exit_code == 0, done.output
    site = find_site("asked")
    assert isinstance(site, SlurmSite)
    assert (site.account, site.partitions.cpu, site.partitions.gpu) == ("teaching", "cpu", "gpu")
    assert site.gpu_type == "a100"
    assert "account: teaching # chosen; yours are lab, teaching" in written(tmp_path, "asked")


def test_limits_of_the_association_and_the_qos_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changes = {**TWO_ACCOUNTS, "qos": [("normal|||", "normal|12:00:00|100|")]}
    assert init(monkeypatch, RecordedSlurm(changes=changes), "limits", "--yes").exit_code == 0
    text = written(tmp_path, "limits")
    assert "max_submit_jobs: 100 # sacctmgr show qos: MaxSubmitPU of normal\n" in text
    assert "max_time_minutes: 720 # sacctmgr show qos: MaxWall of normal\n" in text


def test_partitions_that_do_not_admit_the_user_are_left_out() -> None:
    closed = [("PartitionName=gpu AllowGroups=ALL", "PartitionName=gpu AllowGroups=staff")]
    found = RecordedSlurm(changes={"partitions": closed}).survey()
    assert with_proposals(found, NODE, Wishes("x")).gpu_partition == "cpu", "not preempted, with GPUs"


def test_a_python_without_the_stack_is_asked_for() -> None:
    light = replace(NODE, missing_packages=("torch", "vllm"))
    wishes = with_proposals(RecordedSlurm().survey(), light, Wishes("x"))
    (question,) = open_questions(RecordedSlurm().survey(), light, wishes)
    assert (question.option, question.choices) == ("--python", ())
    assert open_questions(RecordedSlurm().survey(), light, replace(wishes, python="/env/bin/python")) == []
    assert open_questions(RecordedSlurm().survey(), light, replace(wishes, image="/images/x.sif")) == []


def test_the_module_of_a_python() -> None:
    loaded = ("gcc/12.3", "Python/3.12.1")
    assert module_of("/apps/python/3.12.1", loaded) == "Python/3.12.1"
    assert module_of("/usr", loaded) is None
