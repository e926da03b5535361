"""How the ranks of a trainer meet: folder, interface, the store of several nodes, and what crosses between ranks."""

import ast
import errno
import json
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from commands import refusal
from torch._C._distributed_c10d import PrefixStore

from mrt_hpc.run import network
from mrt_hpc.run.network import GLOO_INTERFACE, address_towards, gloo_interface, interface_of
from mrt_hpc.training.accelerator import backend
from mrt_hpc.training.folder_store import FolderStore
from mrt_hpc.training.rank_messages import _error, _record
from mrt_hpc.training.rendezvous import Ranks, _find_folder, join

PACKAGE = Path(__file__).parents[2] / "mrt_hpc"
SHORT = timedelta(seconds=0.1)


def private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


UNSAFE: dict[str, Callable[[Path], object]] = {
    "open": lambda folder: private(folder).chmod(0o750),
    "a link": lambda folder: folder.symlink_to(private(folder.with_name("elsewhere"))),
    "another's": lambda folder: os.chown(private(folder), 65534, 65534),
    "a file": lambda folder: folder.touch(mode=0o700),
    "gone": lambda _: None,
}


@pytest.fixture
def address(tmp_path: Path) -> Path:
    (tmp_path / "address.json").write_text(json.dumps({"folder": str(tmp_path / "folder")}))
    return tmp_path / "address.json"


@pytest.mark.parametrize("what", UNSAFE)
@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_meet_in_no_folder_that_others_may_enter(what: str, nodes: int, address: Path) -> None:
    if what == "another's" and os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    UNSAFE[what](address.with_name("folder"))
    refused = refusal(join, Ranks(1, 2, 1, nodes), address, 1)
    assert ("other users" in refused.message(), refused.where) == (True, address.with_name("folder"))


def test_ranks_meet_below_a_folder_that_hands_its_group_on(address: Path) -> None:
    address.parent.chmod(0o2750)
    private(address.with_name("folder")).chmod(0o2700)
    assert _find_folder(address, SHORT) == address.with_name("folder")


def test_a_key_that_does_not_come_is_told_with_its_folder(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, SHORT)
    assert refusal(store.get, "rank_1").where == tmp_path
    assert "rank_1" in str(refusal(PrefixStore("0", store).wait, ["rank_1"], SHORT))


def test_messages_cross_by_gloo_so_that_a_rank_that_waits_leaves_its_gpu_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, libraries in ((False, "gloo"), (True, "cpu:gloo,cuda:nccl")):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpus=gpus: gpus)
        assert backend() == libraries


def test_nothing_is_unpickled() -> None:
    """Neither what comes from another process nor a file: both could hold code. (The pickle of a call, which submitit
    writes into the run directory and reads itself, is not the package's.)
    """
    refused = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "torch.load", "numpy.load", "np.load"}
    for path in PACKAGE.rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        names = {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
        names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        for node in nodes:
            names |= {node.attr, ast.unparse(node)} if isinstance(node, ast.Attribute) else set()
        bad = [name for name in names if name in refused or name.endswith(("_object", "_object_list"))]
        assert not bad, f"{path}: {bad}"


def test_a_full_disk_keeps_its_file_when_it_crosses_to_other_ranks() -> None:
    """Its filesystem can be asked then whether bytes or inodes are lacking."""
    failure = OSError(errno.ENOSPC, "No space left on device (on rank 1)", "/shared/weights")
    crossed = _error(json.loads(json.dumps(_record(failure))))
    assert (repr(crossed), getattr(crossed, "filename", "")) == (repr(failure), failure.filename)


# -- the interface over which the ranks of several nodes connect


def test_ranks_of_one_machine_stay_on_loopback_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLOO_INTERFACE, "ib0")
    here = socket.gethostname()
    assert (gloo_interface([here, here]), gloo_interface([here, "another"])) == ("lo", "ib0")
    monkeypatch.delenv(GLOO_INTERFACE)
    monkeypatch.setattr(network, "address_towards", lambda _: "127.0.0.1")
    assert gloo_interface([here, "another"]) == interface_of("127.0.0.1") == "lo"


def test_a_node_without_a_way_to_another_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refusal(address_towards, "nowhere.invalid")
    assert refused.value == "nowhere.invalid" and GLOO_INTERFACE in str(refused.advice)
    assert "no interface" in refusal(interface_of, "192.0.2.1").what
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    assert "which is this node" in refusal(address_towards, "localhost").what
    assert address_towards("127.0.0.1") == "127.0.0.1"
