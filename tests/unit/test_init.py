"""`mrt-hpc init` on clusters that answer with recorded texts: what it writes, asks and refuses."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from basics import QUICKSTART, executable
from click.testing import CliRunner
from slurm_texts import USER, RecordedSlurm

from mrt_hpc.attempt.python_look import no_sampling
from mrt_hpc.backends.sites import find_site
from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.user_settings import default_site
from mrt_hpc.cli import init as init_command
from mrt_hpc.cli.main import main
from mrt_hpc.cluster import login_node
from mrt_hpc.cluster.login_node import LoginNode, module_of, mounts_by_kernel
from mrt_hpc.cluster.questions import Wishes, open_questions, take_proposals
from mrt_hpc.recipe import lock
from mrt_hpc.recipe.load import load_recipe

NODE = LoginNode("/shared/env/bin/python", modules="LMOD_CMD=/opt/lmod")
TYPED = {"nodes": [("gpu|gpu:2|4", "gpu|gpu:a100:4(S:0-1)|2|64|512000\ngpu|gpu:h100:8|4")]}
TWO_ACCOUNTS = {"associations": [("lab||", "lab||lowly,normal,urgent||200|\nteaching||")]}
PLAIN = RecordedSlurm("plain")
PARTS = RecordedSlurm(changes={"nodes": [("gpu:2", "gpu:1g.10gb:2(S:0)")]})
NO_SLURM = RecordedSlurm(missing=frozenset({"sinfo", "scontrol", "sacctmgr"}))
WHOLE = RecordedSlurm(changes={"partitions": [("OverSubscribe=NO", "OverSubscribe=EXCLUSIVE")]})
OF_ARM = RecordedSlurm(changes={"architectures": [("Arch=x86_64", "Arch=aarch64")]})
LIMITED = RecordedSlurm(changes={**TWO_ACCOUNTS, "qos": [("normal|||", "normal|12:00:00|100|")]})


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(survey.User, "current", classmethod(lambda _: USER))
    monkeypatch.setattr(login_node, "look_at_login_node", lambda: NODE)
    return tmp_path / "config" / "mrt-hpc"


@pytest.fixture
def init(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command, which has to end with an exit code: what it prints. Without answers there is no terminal."""
    assert home

    def typed(*words: str, slurm: RecordedSlurm | None = None, answers: str | None = None, code: int = 0) -> str:
        monkeypatch.setattr(survey, "run_slurm", slurm or RecordedSlurm())
        monkeypatch.setattr(init_command, "_is_terminal", lambda: answers is not None)
        done = CliRunner().invoke(main, ["init", *words], input=answers)
        assert done.exit_code == code, done.output
        return done.output

    return typed


def test_a_profile_has_the_values_of_the_cluster_and_says_whence(init: Callable[..., str], home: Path) -> None:
    cases: list[tuple[str, RecordedSlurm, dict[str, object], str]] = [
        ("--gpu-partition preempt", RecordedSlurm(), {"preemption_notice_s": 25},  # GraceTime and KillWait
         "max_array_size: 1001 # scontrol show config: MaxArraySize, or"),
        ("", PLAIN, {"account": None, "qos": None, "max_array_size": 10, "max_submit_jobs": 60}, "account: null # not"),
        ("--gpu-partition big --account me --gpu-type a100", NO_SLURM,
         {"account": "me", "partitions": {"cpu": None, "gpu": "big"}, "gpu_type": "a100"},
         "cpu: null # not seen: scontrol was not found"),
        ("", LIMITED, {"max_submit_jobs": 100, "max_time_minutes": 720}, "MaxSubmitPU of normal\n"),
        ("", PARTS, {"gpu_type": None}, "1g.10gb"),
        ("--image /i/a.sif", RecordedSlurm(), {}, "  unpack: true # not seen"),
        ("--gpu-partition gpu", RecordedSlurm(), {"node_gpus": None}, "null # jobs are charged for the GPUs"),
        ("--gpu-partition gpu", WHOLE, {"node_gpus": 2}, "node_gpus: 2 # scontrol show"),
        ("--gpu-partition gpu", OF_ARM, {"python": None}, "python: null # name the Python of the compute"),
    ]  # fmt: skip
    for number, (words, slurm, values, line) in enumerate(cases):
        init(name := f"mine{number}", "--yes", *words.split(), slurm=slurm)
        assert values.items() <= find_site(name).model_dump().items()
        text = (home / "sites" / f"{name}.yaml").read_text()
        assert line in text
        plain = [line for line in text.splitlines() if not line.startswith(("#", "type:", "partitions:", "container:"))]
        assert [line for line in plain if " # " not in line] == [], "each value has its reason"


