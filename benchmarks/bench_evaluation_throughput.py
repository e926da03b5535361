"""Generated tokens per second of the evaluation role against vLLM's own offline ``LLM.generate``, in turn.

    python benchmarks/bench_evaluation_throughput.py

The role is the real one: ``mrt-hpc eval`` of a model with random weights and 116 M parameters, from the answer of its
server to the commit of its shard. The offline engine gets the same prompts, seeds, settings and sampling parameters in
a process of its own, of which ``generate`` alone is counted; once with the processes that vLLM starts by default, and
once with everything in one process and the settings of OpenMP of the role's server, which without a GPU is the fastest
way that was found. No completion can end before its limit, so all generate equally many tokens. The goal is a ratio of
0.95 at least to vLLM with its default processes. It takes 15 minutes on two cores, which should have nothing else to
do.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from benchmarking import RESULTS, csv_text, environment, options, random_qwen3, sets, spread, table, timed, written
from run_of import read_events
from warm_start import build_tokenizer

from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import RolloutPlan
from mrt_hpc.inference.server_start import cpu_environment, is_on_cpu
from mrt_hpc.recipe.sections import Prompt
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems, write_problems
from mrt_hpc.run.records import Problem
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from mrt_hpc.run.records import Rollout

GOAL = 0.95
BENCHMARK, SEED, CORES = "noise", 0, 2
TASK = "evaluation"  # the name of the job, which its events tell at the start and end of its task
MAX_PROMPT_TOKENS = 128
KV_CACHE_GIB = 2.0
TEMPERATURE, TOP_P = 0.6, 0.95
SERVERS_OWN = ("VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Without these, vLLM has a process for the engine and one for the worker, and OpenMP waits as it does by default. The
number of the threads and their binding stay those of the role's server.
"""
UNLIKELY = -100.0
"""What a token that is never sampled has in the first column of the output head. The first dimension of the last state
is nearly 1 at every position, so this is added to the logit of the token.
"""
LIKELY = {r"\boxed{": 3.5, "}": 4.0}
"""The same for the tokens that make an answer, so that the graders have answers to grade; other tokens have 1."""


@dataclass(frozen=True)
class Load:
    problems: int = 12
    samples: int = 16
    tokens: int = 256  # of each completion
    at_once: int = 64  # the maximum number of sequences in one batch of the engine

    @property
    def generated(self) -> int:
        return self.problems * self.samples * self.tokens


@dataclass(frozen=True)
class Measured:
    """One pair: seconds of the role, and of the offline engine after it or before it."""

    pair: int
    role: float  # from the server's first answer to the commit of the shard
    role_to_last_part: float  # from the server's first answer to the last problem that was graded and committed
    role_task: float  # from the start of the evaluation task to its end, with the start and the end of its server
    role_whole: float  # the command ``mrt-hpc eval``, with the jobs before and behind the evaluation task
    offline: float
    """``LLM.generate``, same prompts, seeds and sampling parameters, in the processes that vLLM starts by default."""
    offline_whole: float  # from the start to the end of that process
    one_process: float  # ``LLM.generate`` in one process with the settings of OpenMP of the role's server
    same: float  # the share of completions that are equal, token by token
    answered: float  # the share of completions in which the role found an answer to grade

    @property
    def ratio(self) -> float:
        """Tokens per second of the role over those of the offline engine; both generate equally many."""
        return self.offline / self.role


def main() -> None:
    """Measure all pairs, and write and print the table; ``--work`` is where model and runs go while it lasts."""
    given = options(__doc__, load=Load, pairs=3, into=RESULTS / "evaluation-throughput", work=Path, offline_worker=Path)
    load = given.load
    if given.offline_worker:
        offline_worker(given.offline_worker, load)
        return
    with tempfile.TemporaryDirectory(dir=given.work) as scratch:
        folder = Path(scratch)
        parameters = make_model(folder / "model")
        write_problems(folder / "problems.jsonl", problems(load.problems))
        measured = [measure_pair(folder, load, pair) for pair in range(given.pairs)]
    rows = [[round(value, 4) for value in astuple(m)] for m in measured]
    written(csv_text([field.name for field in fields(Measured)], rows), given.into, "table.csv")
    written(as_table(measured, load, parameters), given.into)
    sys.exit(statistics.median(m.ratio for m in measured) < GOAL)


# -- model and problems


