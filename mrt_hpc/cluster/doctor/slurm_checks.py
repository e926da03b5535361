"""Checks of the cluster and of the site profile, by what Slurm's commands say."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.site import GpuRequest, SlurmSite
from mrt_hpc.cluster.doctor.checks import ADMINISTRATORS, CheckResult, doubtful, fails, not_checked, ok, or_null
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.job_rules import refusals
from mrt_hpc.errors import nearest
from mrt_hpc.plan.jobs import JobKind

OLDEST_VERSION = (20, 11)


def require_survey(
    look: Callable[[Situation, SlurmSite, survey.Survey], Iterator[CheckResult]],
) -> Callable[[Situation], Iterator[CheckResult]]:
    """A check of a surveyed Slurm cluster's profile; gives no result elsewhere."""

    @wraps(look)
    def look_if_surveyed(situation: Situation) -> Iterator[CheckResult]:
        if situation.slurm is not None and situation.cluster is not None:
            yield from look(situation, situation.slurm, situation.cluster)

    return look_if_surveyed


@require_survey
def slurm_commands(_: Situation, __: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """Slurm's commands are here, they answer, and Slurm is new enough."""
    oldest = ".".join(map(str, OLDEST_VERSION))
    if cluster.version_numbers is None:
        yield fails(
            cluster.why_not(survey.VERSION) or f"sinfo --version: {cluster.version}",
            "type the command on the cluster's login node; there `sinfo --version` has to print a version",
        )
    elif cluster.version_numbers < OLDEST_VERSION:
        yield fails(f"sinfo --version: {cluster.version}; a run needs {oldest} or newer", ADMINISTRATORS)
    else:
        yield ok(f"sinfo --version: {cluster.version}")
    if cluster.version_numbers is not None and (why := cluster.why_not(survey.CONFIG)):
        yield fails(why, "look at `scontrol ping`; the controller has to answer before jobs can be submitted")


@require_survey
def partitions(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The profile's partitions exist, are up, and admit this user."""
    if cluster.partitions is None:
        yield not_checked(cluster.why_not(survey.PARTITIONS) or "scontrol show partition gave no answer")
        return
    for kind in situation.kinds:
        for name in situation.named_partitions(kind):
            yield replace(_partition(site, cluster, kind, name), check=f"of {kind} jobs")


def _partition(site: SlurmSite, cluster: survey.Survey, kind: JobKind, name: str | None) -> CheckResult:
    partition, field = cluster.partition(name), f"partitions.{kind} in the site profile"
    if partition is None:
        guess = nearest(name or "", cluster.partitions or {})
        missing = f"there is no partition {name}{f' (the nearest is {guess})' if guess else ''}"
        what = "no partition is the default one" if name is None else missing
        return fails(f"scontrol show partition: {what}", f"set {field} to one of {', '.join(cluster.partitions or {})}")
    said = f"scontrol show partition {partition.name}"
    named, asked = site.text_of("account", kind), site.text_of("qos", kind)
    accounts = filter(None, [named or cluster.default_account])
    level = cluster.qos_of(named, asked)
    if refused := refusals(partition, cluster.user, accounts, asked or (level.name if level else None)):
        return fails(
            f"{said}: {'; '.join(refused)}",
            f"set {field} to a partition that admits you, or account or qos to one that it admits; or "
            f"{ADMINISTRATORS} for access",
        )
    if partition.state != "UP":
        return doubtful(
            f"{said}: State={partition.state}; it starts no jobs now",
            f"wait until it is up (`sinfo -p {shlex.quote(partition.name)}`), or set {field} to another",
        )
    return ok(f"{said}: State=UP, and it admits you")


def different_options(site: SlurmSite, kinds: Sequence[JobKind], *options: str) -> dict[tuple[str | None, ...], str]:
    """Different values for kinds of jobs, and which jobs have them: empty text where they are all."""
    kinds_of: dict[tuple[str | None, ...], list[str]] = {}
    for kind in kinds:
        kinds_of.setdefault(tuple(site.text_of(option, kind) for option in options), []).append(kind)
    return {values: "" if len(kinds_of) == 1 else f"of {kinds[0]} jobs" for values, kinds in kinds_of.items()}


@require_survey
def account(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The accounts of the profile are the user's."""
    for (named,), about in different_options(site, situation.kinds, "account").items():
        yield replace(_account(named, cluster), check=about)


def _account(named: str | None, cluster: survey.Survey) -> CheckResult:
    command, settings = survey.associations_command(cluster.user.name, cluster.cluster_name), cluster.settings
    said = shlex.join(command[:1] + command[3:6])
    if cluster.associations is None:
        reason = cluster.why_not(command) or f"{said} gave no answer"
        if settings is None or settings.has_accounting:
            return not_checked(reason)
        return ok(f"{reason}: jobs need no account{f', and {named} is not looked at' if named else ''}")
    names = sorted({association.account for association in cluster.associations})
    if not names:
        result = fails if settings is not None and "associations" in settings.enforced else doubtful
        return result(f"{said}: user {cluster.user.name} has no account", f"{ADMINISTRATORS} for an account")
    if named is None and cluster.default_account is None:
        return doubtful(f"{said}: {', '.join(names)}, and no default", f"set account: {names[0]} in the site profile")
    if named is not None and named not in names:
        choice = f"set account to one of {', '.join(names)} in the site profile, or {ADMINISTRATORS} for access"
        return fails(f"{said}: {', '.join(names)}; site profile: account: {named}", choice)
    return ok(f"{said}: {named or cluster.default_account} is yours")


@require_survey
def quality_of_service(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """Each QOS of the profile exists, and the account has it."""
    for (named, asked), about in different_options(site, situation.kinds, "account", "qos").items():
        if asked is not None:
            yield replace(_qos(named, asked, cluster), check=about)


def _qos(named: str | None, asked: str, cluster: survey.Survey) -> CheckResult:
    if cluster.qos is None or cluster.associations is None:
        return not_checked(cluster.why_not(survey.QOS) or "sacctmgr show qos gave no answer")
    theirs = sorted({name for association in cluster.associations_of(named) for name in association.qos})
    choice = f"set qos to one of {', '.join(theirs) or 'those of your account'}, or to null, in the site profile"
    if asked not in cluster.qos:
        return fails(f"sacctmgr show qos: there is no QOS {asked}", choice)
    if asked not in theirs:
        return fails(f"sacctmgr show associations: your account has {', '.join(theirs) or 'none'}, not {asked}", choice)
    return ok(f"sacctmgr show associations: your account has QOS {asked}")


@require_survey
def gpus(situation: Situation, site: SlurmSite, _: survey.Survey) -> Iterator[CheckResult]:
    """The partition of GPU jobs has the profile's GPU type."""
    if "gpu" not in situation.kinds or site.gpu_request is GpuRequest.NONE:
        return
    for partition in situation.partitions("gpu"):
        kinds = [kind for kind in partition.gpu_types if kind]
        about = f"of partition {partition.name}"
        parts = f"; parts of GPUs (MIG): {', '.join(partition.slice_types)}" if partition.slice_types else ""
        said = f"sinfo: GRES of partition {partition.name}: {', '.join(kinds) or 'no type'}{parts}"
        if not partition.nodes:
            yield not_checked("sinfo said nothing of its nodes", about=about)
        elif not partition.gpu_nodes:
            choice = "set partitions.gpu in the site profile to a partition with GPUs"
            remedy = f"{choice} (`sinfo -o '%R %G'`), or gpu_request"
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


@require_survey
def whole_nodes(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """``node_gpus`` is the number of GPUs that a job on a node is charged for."""
    for partition in situation.partitions("gpu") if "gpu" in situation.kinds else []:
        asked = "the site profile asks for whole nodes" if site.gets_whole_nodes else ""
        whole, counts = cluster.why_whole_nodes(partition) or asked, partition.gpu_counts
        seen = f"sinfo: nodes with {' or '.join(map(str, counts))} GPUs; site profile: node_gpus: {site.node_gpus}"
        if counts and whole and site.node_gpus not in counts:
            remedy = f"set node_gpus: {counts[0]} in the site profile, so that plan counts what is charged"
            yield doubtful(f"{whole}; {seen}", remedy)
        elif counts and not whole and site.node_gpus is not None:
            remedy = "set node_gpus: null in the site profile: jobs are charged for the GPUs that they ask for"
            yield doubtful(f"scontrol show partition {partition.name}: jobs share nodes; {seen}", remedy)
