"""The bytes of an iteration's groups at the paper's scale: 64 problems with 4 rollouts of up to 16,384 tokens (median
about 6,000), and 28 branches of 64 tokens for each rollout. Each token is written with its log-probability, and each
trace with its text.

The tokens are those of a tokenizer of 32,000 pieces on the words of the training problems, and a log-probability has
the 24 random bits that a server's has. Some groups are made, and the iteration is counted from them.

    python benchmarks/bench_group_bytes.py --problems ../shared/data/math_train.jsonl | grep '^|'
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from benchmarking import options, table, timed
from samples import branch_with, rollout_with
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mrt_hpc.run.parquet import write_records, write_table
from mrt_hpc.run.records import Branch, Rollout

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

PROBLEMS, ROLLOUTS, BRANCHES, BRANCH_TOKENS = 64, 4, 28, 64
LIMIT, MEDIAN, SPREAD = 16384, 6000, 0.6
GROUPS = 6  # the number of groups that are made
REPEATS = 5


def main() -> None:
    given = options(__doc__, required=["problems"], problems=Path)
    words = [json.loads(line)["problem"] for line in given.problems.read_text().splitlines()]
    writer, rows = Writer(words, np.random.default_rng(0)), []
    rollouts = [writer.rollout() for _ in range(GROUPS * ROLLOUTS)]
    branches = [writer.branch() for _ in range(GROUPS * ROLLOUTS * BRANCHES)]
    tokens = PROBLEMS * statistics.mean(len(r.token_ids) for r in rollouts) * ROLLOUTS
    print(f"an iteration has {tokens / 1e6:.2f} million tokens in rollouts")
    with tempfile.TemporaryDirectory() as folder:
        for part, records, kind in (("rollouts", rollouts, Rollout), ("branches", branches, Branch)):
            path = Path(folder) / f"{part}.parquet"
            write_records(path, records, kind)
            content, count = pq.read_table(path), sum(len(record.token_ids) for record in records)
            rows += [(part, name, *row(content, path, write, count)) for name, write in WAYS.items()]
    head = ("bytes a token", "token ids", "log-probabilities", "text", "MB an iteration", "ms a group")
    print(*table(("part", "written", *head), rows, words=2), sep="\n")


WAYS: dict[str, Callable[[pa.Table, Path], None]] = {
    "zstd, dictionaries": lambda table, path: pq.write_table(table, path, compression="zstd"),
    "as mrt-hpc writes them": write_table,
}


def row(content: pa.Table, path: Path, write: Callable[[pa.Table, Path], None], tokens: int) -> list[str]:
    seconds = [timed(lambda: write(content, path))[1] for _ in range(REPEATS)]
    sizes = dict[str, int]()
    for column in (pq.ParquetFile(path).metadata.row_group(0).column(i) for i in range(len(content.schema))):
        sizes[column.path_in_schema.split(".")[0]] = column.total_compressed_size
    whole = path.stat().st_size
    cells = [f"{size / tokens:.2f}" for size in (whole, *(sizes[name] for name in ("token_ids", "logprobs", "text")))]
    return [*cells, f"{whole / GROUPS * PROBLEMS / 1e6:.1f}", f"{min(seconds) / GROUPS * 1e3:.1f}"]


class Writer:
    def __init__(self, words: list[str], draw: np.random.Generator) -> None:
        self.tokenizer = _tokenizer(words)
        self.pieces = [encoding.ids for encoding in self.tokenizer.encode_batch([f"{text}\n\n" for text in words])]
        self.draw = draw

    def rollout(self) -> Rollout:
        length = int(min(LIMIT, np.exp(self.draw.normal(np.log(MEDIAN), SPREAD))))
        ids = self.ids(length)
        prompt, logprobs = self.ids(200), self.logprobs(length)
        return rollout_with(ids, prompt_ids=prompt, logprobs=logprobs, text=self.tokenizer.decode(ids), answer="5")

    def branch(self) -> Branch:
        ids = self.ids(BRANCH_TOKENS)
        cached = {"prompt_tokens": 5000, "cached_tokens": 4096}
        logprobs = self.logprobs(BRANCH_TOKENS)
        return branch_with(ids, logprobs=logprobs, text=self.tokenizer.decode(ids), answer="5", **cached)

    def ids(self, length: int) -> list[int]:
        found = list[int]()
        while len(found) < length:
            found += self.pieces[self.draw.integers(len(self.pieces))]
        return found[:length]

    def logprobs(self, length: int) -> list[float]:
        drawn = -np.exp(self.draw.normal(-3, 2.5, length))
        return [float(x) for x in drawn.astype(np.float32)]


def _tokenizer(words: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(words, trainer)
    return tokenizer


if __name__ == "__main__":
    main()
