"""Checks of the cluster and of the site profile, by what Slurm's commands say."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from mrt_hpc.errors import nearest
from mrt_hpc.launch.slurm.admission import refusals
from mrt_hpc.launch.slurm.cluster_facts import OLDEST_VERSION
from mrt_hpc.launch.slurm.doctor.findings import ADMINISTRATORS, Result, doubtful, fails, not_checked, ok, or_null
from mrt_hpc.launch.slurm.site import GpuRequest, unknown_options
from mrt_hpc.launch.slurm.survey import CONFIG, PARTITIONS, QOS, VERSION, associations_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.launch.slurm.cluster_facts import Survey
    from mrt_hpc.launch.slurm.doctor.situation import Situation
    from mrt_hpc.launch.slurm.site import SlurmSite


def slurm_commands(situation: Situation) -> Iterator[Result]:
    """Slurm's commands are here, they answer, and Slurm is new enough."""
    if (found := situation.known_cluster) is None:
        return
    _, cluster = found
    oldest = ".".join(map(str, OLDEST_VERSION))
    if cluster.version_numbers is None:
        yield fails(
            cluster.why_not(VERSION) or f"sinfo --version: {cluster.version}",
            "type the command on the cluster's login node; there `sinfo --version` has to print a version",
        )
    elif cluster.version_numbers < OLDEST_VERSION:
        yield fails(f"sinfo --version: {cluster.version}; a run needs {oldest} or newer", ADMINISTRATORS)
    else:
        yield ok(f"sinfo --version: {cluster.version}")
    if cluster.version_numbers is not None and (why := cluster.why_not(CONFIG)):
        yield fails(why, "look at `scontrol ping`; the controller has to answer before jobs can be submitted")


def options_of_sbatch(situation: Situation) -> Iterator[Result]:
    """sbatch knows the further options of the profile."""
    if situation.slurm is not None and situation.slurm.sbatch:
        for sentence in unknown_options(situation.slurm):
            yield doubtful(sentence, "correct `sbatch` in the site profile")


def partitions(situation: Situation) -> Iterator[Result]:
    """The partitions of the profile exist, are up, and admit this user."""
    if (found := situation.known_cluster) is None:
        return
    site, cluster = found
    if cluster.partitions is None:
        yield not_checked(cluster.why_not(PARTITIONS) or "scontrol show partition gave no answer")
        return
    for kind in situation.kinds:
        for name in situation.named_partitions(kind):
            yield _partition(site, cluster, kind, name)


def _partition(site: SlurmSite, cluster: Survey, kind: str, name: str | None) -> Result:
    partition, about = cluster.partition(name), f"of {kind} jobs"
    there = ", ".join(cluster.partitions or {})
    field = f"partitions.{kind} in the site profile"
    if partition is None and name is None:
        return fails(
            "scontrol show partition: no partition is the default one", f"set {field} to one of {there}", about=about
        )
    if partition is None:
        guess = nearest(name or "", cluster.partitions or {})
        hint = f" (the nearest is {guess})" if guess else ""
        return fails(
            f"scontrol show partition: there is no partition {name}{hint}",
            f"set {field} to one of {there}",
            about=about,
        )
    said = f"scontrol show partition {partition.name}"
    accounts = [site.account] if site.account else [a for a in [cluster.default_account] if a]
    level = cluster.qos_of(site.account, site.qos)
    qos = site.qos or (level.name if level else None)
    if refused := refusals(partition, cluster.user, accounts, qos):
        return fails(
            f"{said}: {'; '.join(refused)}",
            f"set {field} to a partition that admits you, or account or qos to one that it admits; or "
            f"{ADMINISTRATORS} for access",
            about=about,
        )
    if partition.state != "UP":
        return doubtful(
            f"{said}: State={partition.state}; it starts no jobs now",
            f"wait until it is up (`sinfo -p {shlex.quote(partition.name)}`), or set {field} to another",
            about=about,
        )
    return ok(f"{said}: State=UP, and it admits you", about=about)


