"""Whether a partition admits the jobs of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.launch.slurm.cluster_facts import ALL, PartitionFacts, User

if TYPE_CHECKING:
    from collections.abc import Iterable


def refusals(partition: PartitionFacts, user: User, accounts: Iterable[str], qos: str | None) -> list[str]:
    """Return why a partition admits no job of a user, a sentence each; none if it admits them.

    Args:
        partition: the partition.
        user: with the groups that the user is a member of.
        accounts: the accounts that the job may be charged to, of which one suffices; none if they are not known.
        qos: the QOS of the job; None if it is not known.
    """
    wanted, found = list(accounts), []
    if partition.root_only:
        found.append("RootOnly=YES: only root may submit to it")
    if partition.allow_groups != ALL and not partition.allow_groups & user.groups:
        found.append(f"AllowGroups={_told(partition.allow_groups)}: you are in none of these groups")
    if wanted and partition.allow_accounts != ALL and not partition.allow_accounts & set(wanted):
        found.append(f"AllowAccounts={_told(partition.allow_accounts)}: not {', '.join(wanted)}")
    if wanted and partition.allow_accounts == ALL and set(wanted) <= partition.deny_accounts:
        found.append(f"DenyAccounts={_told(partition.deny_accounts)}")
    if qos is not None and partition.allow_qos != ALL and qos not in partition.allow_qos:
        found.append(f"AllowQos={_told(partition.allow_qos)}: not {qos}")
    if qos is not None and partition.allow_qos == ALL and qos in partition.deny_qos:
        found.append(f"DenyQos={_told(partition.deny_qos)}")
    return found


def _told(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
