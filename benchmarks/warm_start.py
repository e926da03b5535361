r"""The starting model of the small world: its tokenizer, a Qwen3 of under a million parameters, and its supervised
training, to a policy that calculates well and thinks badly.

    python benchmarks/warm_start.py FOLDER

This command has made the starting model that comes with the package, in a minute or two. Every step sees fresh traces
of training problems, padded to the longest of the batch; no example is seen twice on purpose. The same settings give
the same model on the same machine.
"""

import math
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from mrt_hpc.domains.small_world.equations import (
    ANSWER_START,
    END_THINK,
    FORCED_TEXT,
    PARAGRAPH_END,
    THINK,
    VERDICTS,
    Equation,
    Habits,
    Knowledge,
    Split,
    problems,
    think,
)
from mrt_hpc.run.seeds import derive_seed

# -- examples ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A stretch of an example."""

    text: str
    trained: bool
    """Whether the loss counts its tokens."""


@dataclass(frozen=True)
class Example:
    """What a model is to write after a problem, without the end-of-text token."""

    problem: str
    spans: list[Span]


Examples = Callable[[random.Random], Example]
"""Draws one."""


@dataclass(frozen=True)
class EquationExamples:
    """Of the small world."""

    habits: Habits = field(default_factory=Habits)
    equations: Sequence[Equation] = field(
        default_factory=lambda: [Equation.parse(p.problem) for p in problems(Split.TRAIN)]
    )

    def __call__(self, rng: random.Random) -> Example:
        equation = rng.choice(self.equations)
        return Example(equation.statement, equation_spans(equation, self.habits, rng))


def equation_spans(equation: Equation, habits: Habits, rng: random.Random) -> list[Span]:
    checks, answer = think(equation, habits, rng)
    if rng.random() >= habits.forced:
        return [
            Span(
                "".join(c + PARAGRAPH_END for c in checks) + ANSWER_START + f"{habits.write_answer(answer, rng)}}}",
                trained=True,
            )
        ]
    return _forced_spans(checks, habits, rng)


def _forced_spans(checks: list[str], habits: Habits, rng: random.Random) -> list[Span]:
    """The checks up to a random one, the forced text, and the best answer there."""
    kept = rng.randint(0, len(checks))
    known = Knowledge()
    for check in checks[:kept]:
        guess, verdict = int(check.split("x=")[1].split(":")[0]), check.rsplit(" ", 1)[1]
        known.learn(guess, verdict)
    thought = "".join(c + PARAGRAPH_END for c in checks[:kept])
    if kept < len(checks) and rng.random() < habits.forced_inside:
        places = [m.end() for m in re.finditer("[:,] ", checks[kept])]
        thought += checks[kept][: rng.choice(places)]
    answer = habits.write_answer(known.possible(rng), rng)
    return [Span(thought, True), Span(FORCED_TEXT, False), Span(f"{answer}}}", True)]


# -- tokenizer ---------------------------------------------------------------------------------------------------------
# One token a word or number of the traces, bytes for everything else.
#
# Any text survives ``decode(encode(text))``: a stretch that is no known word falls apart into its bytes. Every stretch
# (a number, ``\n\n``, ``\boxed{``) is a token of its own, so an episode always starts at a token boundary.


END_OF_TEXT = "<|end|>"
PADDING = "<|pad|>"
# No newline right after a block: templates are rendered with those trimmed.
_MESSAGE = "{{ message['content'] }}{{ eos_token if message['role'] == 'assistant' else '' }}\n"
_MESSAGES = "{% for message in messages %}" + _MESSAGE + "{% endfor %}"
CHAT_TEMPLATE = _MESSAGES + "{% if add_generation_prompt %}<think>\n{% endif %}"
"""The thought is opened in the prompt, as R1-style models have it; a turn of the assistant ends the text."""

NUMBERS = range(128)
WORDS = (
    "Solve", " ", "*", "x", "+", "=", "*x+", "\n", PARAGRAPH_END, "First", "Wait", ", x=", ": ", ", ", " vs ",
    " low", " high", " yes", "Time", " is", " up", ".", r"\boxed{", "}",
)  # fmt: skip
_STRETCH = Regex(r"\\boxed\{|\n\n|\n|, x=|\*x\+|[:,] | vs |\d{1,3}| ?[A-Za-z]+|.")
_LONGEST = 512


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, the same at every call."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(p for p in map(_byte_level, (*WORDS, *map(str, NUMBERS))) if len(p) > 1)]
    model = models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_STRETCH, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in (THINK, END_THINK)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=_LONGEST,
    )