def account(situation: Situation) -> Iterator[Result]:
    """The account of the profile is one of the user's."""
    if (found := situation.known_cluster) is None:
        return
    site, cluster = found
    command = associations_command(cluster.user.name, cluster.cluster_name)
    said = shlex.join(command[:1] + command[3:6])
    if cluster.associations is None:
        reason = cluster.why_not(command) or f"{said} gave no answer"
        if cluster.settings is not None and not cluster.settings.has_accounting:
            yield ok(
                f"{reason}: jobs need no account{f', and {site.account} is not looked at' if site.account else ''}"
            )
        else:
            yield not_checked(reason)
        return
    names = sorted({one.account for one in cluster.associations})
    enforced = cluster.settings is not None and "associations" in cluster.settings.enforced
    if not names:
        result = fails if enforced else doubtful
        yield result(f"{said}: user {cluster.user.name} has no account", f"{ADMINISTRATORS} for an account")
    elif site.account is None and cluster.default_account is None:
        yield doubtful(f"{said}: {', '.join(names)}, and no default", f"set account: {names[0]} in the site profile")
    elif site.account is not None and site.account not in names:
        yield fails(
            f"{said}: {', '.join(names)}; site profile: account: {site.account}",
            f"set account to one of {', '.join(names)} in the site profile, or {ADMINISTRATORS} for access",
        )
    else:
        yield ok(f"{said}: {site.account or cluster.default_account} is yours")


def quality_of_service(situation: Situation) -> Iterator[Result]:
    """The QOS of the profile exists, and the account has it."""
    if (found := situation.known_cluster) is None or found[0].qos is None:
        return
    site, cluster = found
    if cluster.qos is None or cluster.associations is None:
        yield not_checked(cluster.why_not(QOS) or "sacctmgr show qos gave no answer")
        return
    theirs = sorted({name for one in cluster.associations_of(site.account) for name in one.qos})
    choice = f"set qos to one of {', '.join(theirs) or 'those of your account'}, or to null, in the site profile"
    if site.qos not in cluster.qos:
        yield fails(f"sacctmgr show qos: there is no QOS {site.qos}", choice)
    elif site.qos not in theirs:
        yield fails(
            f"sacctmgr show associations: your account has {', '.join(theirs) or 'none'}, not {site.qos}", choice
        )
    else:
        yield ok(f"sacctmgr show associations: your account has QOS {site.qos}")


def gpus(situation: Situation) -> Iterator[Result]:
    """The partition of GPU jobs has GPUs of the type that the profile asks for."""
    found = situation.known_cluster
    if found is None or "gpu" not in situation.kinds:
        return
    site, _ = found
    if site.gpu_request is GpuRequest.NONE:
        return
    for partition in situation.partitions("gpu"):
        kinds = [kind for kind in partition.gpu_types if kind]
        about = f"of partition {partition.name}"
        parts = f"; parts of GPUs (MIG): {', '.join(partition.slice_types)}" if partition.slice_types else ""
        said = f"sinfo: GRES of partition {partition.name}: {', '.join(kinds) or 'no type'}{parts}"
        if not partition.nodes:
            yield not_checked("sinfo told nothing of its nodes", about=about)
        elif not partition.gpu_nodes:
            remedy = (
                "set partitions.gpu in the site profile to a partition with GPUs (`sinfo -o '%R %G'`), or gpu_request"
            )
            yield fails(f"sinfo: no node of partition {partition.name} has GRES gpu{parts}", remedy, about=about)
        elif site.gpu_type is not None and site.gpu_type not in kinds:
            remedy = f"set gpu_type to {' or '.join(kinds) or 'null'} in the site profile"
            yield fails(f"{said}; site profile: gpu_type: {site.gpu_type}", remedy, about=about)
        elif site.gpu_type is None and partition.slice_types:
            remedy = f"set gpu_type to {' or '.join(kinds) or 'that of the whole GPUs'} in the site profile"
            yield fails(f"{said}; a task that gets such a part fails", remedy, about=about)
        elif site.gpu_type is None and len(kinds) > 1:
            remedy = f"set gpu_type to one of {', '.join(kinds)} in the site profile, so that all tasks are alike"
            yield doubtful(f"{said}; site profile: gpu_type: null", remedy, about=about)
        else:
            yield ok(f"{said}; site profile: gpu_type: {or_null(site.gpu_type)}", about=about)
