"""What Slurm's commands print is read by one function each, whatever sites and wrappers put between it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from basics import executable, look_first_in
from ruamel.yaml import YAML
from slurm_texts import USER, RecordedSlurm, squeue_prints
from tables import tables

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.queue import queue_states
from mrt_hpc.backends.slurm.reasons import _REASONS, meaning
from mrt_hpc.backends.slurm.slurm_output import squeue_format, squeue_records, submitted_id
from mrt_hpc.backends.slurm.slurm_output import version as version_in
from mrt_hpc.backends.slurm.survey import PartitionFacts, Survey, User, parse_nodes, seconds_of
from mrt_hpc.cluster.job_rules import preemption, refusals
from mrt_hpc.errors import UserError

CORPUS: dict[str, list[dict[str, Any]]] = YAML(typ="safe").load(Path(__file__).parent / "slurm_texts" / "answers.yaml")
TABLES = tables("slurm_answers")
CASES = [pytest.param(kind, case, id=f"{kind}: {case['source']}") for kind, cases in CORPUS.items() for case in cases]
BEGIN, BETWEEN, END = (
    squeue_format("begin", "end").removeprefix("--format=").replace("begin", "\0").replace("end", "\0").split("\0")
)


READERS: dict[str, Callable[[str], object]] = {
    "sbatch": lambda printed: submitted_id(printed, ["sbatch"])[0],
    "squeue": lambda printed: squeue_records(printed, 5),
    "sacct": lambda _: {task_id: task.state.value for task_id, task in queue_states(["12"]).items()},
    "nodes": lambda printed: {name: sum(k.count for k in kinds) for name, kinds in parse_nodes(printed).items()},
    "version": lambda printed: list(Survey(User("me"), version_in(printed)).version_numbers or ()) or None,
    "associations": lambda printed: {one.account: one.max_submit_jobs for one in survey.parse_associations(printed)},
    "qos": lambda printed: {one.name: one.max_submit_jobs for one in survey.parse_qos(printed)},
    "default_account": lambda printed: survey.default_account(printed, "researcher"),
    "config": lambda printed: [(found := survey.parse_settings(printed)).max_array_size, found.max_job_count],
    "partitions": lambda printed: list(survey.parse_partitions(printed)),
}


def printed_bytes(kind: str, case: dict[str, Any]) -> bytes:
    text = case["printed"]
    if kind == "squeue":
        text = text.replace("|", "\0").replace("{", BEGIN).replace("}", END).replace("\0", BETWEEN)
        text = text.replace("!", "|") if case.get("bars") else text
    return text.encode("latin-1" if case.get("latin1") else "utf-8")


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_an_answer_is_read(kind: str, case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answer").write_bytes(printed_bytes(kind, case))
    (tmp_path / "header").write_text(squeue_prints())
    for name, file in (("command", "answer"), ("sacct", "answer"), ("squeue", "header")):
        executable(tmp_path / name, f"cat {tmp_path}/{file}")
    look_first_in(tmp_path, monkeypatch)
    printed, read = run_slurm(["command"]), READERS[kind]
    if case["expected"] is None and kind in ("sbatch", "squeue"):
        with pytest.raises(UserError) as refused:
            read(printed)
        assert all(word in str(refused.value.value) for word in printed.split()[-1:])
    else:
        assert read(printed) == case["expected"]


def test_a_cluster_with_accounting() -> None:
    assert User.current().name and User.current().groups
    found = RecordedSlurm().survey()
    settings, partitions, qos = found.settings, found.partitions, found.qos
    assert settings and partitions and qos
    assert (found.version_numbers, found.default_account, found.problems) == ((22, 5), "lab", {})
    assert (settings.name, settings.max_array_size, settings.max_job_count) == ("onehost", 1001, 5000)
    assert (settings.kill_wait_s, settings.requeues, settings.exempt_s) == (10, True, 0)
    assert settings.enforced == {"associations", "limits", "qos"}
    assert settings.has_accounting and settings.sends_user_signal and settings.allocates_memory and settings.propagates
    assert [name for name, one in partitions.items() if one.is_default] == ["cpu"]
    assert (partitions["gpu"].max_minutes, partitions["gpu"].gpu_nodes, partitions["preempt"].grace_s) == (2880, 4, 15)
    assert [(one.account, one.qos) for one in found.associations or ()] == [("lab", ("lowly", "normal", "urgent"))]
    assert qos["urgent"].preempts == ("lowly",)
    assert (found.qos_of(None, None), found.qos_of("lab", "lowly")) == (qos["normal"], qos["lowly"])


def test_what_is_missing_or_refuses_leaves_the_rest() -> None:
    plain = RecordedSlurm("plain").survey()  # sacctmgr has no text: asking it would fail
    assert (plain.associations, plain.qos, plain.default_account) == (None, None, None)
    found = RecordedSlurm(missing=frozenset({"sinfo"}), refusing={"sacctmgr": "Access denied"}).survey()
    assert found.partitions and (found.version, found.partitions["gpu"].nodes, found.associations) == (None, (), None)
    assert set(found.problems.values()) == {"sinfo was not found", "sacctmgr refused: Access denied"}


def test_gpus_of_a_node_and_times() -> None:
    for gres, gpus in TABLES["gres"].items():
        (kind,) = parse_nodes(f"gpu|{gres}|3|64+|512000+")["gpu"]
        assert [kind.gpus, [*kind.slices]] == gpus, gres
        assert (kind.count, kind.cpus, kind.memory_mib) == (3, 64, 512000), gres
    assert [seconds_of(text) for text in ("00:00:15", "1-00:00:01", "-1", "")] == [15, 86401, 0, 0]


def test_whom_a_partition_admits() -> None:
    admits = PartitionFacts("p", allow_groups=frozenset({"lab", "other"}))
    assert refusals(PartitionFacts("p"), USER, ["lab"], "normal") == refusals(admits, USER, ["lab"], "normal") == []
    allows = {"groups": frozenset({"staff"}), "accounts": frozenset({"b", "a"}), "qos": frozenset({"long"})}
    allowing = PartitionFacts("p", root_only=True, **{f"allow_{of}": names for of, names in allows.items()})
    denying = PartitionFacts("p", deny_accounts=frozenset({"lab"}), deny_qos=frozenset({"normal"}))
    for partition, because in (
        (allowing, {"AllowGroups=staff", "AllowAccounts=a,b", "AllowQos=long", "RootOnly=YES"}),
        (denying, {"DenyAccounts=lab", "DenyQos=normal"}),
    ):
        assert {one.partition(":")[0] for one in refusals(partition, USER, ["lab"], "normal")} == because


def test_what_a_preemption_does() -> None:
    def modes(preempt_type: str, qos: str | None = None) -> list[tuple[str, int]]:
        found = RecordedSlurm(changes={"config": [("preempt/partition_prio", f"preempt/{preempt_type}")]}).survey()
        what = [preemption(found, one, found.qos_of(None, qos)) for one in (found.partitions or {}).values()]
        return [(one.mode, one.notice_s) for one in what if one is not None]

    assert modes("partition_prio") == [("OFF", 0), ("OFF", 0), ("REQUEUE", 25)]
    assert set(modes("qos")) == {("OFF", 0)}, "no QOS preempts QOS normal"
    assert (set(modes("qos", "lowly")), modes("none")[2]) == ({("REQUEUE", 25)}, ("OFF", 0))
    plain = RecordedSlurm("plain").survey()
    done = preemption(plain, (plain.partitions or {})["preempt"], None)
    assert done and (done.mode, done.notice_s) == ("CANCEL", 30)


def test_a_reason_has_a_meaning_and_a_command_that_can_be_typed() -> None:
    read = TABLES["reasons"]
    for reason in (*read, *_REASONS):
        found = meaning(reason)
        assert found is not None, reason
        hold, words, command = read.get(reason, (found.hold.name, "", ""))
        assert (found.hold.name, command in found.next, words in found.means) == (hold, True, True), found
        typed = found.next.format(id="12_3", array="12", run="runs/x", role="trainer").replace("{id}", "")
        assert (bool(typed), "{" in typed) == (True, False), reason
    for reason, names in (("QOSMaxJobsPerUserLimit", True), ("QOSMaxGRESPerUser", True), ("AssocGrpGRES", False)):
        assert ("schedule.coupling: colocated" in str(meaning(reason))) is names, "two jobs of a run may take turns"
    for reason in ("", "SomethingNew", "QOSomething", "Assoc"):
        assert meaning(reason) is None
