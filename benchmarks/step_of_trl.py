"""The side of TRL in ``bench_against_trl.py``: its GRPOTrainer with vLLM colocated in the same process.

    python step_of_trl.py RUN LOAD

TRL is imported from the folder that the benchmark was given. What is changed for a machine without a GPU: vLLM computes
in 32 bits and eagerly, as the server of mrt-hpc does, and new weights are loaded through vLLM's own reload, because
TRL's way (``load_weights`` of the model) does not reach weights that vLLM's CPU backend has packed.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from step_worker import LEARNING_RATE, PRICE_OF_A_TOKEN, STEP, Load, Measured, Meter, Phases, measured, tell
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.server_start import is_on_cpu
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.prompt_files import read_experiment

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.domains.base import Verifier
    from mrt_hpc.recipe.schema import Recipe

CPU_ENGINE = {
    "dtype": "float32", "kv_cache_memory_bytes": 2**30, "block_size": 32, "enforce_eager": True,
    "enable_chunked_prefill": False,
}  # fmt: skip
MISMATCH = "sampling/sampling_logp_difference/mean"
"""TRL's name for the mean difference between the log-probabilities of vLLM and of the trained model."""
LARGEST_MISMATCH = 1e-4  # both compute in 32 bits, so rounding is far below it


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, which tells the seconds of its phases."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.phases, self.tokens = Phases(), 0
        generation = self.vllm_generation
        self._sync, self._sample = generation.sync_weights, generation.generate
        if is_on_cpu():
            self._sync = partial(sync_on_cpu, generation)
        generation.sync_weights, generation.generate = self._timed_sync, self._timed_sample

    def _timed_sync(self) -> None:
        with self.phases.of("weights"):
            self._sync()

    def _timed_sample(self, **arguments: Any) -> Any:
        with self.phases.of("generation"):
            found = self._sample(**arguments)
        self.tokens += sum(map(len, found[1]))
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.phases.of("sampling and scoring"):
            return super()._generate_and_score_completions(inputs)

    def _calculate_rewards(self, *arguments: Any) -> Any:
        with self.phases.of("rewards"):
            return super()._calculate_rewards(*arguments)

    def taken(self, seconds: float) -> Measured:
        """The step that has ended; the next one begins.

        Raises:
            RuntimeError: vLLM did not sample with the weights that are trained.
        """
        mismatch = self._metrics["train"][MISMATCH][-1]
        print(f"mean difference of log-probabilities: {mismatch:.2e}", file=sys.stderr, flush=True)
        if mismatch > LARGEST_MISMATCH:
            raise RuntimeError(f"the log-probabilities of vLLM and of the trained model differ by {mismatch}")
        phases, tokens = self.phases, self.tokens
        self.phases, self.tokens = Phases(), 0
        found, inner = phases.seconds, ("weights", "generation", "rewards")
        scoring = found.pop("sampling and scoring") - sum(found[name] for name in inner)
        update = seconds - sum(found[name] for name in inner)
        return Measured(seconds, tokens, {**found, "of it scoring": scoring, "update": update}, phases.cpu)

    def fastest(self, prompts: list[list[int]], load: Load) -> Measured:
        """The same number of traces as vLLM samples them fastest: one request for each prompt, no seeds, no text."""
        params = SamplingParams(
            n=load.rollouts, max_tokens=load.max_tokens, logprobs=0, flat_logprobs=True, detokenize=False
        )
        asked: list[Any] = [{"prompt_token_ids": ids} for ids in prompts]
        started = time.perf_counter()
        outputs = self.vllm_generation.llm.generate(asked, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = sum(len(o.token_ids) for r in outputs for o in r.outputs)
        return Measured(seconds, tokens, {"generation": seconds})


@torch.no_grad()
def sync_on_cpu(generation: vllm_generation.VLLMGeneration) -> None:
    """Load the trained weights into the engine of this process, and pack them again for vLLM's CPU kernels."""
    runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=((n, p.clone()) for n, p in generation._iter_named_params()))
    for module in runner.get_model().modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
    generation.llm.reset_prefix_cache()


class Turns(TrainerCallback):  # type: ignore[misc]
    """Takes one optimiser step for each line of the standard input."""

    def __init__(self, trainer: TimedTrainer, sample: Callable[[], Measured]) -> None:
        self._trainer, self._sample = trainer, sample
        self._meter = Meter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - TRL's signature
        self._await_step(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - TRL's signature
        tell(self._meter.completed(self._trainer.taken(self._meter.seconds)))
        self._await_step(control)

    def _await_step(self, control: Any) -> None:
        for line in sys.stdin:
            if line.strip() == STEP:
                self._meter = Meter()
                return
            tell(measured(self._sample))
        control.should_training_stop = True


def rewards(verifier: Verifier, recipe: Recipe, decode: Callable[[list[int]], str], stops: tuple[int, ...]) -> Any:
    """The reward of a trace: 1 for a right answer, less the price of its tokens."""

    def right(ids: list[int], gold: str) -> float:
        end, cut = recipe.prompt.thought_end, ids[-1] not in stops
        answer = verifier.extract(decode(ids), thinking=True, thought_end=end, cut=cut)
        return float(answer is not None and verifier.judge(answer, gold).correct)

    def reward(completion_ids: list[list[int]], gold: list[str], **_: Any) -> list[float]:
        pairs = zip(completion_ids, gold, strict=True)
        return [right(ids, answer) - PRICE_OF_A_TOKEN * len(ids) for ids, answer in pairs]

    return reward


def configuration(load: Load, directory: str, max_model_len: int) -> GRPOConfig:
    """One optimiser step for each batch of traces, as mrt-hpc takes it; what is not named here is TRL's default."""
    return GRPOConfig(
        output_dir=directory, max_steps=load.steps, learning_rate=LEARNING_RATE, lr_scheduler_type="constant",
        per_device_train_batch_size=load.micro_batch_rows,
        gradient_accumulation_steps=load.traces // load.micro_batch_rows,
        num_generations=load.rollouts, max_completion_length=load.max_tokens,
        use_vllm=True, vllm_max_model_length=max_model_len,
        vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0,
        gradient_checkpointing=False, model_init_kwargs={"dtype": "float32"}, bf16=False, use_cpu=is_on_cpu(),
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip


def main() -> None:
    layout, load = RunLayout(Path(sys.argv[1])), Load.parse(sys.argv[2])
    torch.set_num_threads(load.threads)
    recipe: Recipe = read_experiment(layout)
    model = layout.weights_version(0)
    prompter, problems = Prompter.of(model, recipe.prompt), read_problems(layout.train_data)
    rows = [{"prompt": prompter.text(p.problem), "gold": p.answer} for p in problems]
    assert prompter.tokenizer(rows[0]["prompt"])["input_ids"] == prompter.encode_problem(problems[0].problem)
    if is_on_cpu():
        vllm_generation.LLM = partial(LLM, **CPU_ENGINE)
    verifier = verifier_of(recipe.problems, recipe.grading)
    with TemporaryDirectory() as scratch:
        trainer = TimedTrainer(
            model=str(model),
            args=configuration(load, scratch, recipe.sampling.max_prompt_tokens + load.max_tokens),
            train_dataset=Dataset.from_list(rows),
            processing_class=prompter.tokenizer,
            reward_funcs=rewards(verifier, recipe, prompter.tokenizer.decode, prompter.stop_token_ids),
        )
        asked = [prompter.encode_problem(p.problem) for p in problems[: load.problems]]
        trainer.add_callback(Turns(trainer, partial(trainer.fastest, asked, load)))
        trainer.train()


if __name__ == "__main__":
    main()
