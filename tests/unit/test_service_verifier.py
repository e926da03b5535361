"""The example of a verifier that asks a service, and what is refused where a verifier cannot judge on a machine."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from basics import ROOT
from commands import recipe, refusal
from graded import grade_all, recipe_beside

from mrt_hpc import ExitCode, Recipe, UserError
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cluster.doctor import local_checks, node_half, on_node
from mrt_hpc.cluster.doctor.checks import CheckVerdict
from mrt_hpc.cluster.doctor.node_half import NodeOrder
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.typed_file import decode_typed
from mrt_hpc.submit.submission import objections_to, refuse_objections

NOTHING_PROVED = {"fails": (500, b"right"), "says nothing": (200, b""), "says more": (200, b"right or wrong")}
"""Answers for which the service replies otherwise, with the status and the text of its reply."""
LACKS = "the service that judges answers gave no verdict"


class Judge(BaseHTTPRequestHandler):
    """Takes an answer for right that equals the gold answer."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["answer"] == "is late":
            time.sleep(2)
        verdict = b"right\n" if asked["answer"] == asked["gold"] else b"wrong\n"
        status, said = NOTHING_PROVED.get(asked["answer"], (200, verdict))
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """The log of a test is no place for requests."""


@contextmanager
def service() -> Iterator[HTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()  # returns when no request is taken any more


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = (ROOT / "recipes" / "examples" / "my_service.py").read_text()
    return recipe_beside(tmp_path_factory.mktemp("beside"), "of_a_service", code)


def asking(beside: Path, server: HTTPServer) -> Recipe:
    address = f"http://127.0.0.1:{server.server_port}"
    return load_recipe(beside, (f"data.verifier={{type: of_a_service:Service, address: '{address}', timeout_s: 1}}",))


@pytest.fixture
def lost(beside: Path) -> Recipe:
    """A recipe whose service has ended."""
    with service() as server:
        return asking(beside, server)


def test_the_service_says_what_is_right_and_other_replies_are_errors(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # that of downloads, which does not reach the service
    with service() as server:
        asked = asking(beside, server)
        verifier = verifier_of(asked.problems, asked.grading)
        assert verifier.refusal() is None
        with GraderPool(verifier, processes=2) as pool:
            pairs = [("def f(): pass", "def f(): pass"), ("\ud800", "4"), ("4", ("5", "4")), (None, "4")]
            assert [verdict.reward for verdict in grade_all(pool, pairs)] == [1.0, 0.0, 1.0, 0.0]
            for answer in (*NOTHING_PROVED, "is late"):
                error = refusal(grade_all, pool, [(answer, "4")])
                assert (error.what, error.exit_code) == (LACKS, ExitCode.RETRYABLE), answer
            server.shutdown()
            server.server_close()
            assert refusal(grade_all, pool, [("6", "6")]).what == LACKS, "the task fails, and counts no answer as wrong"
    with pytest.raises(UserError, match=LACKS), GraderPool(verifier):  # a task stops before it samples
        pass


def test_submit_refuses_a_verifier_that_cannot_judge_here(lost: Recipe) -> None:
    local, cluster = LocalSite().backend(), SlurmSite(name="c", python="/shared/env/bin/python").backend()
    plan = compile_plan(lost, LocalSite())
    assert LACKS in str(refusal(refuse_objections, lost, plan, local, lambda _: None))
    assert LACKS in objections_to(lost, plan, local).refused[-1]
    assert objections_to(lost, plan, cluster).error is None
    assert "mrt-hpc doctor --on-node" in objections_to(lost, plan, cluster).doubts[-1]
    assert objections_to(recipe("quickstart"), plan, local).error is None


def test_doctor_asks_the_verifiers_here_and_a_node_asks_its_own(beside: Path, lost: Recipe, tmp_path: Path) -> None:
    situation = Situation(SlurmSite(name="c"), lost, tmp_path)
    (here,) = local_checks.verifiers(Situation(LocalSite(), lost, tmp_path))
    (there,) = local_checks.verifiers(situation)
    assert (here.verdict, here.check) == (CheckVerdict.FAILS, "of_a_service:Service")
    assert (there.verdict, there.remedy) == (CheckVerdict.NOT_CHECKED, "add --on-node")
    write_json(tmp_path / "order", asdict(NodeOrder(verifiers=on_node.verifiers_judging(situation, "cpu"))))
    ((verifier, (evidence, advice)),) = node_half.refusals(decode_typed((tmp_path / "order").read_bytes(), NodeOrder))
    assert (verifier, LACKS in evidence, "start the service" in advice) == ("of_a_service:Service", True, True)
    with service() as server:
        found = asking(beside, server)
        assert objections_to(found, compile_plan(found, LocalSite()), LocalSite().backend()).error is None
        (here,) = local_checks.verifiers(Situation(LocalSite(), found, tmp_path))
    assert here.verdict is CheckVerdict.OK