def test_the_profile_becomes_the_site_of_all_commands(init: Callable[..., str], home: Path, tmp_path: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(0o777)
    for name in ("first", "123"):
        assert str(home / "settings.yaml") in init(name, "--yes")
        assert (default_site(), find_site(None).name) == ((name, str(home / "settings.yaml")), name)
    assert not home.stat().st_mode & 0o022, "else the settings would not be read"
    printed = init("third", "--yes", "--output", str(tmp_path / "elsewhere.yaml"))
    assert default_site() == ("123", str(home / "settings.yaml")), "a trial in another folder is the site of no command"
    assert f"--site {tmp_path}/elsewhere.yaml" in printed


def test_what_it_says_to_type_next_is_taken_by_the_python_of_the_tasks(
    init: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus = " --set resources.inference.gpus=1 --set resources.evaluation.gpus=1"
    for version, options in (("0.32.0+cpu", ""), ("0.32.0", with_gpus)):
        monkeypatch.setattr(lock, "installed_version", lambda _, version=version: version)
        doctor, submit = init(f"of-{len(options)}", "--yes").splitlines()[-2:]
        assert doctor.endswith(f"quickstart-slurm{options} --on-node")
        assert submit.endswith(f"quickstart-slurm{options}")
        words = [word for word in shlex.split(submit) if "=" in word]
        assert no_sampling(load_recipe(QUICKSTART, tuple(words))) is None


def test_what_is_refused_writes_nothing(init: Callable[..., str], home: Path) -> None:
    for words in (["mine", "--account", "two\nlines"], ["no/name"], ["local"], ["mine", "--gpu-type", "1g.10gb"]):
        assert ".tmp-" not in init(*words, "--yes", slurm=PARTS, code=2)
    assert "--partition VALUE, or --yes" in init("mine", code=2), "what is open is named with its option"
    assert list((home / "sites").iterdir()) == []


def test_a_profile_is_replaced_only_when_asked_to(init: Callable[..., str], home: Path) -> None:
    init("--yes", slurm=RecordedSlurm(changes={"config": [("= onehost", "= local")]}))
    assert find_site(None).name == "cluster", "not the name of this machine"
    before = (profile := home / "sites" / "cluster.yaml").read_text()
    assert "--force" in init("cluster", "--yes", slurm=PLAIN, code=2)
    assert profile.read_text() == before
    init("cluster", "--yes", "--force", slurm=PLAIN)
    assert "max_array_size: 10 #" in profile.read_text()
    (home / "settings.yaml").write_text("sites: x\n")
    init("fourth", "--yes", code=2)


def test_who_mounts_images_is_told_by_starter_and_configuration(tmp_path: Path) -> None:
    programs = tmp_path / "libexec" / "apptainer" / "bin"
    programs.mkdir(parents=True)
    allow = "# un commentaire charg\xe9\nallow setuid-mount squashfs ="
    for suid, starter, configuration, kernel in (
        ("0", False, "", False), ("1", False, "", False), ("1", True, f"{allow} yes\n", True),
        ("1", True, f"{allow} no\n", False), ("1", True, f"{allow} iflimited\n", None), ("1", True, "", None),
    ):  # fmt: skip
        (tmp_path / "apptainer.conf").write_text(configuration, encoding="latin-1")
        if starter:
            (programs / "starter-suid").touch()
        build = f"LIBEXECDIR={tmp_path}/libexec APPTAINER_CONF_FILE={tmp_path}/apptainer.conf"
        command = executable(tmp_path / "apptainer", f"printf '%s\\n' APPTAINER_SUID_INSTALL={suid} {build}")
        assert mounts_by_kernel(str(command)) is kernel
    assert mounts_by_kernel(str(tmp_path / "none")) is None


def test_choices_are_asked_at_a_terminal(init: Callable[..., str], home: Path) -> None:
    init("asked", slurm=RecordedSlurm(changes={**TYPED, **TWO_ACCOUNTS}), answers="teaching\n\n\na100\n")
    chosen = {"account": "teaching", "partitions": {"cpu": "cpu", "gpu": "gpu"}, "gpu_type": "a100"}
    assert chosen.items() <= find_site("asked").model_dump().items()
    assert "account: teaching # chosen; yours are lab, teaching" in (home / "sites" / "asked.yaml").read_text()


def test_what_is_proposed_and_what_is_asked_for() -> None:
    closed = [("PartitionName=gpu AllowGroups=ALL", "PartitionName=gpu AllowGroups=staff")]
    proposed = take_proposals(RecordedSlurm(changes={"partitions": closed}).survey(), NODE, Wishes("x"))
    assert proposed.gpu_partition == "cpu", "of those that admit the user one that is not preempted, with GPUs"
    light, found = replace(NODE, missing_packages=("torch", "vllm")), RecordedSlurm().survey()
    wishes = take_proposals(found, light, Wishes("x"))
    (question,) = open_questions(found, light, wishes)
    assert (question.option, question.choices) == ("--python", ())
    for given in ({"python": "/env/bin/python"}, {"image": "/images/x.sif"}):
        assert open_questions(found, light, replace(wishes, **given)) == []
    loaded = ("gcc/12.3", "Python/3.12.1")
    assert [module_of(place, loaded) for place in ("/apps/python/3.12.1", "/usr")] == ["Python/3.12.1", None]
