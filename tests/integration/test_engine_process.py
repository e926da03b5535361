"""The process that a vLLM server on CPU forks for its engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psutil

from mrt_hpc.run.retries import wait_until

SERVER = """
import json, os, signal, time
import torch
from vllm.v1.engine import utils
from mrt_hpc.inference.vllm_on_cpu import fork_engines

def compute():
    return float((torch.ones(2048, 2048) @ torch.ones(2048, 2048)).sum())

def engine(pipe):
    pipe.send([os.getpid(), torch.get_num_threads(), compute()])
    time.sleep(60)

threads = torch.get_num_threads()
fork_engines()
mine = compute()
context = utils.get_mp_context()
receiver, sender = context.Pipe(duplex=False)
context.Process(target=engine, args=(sender,)).start()
print(json.dumps([threads, mine, *(receiver.recv() if receiver.poll(60) else [None, None, None])]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_engine_computes_with_all_threads_and_ends_with_its_server() -> None:
    """OpenMP in the child waits for ever for threads that the thread which forked had before."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        assert server.stdout
        threads, of_server, engine, threads_of_engine, of_engine = json.loads(server.stdout.readline())
        assert engine is not None, "the engine does not compute"
        assert of_engine == of_server
        assert threads_of_engine == threads
        assert server.wait(30) == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(engine), reason="the end of the engine", deadline_s=10)
