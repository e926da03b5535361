"""Why Slurm holds a task in its queue: the meaning of squeue's reasons, and what to type next.

Of Slurm's more than a hundred reasons, those that users meet are listed; the limits of associations and QOS, most of
the others, are read from the parts of their names.
"""

import re

from mrt_hpc.backends.backend import Hold, WaitReason

ITSELF = "nothing: it starts by itself"
START = f"{ITSELF}; `squeue --start -j {{id}}` shows when Slurm expects it"
SOON = "nothing; look again in a minute"
AGAIN = "mrt-hpc cancel {run}, and then mrt-hpc submit {run}"
CORRECT_SITE = f"correct the site profile, then {AGAIN}"
ACCOUNTS = "`sacctmgr show assoc user=$USER format=cluster,account,partition,qos` shows what you may use"
NODES = "`sinfo -R` shows why nodes are away, `scontrol show reservation` reservations such as a maintenance"
ADMINISTRATORS = "ask the administrators of the cluster, and name the job {id}; only they can release it"
RELEASE = (
    "scontrol release {id}; if it happens again, report the node to the administrators: sacct -j {id} -o jobid,nodelist"
)
LIMITS = {
    "QOS": "`sacctmgr show qos format=name,maxjobspu,maxsubmitpu,maxtrespu%30,grptres%30,maxwall` shows the limits",
    "account": "`sacctmgr show assoc user=$USER format=account,grpjobs,grptres%30,maxjobs,maxtres%30` shows the limits",
}

_REACHED = {of: f"have reached the {of}'s limit" for of in LIMITS}
_WHEN_SOME_END = {of: f"{ITSELF}, when some of them end; {shown}" for of, shown in LIMITS.items()}
_LATER = {of: f"{ITSELF}, when the period ends or the limit is raised; {shown}" for of, shown in LIMITS.items()}


def _never(means: str, shown: str, change: str = CORRECT_SITE) -> WaitReason:
    return WaitReason(f"{means}, so it can never start", f"{shown}; {change}", Hold.NEVER)