def make_model(directory: Path) -> float:
    """Write a model with random weights that writes noise of the small world's words and never ends; return its size
    in millions of parameters.
    """
    tokenizer = build_tokenizer()
    model = random_qwen3(768, 13, 12, 16000, tokenizer)
    shape(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return sum(p.numel() for p in model.parameters()) / 1e6


@torch.no_grad()
def shape(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Make all special tokens, and those that the tokenizer does not know, too unlikely to be sampled, and those that
    open and close a box likelier than others. The first dimension of the hidden state decides it: no layer changes it.
    """
    model.get_input_embeddings().weight[:, 0] = 1.0
    head_VD = model.get_output_embeddings().weight
    head_VD[:, 0] = UNLIKELY
    head_VD[: tokenizer.vocab_size, 0] = 1.0
    head_VD[list(tokenizer.added_tokens_decoder), 0] = UNLIKELY
    head_VD[tokenizer.convert_tokens_to_ids(list(LIKELY)), 0] = torch.tensor(list(LIKELY.values()))
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0


def problems(count: int) -> list[Problem]:
    """Distinct sums: a shared prompt would measure the prefix cache."""
    draw = random.Random(0)
    sums = [[draw.randint(1, 127) for _ in range(8)] for _ in range(count)]
    return [Problem(f"sum-{i}", f"Solve {'+'.join(map(str, s))}=x", str(sum(s))) for i, s in enumerate(sums)]


# -- pairs


def measure_pair(folder: Path, load: Load, pair: int) -> Measured:
    """One pair; checks that all have generated the same number of tokens."""
    layout, rollouts, role_whole = of_role(folder, load, pair)
    offline, their_ids, offline_whole = of_offline(folder, load, without=SERVERS_OWN)
    one_process, other_ids, _ = of_offline(folder, load)
    mine = [list(r.token_ids) for r in rollouts]
    assert [len(ids) for ids in mine] == [len(ids) for ids in their_ids] == [len(ids) for ids in other_ids]

    def at(kind: EventKind) -> float:
        """The time of the last event of a kind of the evaluation task."""
        return max(e["time"] for e in read_events(layout.events, kind) if e.get("job", TASK) == TASK)

    ready = at(EventKind.SERVER_STARTED)
    found = Measured(
        pair=pair,
        role=at(EventKind.SHARD_COMMITTED) - ready,
        role_to_last_part=at(EventKind.PART_COMMITTED) - ready,
        role_task=at(EventKind.TASK_ENDED) - at(EventKind.TASK_STARTED),
        role_whole=role_whole,
        offline=offline,
        offline_whole=offline_whole,
        one_process=one_process,
        same=statistics.mean(a == b for a, b in zip(mine, their_ids, strict=True)),
        answered=statistics.mean(r.answer is not None for r in rollouts),
    )
    print(f"ratio {found.ratio:.3f}; {found}", flush=True)
    return found


# -- the role


def of_role(folder: Path, load: Load, pair: int) -> tuple[RunLayout, list[Rollout], float]:
    """An evaluation with a new run directory and a new results folder, what it has sampled, and its seconds."""
    suite = folder / "noise.yaml"
    suite.write_text(yaml.safe_dump(suite_of(folder, load)))
    run = folder / f"run-{pair}"
    settings = {
        "seed": SEED,
        "serving.max_concurrent_sequences": load.at_once,
        "serving.kv_cache_gib": KV_CACHE_GIB,
        "sampling.max_prompt_tokens": MAX_PROMPT_TOKENS,
        "resources.evaluation.cpus": CORES,
    }
    command = [sys.executable, "-m", "mrt_hpc", "eval", str(folder / "model"), "--suite", str(suite)]
    command += ["--site", "local", "--run", str(run), "--results", str(folder / f"results-{pair}"), *sets(settings)]
    _, whole = timed(lambda: subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL))
    layout = RunLayout(run)
    rollouts = read_group(layout.evaluation_shard(0, BENCHMARK, 0)).rollouts
    order = {problem.id: i for i, problem in enumerate(read_problems(folder / "problems.jsonl"))}
    return layout, sorted(rollouts, key=lambda r: (order[r.problem_id], r.sample)), whole


def suite_of(folder: Path, load: Load) -> dict[str, Any]:
    """The suite: answers are looked for anywhere, since noise ends no thought."""
    source = {"type": "jsonl", "path": str(folder / "problems.jsonl"), "extraction": "any_box"}
    return {
        "prompt": {"instruction": ""},
        "benchmarks": [{"name": BENCHMARK, "samples": load.samples, "problems": source}],
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "max_tokens": load.tokens,
    }


# -- the offline engine


def of_offline(folder: Path, load: Load, without: Sequence[str] = ()) -> tuple[float, list[list[int]], float]:
    """The seconds of ``generate`` in a process of its own, with the environment of the role's server without these
    variables; the token ids by problem and sample; and the seconds of the whole process.
    """
    asked = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(load).items()]
    of_server = cpu_environment(CORES) if is_on_cpu() else {}
    variables = environment() | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    variables |= {name: value for name, value in of_server.items() if name not in without}
    start = time.perf_counter()
    with (folder / "offline.log").open("w") as log:
        command = [sys.executable, __file__, "--offline-worker", str(folder), *asked]
        ended = subprocess.run(command, env=variables, stdout=log, stderr=log, check=False)
    if ended.returncode:
        raise RuntimeError(f"the offline engine ended with {ended.returncode}:\n{(folder / 'offline.log').read_text()}")
    return *json.loads((folder / "offline.json").read_text()), time.perf_counter() - start


def engine_options(model: Path, load: Load) -> dict[str, Any]:
    """The settings of the role's server, by their names in ``LLM``."""
    own = {"kv_cache_memory_bytes": int(KV_CACHE_GIB * 2**30), "block_size": 32, "enforce_eager": True}
    return {
        "model": str(model),
        "dtype": "bfloat16",
        "max_model_len": MAX_PROMPT_TOKENS + load.tokens,
        "max_num_seqs": load.at_once,
        "gpu_memory_utilization": 0.8,
        "seed": SEED,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        **({**own, "enable_chunked_prefill": False} if is_on_cpu() else {}),
    }


def offline_worker(folder: Path, load: Load) -> None:
    """Body of the offline process: the generation, and what it took."""
    from vllm import LLM, SamplingParams

    prompter = Prompter.of(folder / "model", Prompt(instruction=""))
    asked = read_problems(folder / "problems.jsonl")
    prompts = [{"prompt_token_ids": prompter.prompt_ids(problem, MAX_PROMPT_TOKENS)} for problem in asked]
    plan = RolloutPlan(derive_seed(SEED, "evaluation", BENCHMARK), iteration=0, group_size=load.samples)
    common = {"max_tokens": load.tokens, "temperature": TEMPERATURE, "top_p": TOP_P}
    common["stop_token_ids"] = list(prompter.stop_token_ids)
    repeated = [prompt for prompt in prompts for _ in range(load.samples)]
    seeds = [plan.rollout_seed(problem.id, sample) for problem in asked for sample in range(load.samples)]
    alike = [SamplingParams(**common, seed=seed, logprobs=0, detokenize=False) for seed in seeds]

    llm = LLM(**engine_options(folder / "model", load))
    start = time.perf_counter()
    outputs = llm.generate(repeated, alike, use_tqdm=False)
    seconds = time.perf_counter() - start
    token_ids = [list(o.token_ids) for request in outputs for o in request.outputs]
    assert sum(map(len, token_ids)) == load.generated
    (folder / "offline.json").write_text(json.dumps([seconds, token_ids]))


# -- tables


def as_table(measured: Sequence[Measured], load: Load, parameters: float) -> str:
    rows = {
        "evaluation role, server ready to shard committed": [m.role for m in measured],
        "evaluation role, to the last problem committed": [m.role_to_last_part for m in measured],
        "`LLM.generate`, the processes of vLLM's default": [m.offline for m in measured],
        "`LLM.generate`, one process": [m.one_process for m in measured],
        "evaluation task, start to end": [m.role_task for m in measured],
        "`mrt-hpc eval`, start to end": [m.role_whole for m in measured],
        "offline process, start to end": [m.offline_whole for m in measured],
    }
    lines = [(name, spread(s, 1), spread([load.generated / x for x in s], 0)) for name, s in rows.items()]
    ratio, other = [m.ratio for m in measured], [m.one_process / m.role for m in measured]
    reached = "reached" if statistics.median(ratio) >= GOAL else "missed"
    return "\n".join([
        f"{parameters:.0f} M parameters; {load.problems} problems x {load.samples} completions x {load.tokens} tokens, "
        f"at most {load.at_once} at once; {len(measured)} pairs in turn; medians, with the least and the greatest.", "",
        *table(("", "seconds", "tokens/s"), lines), "",
        f"Tokens per second of the role over those of `LLM.generate`: {spread(ratio, 3)} (goal {GOAL}: {reached}); "
        f"over those in one process: {spread(other, 3)}.",
        f"Completions that are equal token by token: {spread([100 * m.same for m in measured], 0)} %; in which the "
        f"role found an answer to grade: {spread([100 * m.answered for m in measured], 0)} %.",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
