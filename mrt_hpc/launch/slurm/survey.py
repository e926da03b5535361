"""Asks a Slurm cluster about itself, once. A command that is missing, or that refuses, leaves its part empty; the
``problems`` of :class:`mrt_hpc.launch.slurm.cluster_facts.Survey` then say why.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable

from mrt_hpc.errors import UserError
from mrt_hpc.launch.slurm.answers import version as parse_version
from mrt_hpc.launch.slurm.cluster_facts import Survey, User
from mrt_hpc.launch.slurm.cluster_texts import (
    default_account,
    parse_associations,
    parse_partitions,
    parse_qos,
    parse_settings,
)
from mrt_hpc.launch.slurm.commands import run_slurm

ANSWER_S = 20.0
"""The seconds that each question may take: a login node under load answers in seconds."""
LONGEST_PROBLEM = 100
"""Characters of Slurm's own words that are kept where a command gives no answer."""
VERSION = ("sinfo", "--version")
CONFIG = ("scontrol", "show", "config")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
NODES = ("sinfo", "--noheader", "--all", "--exact", "--format=%R|%G|%D|%c|%m")
QOS = (
    "sacctmgr", "--noheader", "--parsable2", "show", "qos",
    "format=Name,MaxWall,MaxSubmitPU,GraceTime,PreemptMode,Preempt",
)  # fmt: skip


def associations_command(user: str, cluster: str) -> tuple[str, ...]:
    """The command that lists the accounts of a user on a cluster, with their limits: a database may be that of several
    clusters. Where the name of the cluster is not known, it is the empty text.
    """
    fields = "format=Account,Partition,QOS,DefaultQOS,MaxSubmitJobs,MaxWall"
    here = (f"cluster={cluster}",) if cluster else ()
    return ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", *here, fields)


def default_account_command(user: str) -> tuple[str, ...]:
    """The command that prints a user and the default account."""
    return ("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=User,DefaultAccount")


Ask = Callable[[tuple[str, ...]], str]
"""Runs one command of Slurm, and returns what it printed."""


def ask(command: tuple[str, ...]) -> str:
    """Run one command of Slurm.

    Raises:
        UserError: it is missing, refuses, or does not answer in time.
    """
    return run_slurm(command, ANSWER_S)


def survey(user: User | None = None, ask: Ask = ask) -> Survey:
    """Ask the cluster that Slurm's commands speak to.

    Args:
        user: whose associations are asked for; None for the user of this process.
        ask: runs one command and returns what it printed.
    """
    user = user or User.current()
    answers = _Answers(ask)
    version, config = parse_version(answers.of(VERSION) or ""), answers.of(CONFIG)
    listing, nodes = answers.of(PARTITIONS), answers.of(NODES)
    settings = None if config is None else parse_settings(config)
    if settings is not None and not settings.accounting:
        answers.problems[shlex.join(CONFIG)], settings = "it printed no AccountingStorageType", None
    accounts = associations_command(user.name, settings.name if settings else "")
    if settings is not None and not settings.has_accounting:
        reason = f"this cluster has no accounting (AccountingStorageType={settings.accounting})"
        commands = (accounts, default_account_command(user.name), QOS)
        missing = {shlex.join(command): reason for command in commands}
        return Survey(
            user, version, settings, parse_partitions(listing, nodes), problems={**answers.problems, **missing}
        )
    associations = answers.of(accounts)
    default, qos = answers.of(default_account_command(user.name)), answers.of(QOS)
    return Survey(
        user,
        version,
        settings,
        parse_partitions(listing, nodes),
        None if associations is None else tuple(parse_associations(associations)),
        default_account(default or "", user.name),
        None if qos is None else {one.name: one for one in parse_qos(qos)},
        answers.problems,
    )


class _Answers:
    """Asks commands, and keeps why one gave no answer."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self.problems = ask, dict[str, str]()

    def of(self, command: tuple[str, ...]) -> str | None:
        try:
            return self._ask(command).strip()
        except UserError as error:
            said = textwrap.shorten(str(error.value or ""), LONGEST_PROBLEM, placeholder=" ...")
            self.problems[shlex.join(command)] = f"{error.what}: {said}" if said else error.what
            return None
