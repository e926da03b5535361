"""Settings of `onehost`, and the configuration files written from them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from string import Template
from typing import Any

from onehost_processes import OnehostError

TEMPLATES = Path(__file__).resolve().parent / "onehost_templates"
CLUSTER = "onehost"
PREEMPT_TYPES = {"partition": "preempt/partition_prio", "qos": "preempt/qos"}
SHAPES: dict[str, dict[str, Any]] = {
    "full": {},
    "plain": {"accounting": 0, "requeue": 0, "preempt_mode": "CANCEL", "preempt_signal": 0, "max_array_size": 10,
              "max_job_count": 60, "cgroup": "0"},
}  # fmt: skip
"""By name, the settings in which a cluster differs from the defaults. Tests use the plain one for clusters that are
configured with little: nothing remembers ended jobs, and nothing is queued again unless the job asks for it."""


@dataclass(frozen=True)
class Settings:
    root: str = "/tmp/mrt-hpc-slurm"
    port: int = 17800
    nodes: int = 4
    node_prefix: str = "node"
    cpus: int = 8
    memory_mib: int = 16000
    gpus: int = 2  # of each node: devices like null
    user: str = "researcher"
    cred_expire: int = 6  # seconds before a requeued job starts again
    grace: int = 15  # seconds between preemption and its kill
    preempt: str = "partition"
    preempt_mode: str = "REQUEUE"  # or CANCEL: what becomes of those that are pushed out
    preempt_signal: int = 1
    max_array_size: int = 1001
    max_job_count: int = 5000
    cgroup: str = "auto"  # 1, 0, or auto: 1 where version 1 is writable
    accounting: int = 1  # 0: no database, no sacct
    requeue: int = 1
    kill_wait: int = 10
    rules: int = 0
    longest_minutes: int = 25  # of a job, where there are such rules

    @classmethod
    def load(cls) -> Settings:
        """The environment's settings, except that a folder made earlier keeps its own."""
        values: dict[str, Any] = dict(_chosen("SHAPE", SHAPES, "full"))
        for field in fields(cls):
            text = os.environ.get(f"ONEHOST_{field.name.upper()}")
            if text is not None:
                values[field.name] = _number(field.name, text) if isinstance(field.default, int) else text
        chosen = cls(**values)
        _chosen("PREEMPT", PREEMPT_TYPES, "partition")
        if chosen.preempt == "qos" and not chosen.accounting:
            raise OnehostError("ONEHOST_PREEMPT=qos needs accounting, which keeps the QOS: set ONEHOST_ACCOUNTING=1")
        kept = Path(chosen.root) / "settings.json"
        return cls(**{**json.loads(kept.read_text()), "root": chosen.root}) if kept.exists() else chosen

    @property
    def node_names(self) -> list[str]:
        return [f"{self.node_prefix}{k}" for k in range(1, self.nodes + 1)]

    @property
    def scratch(self) -> Path:
        """Where each node sees a disk of its own. Ray's sockets need a short path."""
        return Path(f"/tmp/oh{self.port}")

    @property
    def accounting_port(self) -> int:
        return self.port + 1

    @property
    def database_port(self) -> int:
        return self.port + 2

    def node_port(self, name: str) -> int:
        return self.port + 3 + self.node_names.index(name)


def _chosen(variable: str, there: dict[str, Any], otherwise: str) -> Any:
    name = os.environ.get(f"ONEHOST_{variable}", otherwise)
    if name not in there:
        raise OnehostError(f"ONEHOST_{variable} must be one of {', '.join(there)}, not {name!r}")
    return there[name]


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OnehostError(f"ONEHOST_{name.upper()} must be a whole number, not {text!r}") from None


def sql_password(root: Path) -> str:
    """The database's password, made on the first call."""
    kept = root / "etc/sql-password"
    if not kept.exists():
        kept.touch(0o600)
        kept.write_text(secrets.token_hex(12))
    return kept.read_text()


def write_files(settings: Settings) -> None:
    """The cluster's folder with all that Slurm's daemons read."""
    root = Path(settings.root)
    for folder in ("etc", "log", "run", "state", "sql", "dev", *(f"spool/{name}" for name in settings.node_names)):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("log", "run", "state", "sql"):
        shutil.chown(root / folder, "slurm", "slurm")
    (root / "settings.json").write_text(json.dumps(asdict(settings), indent=2) + "\n")
    values = _template_values(settings)
    rules = ("job_submit.lua",) if settings.rules else ()
    for name in ("slurm.conf", "slurmdbd.conf", "cgroup.conf", *rules):
        (root / "etc" / name).write_text(_filled(name, values))
    gres = []
    for name in settings.node_names if settings.gpus else ():
        gres.append(
            f"NodeName={name} Name=gpu Count={settings.gpus} File={root}/dev/{name}-gpu[0-{settings.gpus - 1}]\n"
        )
        for device in (root / f"dev/{name}-gpu{k}" for k in range(settings.gpus)):
            if not device.exists():  # Slurm wants a device file for each GPU; these are further names of /dev/null
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (root / "etc/gres.conf").write_text("".join(gres))
    database_conf = root / "etc/slurmdbd.conf"  # slurmdbd insists on this owner and mode
    shutil.chown(database_conf, "slurm", "slurm")
    database_conf.chmod(0o600)


def _filled(template: str, values: dict[str, object]) -> str:
    return Template((TEMPLATES / template).read_text()).substitute(values)


def _template_values(settings: Settings) -> dict[str, object]:
    groups = [f"/sys/fs/cgroup/{part}/cgroup.procs" for part in ("freezer", "memory")]
    cgroup = settings.cgroup == "1" or (settings.cgroup == "auto" and all(os.access(path, os.W_OK) for path in groups))
    host = socket.gethostname().split(".")[0]
    values = {
        **asdict(settings),
        "cluster": CLUSTER,
        "host": host,
        "ctld_port": settings.port,
        "dbd_port": settings.accounting_port,
        "sql_port": settings.database_port,
        "sql_password": sql_password(Path(settings.root)),
        "proctrack": "proctrack/cgroup" if cgroup else "proctrack/linuxproc",
        "task_plugin": "task/cgroup" if cgroup else "task/none",
        "gather": "jobacct_gather/cgroup" if cgroup else "jobacct_gather/linux",
        "preempt_type": PREEMPT_TYPES[settings.preempt],
        "cluster_preempt_mode": "CANCEL" if settings.preempt_mode == "CANCEL" else "REQUEUE",
        "preempt_signal": "SlurmctldParameters=preempt_send_user_signal" if settings.preempt_signal else "",
        "rules": "JobSubmitPlugins=lua" if settings.rules else "",
        "accounting_lines": "AccountingStorageType=accounting_storage/none",
        "priority_lines": "PriorityType=priority/basic",  # jobs start in the order in which they were submitted
        "node_lines": "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={settings.node_port(name)} "
            f"CPUs={settings.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={settings.cpus} ThreadsPerCore=1 "
            f"RealMemory={settings.memory_mib} Gres=gpu:{settings.gpus} State=UNKNOWN"
            for name in settings.node_names
        ),
    }
    if settings.accounting:
        values["accounting_lines"] = _filled("accounting.conf", values)
        weights = "PriorityWeightPartition=1000\nPriorityWeightQOS=1000\nPriorityWeightAge=10"
        values["priority_lines"] = f"PriorityType=priority/multifactor\n{weights}"
    return values
