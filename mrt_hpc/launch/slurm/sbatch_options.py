"""sbatch's long options: which the plan sets itself, and which there are (Slurm 20.11 to 25.05)."""

from __future__ import annotations

_PLANNED = (
    "array cpus-per-task dependency error export-file help input job-name kill-on-invalid-dep no-requeue nodes "
    "ntasks ntasks-per-node open-mode output parsable requeue signal test-only time usage version wait wrap"
)
_OTHERS = (
    "account acctg-freq batch bb bbf begin chdir cluster-constraint clusters comment consolidate-segments constraint "
    "container container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot "
    "distribution exclude exclusive export external extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus "
    "gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold ignore-pbs licenses mail-type mail-user "
    "mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill nodefile nodelist ntasks-per-core "
    "ntasks-per-gpu ntasks-per-socket oom-kill-step overcommit oversubscribe partition power prefer priority profile "
    "propagate qos quiet reboot reservation resv-ports segment sockets-per-node spread-job spread-segments stepmgr "
    "switches thread-spec threads-per-core time-min tmp tres-bind tres-per-task uid use-min-nodes verbose "
    "wait-all-nodes wckey x11"
)

OF_THE_PLAN = frozenset(_PLANNED.split())
"""The options that the plan sets, or that change the behaviour of sbatch: a site profile must not replace them."""

OPTIONS = OF_THE_PLAN | frozenset(_OTHERS.split())
"""All of them."""


def as_word(name: str, value: object) -> str:
    """An option as a word of a command; one whose value is true has none."""
    return f"--{name}" if value is True else f"--{name}={value}"