_REASONS = {
    "None": WaitReason("Slurm has not looked at it yet", SOON),
    "Priority": WaitReason(
        "other jobs in its partition have a higher priority",
        f"{ITSELF}; `sprio -j {{id}}` shows its priority, and `squeue --start -j {{id}}` when Slurm expects it",
    ),
    "Resources": WaitReason("it is next in turn, and the nodes, cores, memory or GPUs for it are in use", START),
    "Licenses": WaitReason("a licence that it asks for is in use", START),
    "JobArrayTaskLimit": WaitReason(
        "as many tasks of its array run as the recipe allows at a time",
        f"{ITSELF}; scontrol update JobId={{array}} ArrayTaskThrottle=N allows more now",
    ),
    "ReqNodeNotAvail": WaitReason("a node that it needs is down, drained or reserved", NODES),
    "Nodes required for job are DOWN": WaitReason(
        "nodes that it needs are down, drained or reserved for a partition of higher priority", NODES
    ),
    "NodeDown": WaitReason("a node that it needs is down", NODES),
    "PartitionDown": WaitReason(
        "its partition starts no jobs at present", f"{ITSELF}, when `scontrol show partition` says State=UP again"
    ),
    "PartitionInactive": WaitReason(
        "its partition accepts no jobs at present", "`scontrol show partition` shows its state; see also `sinfo`"
    ),
    "Cleaning": WaitReason("its last attempt is still being removed from a node", SOON, Hold.TIME),
    "Ending": WaitReason("the processes of its last attempt are ending", SOON, Hold.TIME),
    "BeginTime": WaitReason(
        "the earliest time of its start has not come",
        f"{ITSELF}; one that was queued again waits for about two minutes (`scontrol show job {{id}}`: EligibleTime)",
        Hold.TIME,
    ),
    "Reservation": WaitReason(
        "its reservation has not begun", "`scontrol show reservation` shows when it begins", Hold.TIME
    ),
    "Dependency": WaitReason("it waits for other jobs of the run", ITSELF, Hold.JOBS),
    "DependencyNeverSatisfied": WaitReason(
        "a job that it waits for has failed or was cancelled, so it can never start",
        f"{AGAIN}, which submits what is missing",
        Hold.NEVER,
    ),
    "JobHeldUser": WaitReason("a user has held it", "scontrol release {id}", Hold.USER),
    "JobHeldAdmin": WaitReason("an administrator has held it", ADMINISTRATORS, Hold.ADMINISTRATOR),
    "JobHoldMaxRequeue": WaitReason(
        "it was queued again more often than the cluster allows (MaxBatchRequeue), and Slurm has held it",
        "mrt-hpc logs {run} shows why its attempts ended; then scontrol release {id}",
        Hold.USER,
    ),
    "JobLaunchFailure": WaitReason("it could not be launched on its node", RELEASE, Hold.USER),
    "launch failed requeued held": WaitReason(
        "it could not be launched on its node (a prolog failed, or a filesystem is missing), and Slurm has held it",
        RELEASE,
        Hold.USER,
    ),
    "user env retrieval failed requeued held": WaitReason(
        "Slurm could not read your environment on its node, and has held it", RELEASE, Hold.USER
    ),
    "PartitionTimeLimit": _never(
        "its time limit is longer than its partition allows",
        "`sinfo -o '%P %l'` shows the limits",
        "mrt-hpc cancel {run}, and then mrt-hpc submit {run} "
        "--set resources.{role}.time_limit_minutes=MINUTES, or another partition in the site profile",
    ),
    "PartitionNodeLimit": _never(
        "it asks for more nodes than its partition allows",
        "`sinfo -o '%P %s'` shows the limits",
        f"{CORRECT_SITE}, or fewer nodes in the recipe",
    ),
    "PartitionConfig": _never(
        "it asks for what its partition does not have", "`scontrol show partition` shows what it has"
    ),
    "BadConstraints": _never(
        "no node has all that it asks for (features, GPU type, memory)",
        "`sinfo -o '%P %G %m %f'` shows what nodes have",
    ),
    "AccountNotAllowed": _never("its account may not use its partition", ACCOUNTS),
    "InvalidAccount": _never("its account is not valid", ACCOUNTS),
    "InvalidQOS": _never("its QOS is not valid", ACCOUNTS),
    "QOSNotAllowed": _never("its QOS may not be used in its partition", ACCOUNTS),
    "ReservationDeleted": _never(
        "its reservation is not there any more", "`scontrol show reservation` shows those that are there"
    ),
    "DeadLine": WaitReason("its deadline has passed, so it can never start", CORRECT_SITE, Hold.NEVER),
    "job requeued in held state": WaitReason(
        "it was queued again and held (scontrol requeuehold)", "scontrol release {id}", Hold.USER
    ),
    "QOSUsageThreshold": WaitReason("the usage of its QOS is above the limit", f"{ITSELF}; {LIMITS['QOS']}"),
    "AssociationJobLimit": WaitReason(f"your jobs {_REACHED['account']} on running jobs", _WHEN_SOME_END["account"]),
    "AssociationResourceLimit": WaitReason(f"your jobs {_REACHED['account']} on resources", _WHEN_SOME_END["account"]),
    "AssociationTimeLimit": WaitReason(f"your jobs {_REACHED['account']} on running time", _LATER["account"]),
    "QOSJobLimit": WaitReason(f"the jobs {_REACHED['QOS']} on running jobs", _WHEN_SOME_END["QOS"]),
    "QOSResourceLimit": WaitReason(f"the jobs {_REACHED['QOS']} on resources", _WHEN_SOME_END["QOS"]),
    "QOSTimeLimit": WaitReason(f"the jobs {_REACHED['QOS']} on running time", _LATER["QOS"]),
}
_LIMIT = re.compile(
    r"(?P<of>QOS|Assoc)(?P<kind>Max|Min|Grp)(?P<what>Jobs|SubmitJob|GRES|Cpu|CPU|Mem|Node|Wall|Billing)(?P<rest>\w*)"
)
"""Limits of a QOS or an association, as ``QOSMaxJobsPerUserLimit``, ``AssocGrpGRES`` and ``QOSMinGRES``."""
_WHAT = {
    "Jobs": "running jobs",
    "SubmitJob": "submitted jobs",
    "GRES": "GPUs",
    "Cpu": "cores",
    "CPU": "cores",
    "Mem": "memory",
    "Node": "nodes",
    "Wall": "running time",
    "Billing": "billed resources",
}
TURN_LIMITS = frozenset({"Jobs", "GRES", "Cpu", "CPU", "Node"})
TURNS = "with schedule.coupling: colocated inference and trainer of a new run are one job (mrt-hpc fields coupling)"
"""Helps where a limit of a user's running jobs keeps two jobs of a run apart."""
_MINUTES = {"GPUs": "GPU minutes", "cores": "core minutes"}


def meaning(reason: str) -> WaitReason | None:
    """Nodes behind a comma, as in ``ReqNodeNotAvail, UnavailableNodes:node1``, are no part of the reason."""
    name = re.split(r"[,(]", reason.strip().strip("()"))[0].strip().replace("_", " ")
    return _REASONS.get(name) or _limit(name)


def _limit(name: str) -> WaitReason | None:
    if (match := _LIMIT.match(name)) is None:
        return None
    of = "QOS" if match["of"] == "QOS" else "account"
    what = _WHAT[match["what"]]
    if "Minutes" in match["rest"]:
        what = _MINUTES.get(what, f"minutes of {what}")
    if _one_job_exceeds(match):
        less, than = ("fewer", "requires") if match["kind"] == "Min" else ("more", "allows")
        change = f"change resources in the recipe, or the site profile, then {AGAIN}"
        return _never(f"it asks for {less} {what} than its {of} {than}", LIMITS[of], change)
    later = (_LATER if "Minutes" in match["rest"] else _WHEN_SOME_END)[of]
    turns = f"; {TURNS}" if match["what"] in TURN_LIMITS and "PerUser" in match["rest"] else ""
    return WaitReason(f"{_whose(match, of)} {_REACHED[of]} on {what}", f"{later}{turns}")


def _one_job_exceeds(match: re.Match[str]) -> bool:
    """A limit on a single job: the end of another job does not let it start."""
    return match["kind"] == "Min" or "PerJob" in match["rest"] or "PerNode" in match["rest"]


def _whose(match: re.Match[str], of: str) -> str:
    if "PerAccount" in match["rest"]:
        return "the jobs of your account"
    return f"all jobs of the {of}" if match["kind"] == "Grp" else "your jobs"