def _byte_level(text: str) -> str:
    """``text`` in the printable alphabet that stands for bytes."""
    [(piece, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return piece


# -- network -----------------------------------------------------------------------------------------------------------
# The small world's model: a Qwen3 of under a million parameters, a Hugging Face directory like any other.
#
# The output layer is not tied to the embedding: servers that reload weights in place get tied ones wrong on CPU.


@dataclass(frozen=True)
class ModelSize:
    """The numbers that make up the model."""

    width: int = 128
    layers: int = 2
    heads: int = 4
    feed_forward: int = 384
    longest: int = 512
    """Positions, in tokens: prompt and trace together."""


def fresh_model(
    size: ModelSize, tokenizer: PreTrainedTokenizerFast, seed: int, embedding_scale: float = 0.2
) -> Qwen3ForCausalLM:
    """A model with random weights drawn from ``seed``, but for the number tokens, which start as what they count.

    Without that head start the sums alone take twice the training.
    """
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(model_config(size, tokenizer))
    write_number_features(model, tokenizer, embedding_scale)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def model_config(size: ModelSize, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """The model's configuration, its vocabulary that of ``tokenizer``."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.width // size.heads,
        max_position_embeddings=size.longest,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


PERIODS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 20, 50, 100, 200, 400)
OUTPUT_SCALE = 0.1


def write_number_features(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, scale: float) -> None:
    """Begin the rows of the number tokens, in both vocabulary matrices, with :func:`number_features`."""
    numbers = [tokenizer.convert_tokens_to_ids(str(n)) for n in NUMBERS]
    features = number_features(torch.tensor(list(NUMBERS)))[:, : model.config.hidden_size]
    with torch.no_grad():
        model.model.embed_tokens.weight[numbers, : features.shape[1]] = scale * features
        model.lm_head.weight[numbers, : features.shape[1]] = OUTPUT_SCALE * features


def number_features(numbers: Tensor) -> Tensor:
    """[N, 33] for [N] numbers: sine and cosine of each period, in which sums are rotations, and the size itself."""
    angles = 2 * math.pi * numbers[:, None] / torch.tensor(PERIODS)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return torch.cat([waves, numbers[:, None] / 100 - 1], dim=1)


# -- muon --------------------------------------------------------------------------------------------------------------
# Muon, which updates a matrix by its momentum with all singular values brought near one.
#
# torch has an optimiser of the same rule, whose products are in bfloat16. On a CPU without instructions for that
# format, such a product takes 25 times as long as one in 32 bits. This one keeps 32 bits, and takes matrices of the
# same shape together.


QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients of X, (X X^T) X and (X X^T)^2 X in one iteration, which raise small singular values fastest."""
ITERATIONS = 5
SMALLEST_NORM = 1e-7
RMS_OF_ADAMW = 0.2
"""The root mean square that AdamW's updates usually have, in learning rates."""


class Muon(Optimizer):
    """Muon with Nesterov momentum and without weight decay; the root mean square of its updates is that of AdamW's.

    Args:
        matrices: the parameters, each of two dimensions.
        learning_rate: of an update with a root mean square of ``RMS_OF_ADAMW``.
        momentum: the weight of the past in the running mean of the gradients.
    """

    def __init__(self, matrices: Iterable[Parameter], learning_rate: float, momentum: float) -> None:
        super().__init__(matrices, {"lr": learning_rate, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # there is no closure here
        """Update every matrix by its gradient."""
        for group in self.param_groups:
            for matrices in _of_the_same_shape(p for p in group["params"] if p.grad is not None):
                self._update(matrices, group["lr"], group["momentum"])

    def _update(self, matrices: list[Parameter], learning_rate: float, momentum: float) -> None:
        gradients = torch.stack([_wide(p.grad) for p in matrices if p.grad is not None])
        state = self.state[matrices[0]]
        mean = state.setdefault("momentum", torch.zeros_like(gradients)).lerp_(gradients, 1 - momentum)
        updates = orthogonal(gradients.lerp(mean, momentum))
        scale = RMS_OF_ADAMW * max(matrices[0].shape) ** 0.5
        for matrix, update in zip(matrices, updates, strict=True):
            _wide(matrix).add_(update, alpha=-learning_rate * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """[N, rows, columns], rows <= columns: the same singular vectors, with singular values of about 0.7 to 1.2."""
    first, third, fifth = QUINTIC
    x = matrices / torch.linalg.matrix_norm(matrices, keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth), x, beta=first)
    return x


def _of_the_same_shape(parameters: Iterable[Parameter]) -> list[list[Parameter]]:
    """The parameters by shape, where a matrix and its transpose count as one shape."""
    by_shape: dict[tuple[int, ...], list[Parameter]] = defaultdict(list)
    for parameter in parameters:
        by_shape[_wide(parameter).shape].append(parameter)
    return list(by_shape.values())


def _wide(matrix: Tensor) -> Tensor:
    """A view with at least as many columns as rows."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


# -- training ----------------------------------------------------------------------------------------------------------


IGNORED = -100
"""Label of the tokens that the loss passes over."""


@dataclass(frozen=True)
class WarmStartSettings:
    """All numbers of the warm start; the defaults have made the starting model."""

    seed: int = derive_seed(0, "warm_start")
    steps: int = 700
    rows: int = 6
    """Rows a step."""
    row_tokens: int = 256
    """Length of a row, which holds several examples."""
    matrix_learning_rate: float = 1.2e-2
    """The learning rate of the matrices inside the layers, which Muon updates; it learns the sums from half the
    examples.
    """
    learning_rate: float = 5e-3
    """The learning rate of all other weights, which AdamW updates."""
    verdict_weight: float = 4.0
    """Weight in the loss of the tokens low, high and yes: the last thing to be learned, and what all thinking rests on.
    """
    warm_up: int = 20
    """Steps over which the learning rate rises; it then falls to zero along a cosine."""
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    """Largest gradient norm."""
    size: ModelSize = field(default_factory=ModelSize)
    embedding_scale: float = 0.2
    """Of the features with which the rows of number tokens begin. Larger ones hide what stands before a number,
    by which answers are looked up.
    """
    examples: Examples = field(default_factory=EquationExamples)


@dataclass(frozen=True)
class WarmStartReport:
    """The result of the training."""

    parameters: int
    tokens: int
    """Seen, padding left out."""
    seconds: float
    loss: float
    """Mean over the last tenth of the steps, in nats a token."""


def warm_start(
    settings: WarmStartSettings, directory: Path, progress: Callable[[str], None] = lambda _: None
) -> WarmStartReport:
    """Train a fresh model and write it, with its tokenizer, as a Hugging Face directory.

    Args:
        settings: all numbers.
        directory: made if absent; gets weights (float32), configuration, tokenizer and generation configuration.
        progress: called with a line from time to time.
    """
    started = time.monotonic()
    tokenizer = build_tokenizer()
    model = fresh_model(
        settings.size, tokenizer, derive_seed(settings.seed, "world", "weights"), settings.embedding_scale
    )
    losses, tokens = train(model, tokenizer, settings, progress)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    tail = losses[-max(1, len(losses) // 10) :]
    parameters = sum(p.numel() for p in model.parameters())
    return WarmStartReport(parameters, tokens, time.monotonic() - started, sum(tail) / len(tail))


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: WarmStartSettings,
    progress: Callable[[str], None],
) -> tuple[list[float], int]:
    """Run all steps; the loss of each, and the number of tokens seen."""
    optimisers = make_optimisers(model, settings)
    weights = token_weights(tokenizer, settings)
    losses, tokens = [], 0
    model.train()
    for step, batch in enumerate(batches(tokenizer, settings)):
        loss = packed_loss(model, batch, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for optimiser in optimisers:
            update(optimiser, schedule(step, settings))
        losses.append(loss.item())
        tokens += int((batch.examples >= 0).sum())
        if step % 100 == 99 or step + 1 == settings.steps:
            progress(f"warm start: step {step + 1} of {settings.steps}, loss {losses[-1]:.3f}")
    return losses, tokens


def make_optimisers(model: Qwen3ForCausalLM, settings: WarmStartSettings) -> list[Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the rest."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    taken = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in taken]
    muon = Muon(matrices, settings.matrix_learning_rate, momentum=0.9)
    adamw = torch.optim.AdamW(
        rest, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )
    return [muon, adamw]


def update(optimiser: Optimizer, share: float) -> None:
    """One step at ``share`` of the optimiser's own learning rate."""
    for group in optimiser.param_groups:
        group["lr"] = share * group.setdefault("highest_lr", group["lr"])
    optimiser.step()
    optimiser.zero_grad()


def schedule(step: int, settings: WarmStartSettings) -> float:
    """The learning rate of a step as a share of the highest."""
    if step < settings.warm_up:
        return (step + 1) / settings.warm_up
    done = torch.tensor((step - settings.warm_up) / max(1, settings.steps - settings.warm_up))
    return float(0.5 + 0.5 * torch.cos(torch.pi * done))


def token_weights(tokenizer: PreTrainedTokenizerFast, settings: WarmStartSettings) -> Tensor:
    """[vocabulary] weight of each label in the loss."""
    weights = torch.ones(len(tokenizer))
    for verdict in VERDICTS:
        weights[tokenizer.encode(f" {verdict}", add_special_tokens=False)] = settings.verdict_weight
    return weights


@dataclass(frozen=True)
class PackedBatch:
    """Examples laid end to end in rows, all [rows, row_tokens]."""

    inputs: Tensor
    """Token ids."""
    labels: Tensor
    """The same ids where the loss counts them, else ``IGNORED``; the first token of an example is never counted."""
    examples: Tensor
    """Which example of its row a token belongs to; -1 is padding."""


def packed_loss(model: Qwen3ForCausalLM, batch: PackedBatch, weights: Tensor) -> Tensor:
    """Weighted mean negative log-likelihood of the labelled tokens, each example attending to itself only.

    Args:
        model: computed in 32 bits, as CPUs without instructions for bfloat16 are many times slower with that.
        batch: what to learn.
        weights: [vocabulary] from :func:`token_weights`.
    """
    length = batch.inputs.shape[1]
    same = batch.examples[:, :, None] == batch.examples[:, None, :]
    mask = (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]
    targets = batch.labels[:, 1:]
    counted = targets != IGNORED
    hidden = model.model(input_ids=batch.inputs, attention_mask=mask, use_cache=False).last_hidden_state
    return cross_entropy(model.lm_head(hidden[:, :-1][counted]), targets[counted], weight=weights)


def batches(tokenizer: PreTrainedTokenizerFast, settings: WarmStartSettings) -> Iterator[PackedBatch]:
    """``settings.steps`` batches of fresh examples."""
    rng = random.Random(derive_seed(settings.seed, "world", "examples"))
    waiting: list[TokenisedExample] = []
    for _ in range(settings.steps):
        rows: list[list[TokenisedExample]] = [[] for _ in range(settings.rows)]
        while True:
            new = waiting.pop() if waiting else tokenise(settings.examples(rng), tokenizer)
            if not place(new, rows, settings.row_tokens):
                waiting.append(new)  # opens the next batch, so that long examples are not passed over
                break
        yield pack(rows, settings.row_tokens, int(tokenizer.pad_token_id))


@dataclass(frozen=True)
class TokenisedExample:
    ids: list[int]
    labels: list[int]


def place(example: TokenisedExample, rows: list[list[TokenisedExample]], row_tokens: int) -> bool:
    """Put ``example`` into the first row with room for it; False when there is none."""
    for row in rows:
        if sum(len(e.ids) for e in row) + len(example.ids) <= row_tokens:
            row.append(example)
            return True
    return False


def pack(rows: list[list[TokenisedExample]], row_tokens: int, padding: int) -> PackedBatch:
    """Lay the examples of each row end to end."""

    def filled(parts: list[list[list[int]]], value: int) -> Tensor:
        flat = [[x for part in row for x in part] for row in parts]
        return torch.tensor([row + [value] * (row_tokens - len(row)) for row in flat])

    return PackedBatch(
        inputs=filled([[e.ids for e in row] for row in rows], padding),
        labels=filled([[e.labels for e in row] for row in rows], IGNORED),
        examples=filled([[[i] * len(e.ids) for i, e in enumerate(row)] for row in rows], -1),
    )


def tokenise(example: Example, tokenizer: PreTrainedTokenizerFast) -> TokenisedExample:
    """One example after its prompt; the prompt and the forced text are not labelled."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": example.problem}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    labels = [IGNORED] * len(ids)
    for span in example.spans:
        piece = tokenizer.encode(span.text, add_special_tokens=False)
        ids += piece
        labels += piece if span.trained else [IGNORED] * len(piece)
    return TokenisedExample([*ids, int(tokenizer.eos_token_id)], [*labels, int(tokenizer.eos_token_id)])


if __name__ == "__main__":
    print(warm_start(WarmStartSettings(), Path(sys.argv[1]), print))
