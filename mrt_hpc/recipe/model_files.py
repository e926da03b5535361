"""Checks, from the files of a model directory alone, whether the recipe can serve and train the model. A login node
reads file names, JSON and headers of safetensors files before anything is queued, without torch, transformers or vLLM.
"""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.chat_template import check_stored, json_of

if TYPE_CHECKING:
    from mrt_hpc.recipe.sections import Prompt

NEEDED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""All files that serving and training read of a model."""
TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
"""A tokenizer is any of these sets."""
INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
LONGEST_HEADER = 100_000_000
"""Bytes that the safetensors format allows."""
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16,
    "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of an element; all formats that safetensors knows."""
Count = Annotated[int, Meta(ge=0)]
LENGTH_FIELDS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_seq_length", "seq_len",
)  # fmt: skip
"""Names of the context length in config.json; vLLM takes the least."""
LARGEST_NUMBER = 10**12
"""No length or factor of a model is larger."""
MOST_HEADS = 2**16
"""No model has more attention heads."""
STRETCHING_ROPE = ("linear", "dynamic", "ntk")
"""RoPE scalings whose factor vLLM multiplies the context length by."""
GENERATORS = ("ForCausalLM", "LMHeadModel")
"""Endings of the names of models that continue a text, in transformers and vLLM. The first job and the trainer see
whether both know one.
"""


@dataclass(frozen=True)
class ModelFiles:
    """One model directory, and the recipe's field that names it."""

    directory: Path
    field: str
    prompts: "tuple[Prompt, ...]" = ()
    takes_variables: bool = True
    """Whether its template must read prompt.template_variables."""

    def check(self, longest: int, trained: bool = True) -> None:
        """``longest`` is the recipe's longest sequence, in tokens; ``trained`` means that the trainer loads the model
        too.
        """
        config = self._json("config.json", "config.json, a tokenizer and *.safetensors")
        self._check_tokenizer()
        for prompt in self.prompts:
            check_stored(self.directory, prompt, self.field, variables=self.takes_variables)
        self._check_weights(trained)
        self._check_architecture(config)
        self._check_length(config, longest)
        named_stops(self.directory, self.field)

    def check_division(self, tensor_parallel: int) -> None:
        """Refuse a model that vLLM cannot divide over so many GPUs. Each gets the same number of attention heads; where
        there are fewer key-value heads than GPUs, several GPUs hold each.
        """
        if tensor_parallel == 1:
            return
        heads, shared = attention_heads(self._json("config.json", "config.json"))
        widths = [width for width in range(1, heads + 1) if divides(width, heads, shared)]
        if heads and tensor_parallel not in widths:
            raise UserError(
                f"vLLM cannot divide the model's {heads} attention heads ({shared} of keys and values) over these GPUs",
                value=f"{tensor_parallel} GPUs",
                where=f"{self.field}, serving.tensor_parallel",
                expected=f"one of {', '.join(map(str, widths))}",
                advice=Advice(
                    "set serving.tensor_parallel to {most}, and resources.inference.gpus and "
                    "resources.evaluation.gpus to multiples of it",
                    most=max(w for w in widths if w <= tensor_parallel),
                ),
            )

    def check_sharing(self, sequence_parallel: int) -> None:
        """Refuse a model whose attention heads do not divide over the ranks that share a sequence."""
        heads, _ = attention_heads(self._json("config.json", "config.json"))
        if heads % sequence_parallel:
            raise uneven_heads(heads, sequence_parallel, self.field)

    def _check_tokenizer(self) -> None:
        if not any(all(self._has(name) for name in names) for names in TOKENIZERS):
            raise self._lacks("a tokenizer", "tokenizer.json, or tokenizer.model, or vocab.json and merges.txt")
        self._json("tokenizer_config.json", "a tokenizer_config.json, which names the tokens that end a sequence")

    def _check_weights(self, trained: bool) -> None:
        files = {path.name for path in self.directory.glob("*.safetensors")}
        if not files:
            raise self._lacks("safetensors files", "*.safetensors")
        if self._has(INDEX):
            places = self._json(INDEX, INDEX).get("weight_map")
            named = list(places.values()) if isinstance(places, dict) else []
            if not named or not all(isinstance(name, str) for name in named):
                raise self._lacks(f"weight_map in its {INDEX}", "the name of the file of each tensor")
            if missing := sorted({*named} - files):
                raise self._lacks(f"{len(missing)} of the files that {INDEX} names, as {missing[0]}", "all of them")
        elif trained and SINGLE_FILE not in files:
            raise no_weights(self.directory, SINGLE_FILE, self.field)
        for name in sorted(files):
            check_safetensors(self.directory / name, self.field)

    def _check_architecture(self, config: dict[str, Any]) -> None:
        named = config.get("architectures")
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        if not any(name.endswith(GENERATORS) for name in names):
            raise UserError(
                "the architecture of this model does not continue texts",
                value=named,
                where=f"{self.field}, {self.directory / 'config.json'}, architectures",
                expected=f"a causal language model, whose name ends in {' or '.join(GENERATORS)}",
                advice="take another model, or correct config.json where its name is misspelt",
            )

    def _check_length(self, config: dict[str, Any], longest: int) -> None:
        held = context_length(config)
        if held is not None and longest > held:
            raise UserError(
                f"the recipe asks for sequences of {longest:,} tokens, and the model holds {held:,}",
                where=f"{self.field}, {self.directory / 'config.json'}",
                expected=f"prompt, trace and forced answer within {held:,} tokens together",
                advice="lower sampling.max_prompt_tokens, sampling.max_tokens and prover.max_tokens, or "
                "evaluation.max_tokens and evaluation.prover.max_tokens, or the lengths in the mode of a benchmark",
            )

    def _has(self, name: str) -> bool:
        return (self.directory / name).is_file()

    def _json(self, name: str, expected: str) -> dict[str, Any]:
        if not self._has(name):
            raise self._lacks(name, expected)
        return json_of(self.directory / name, f"{self.field}, {self.directory / name}")

    def _lacks(self, what: str, expected: str) -> UserError:
        there = "" if self._has("config.json") else "no model directory there: "
        return UserError(
            f"{there}it has no {what}" if there else f"the model directory lacks {what}",
            value=str(self.directory),
            where=self.field,
            expected=expected,
            advice=Advice(
                "set {field} to the folder of the whole model; or fetch one from the hub: mrt-hpc model "
                "fetch OWNER/NAME",
                field=self.field,
            ),
        )


def no_weights(directory: Path, missing: str, field: str) -> UserError:
    """The model has neither one file of weights nor an index."""
    return UserError(
        f"the weights of the model are not whole: {missing} is missing",
        value=", ".join(sorted(path.name for path in directory.glob("*.safetensors"))) or "no *.safetensors",
        where=f"{field}, {directory}",
        expected=f"{SINGLE_FILE}, or {INDEX} and all files that it names",
        advice="fetch the model again: mrt-hpc model fetch OWNER/NAME",
    )


class TensorHeader(msgspec.Struct, frozen=True):
    """A tensor in the header of a safetensors file."""

    dtype: str
    """A name of ``BITS``."""
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]
    """Begin and end in bytes, from the end of the header."""


def tensors_of(header: bytes) -> dict[str, TensorHeader]:
    """Tensors in the order of their places. A ValueError where they do not lie end to end, each as large as shape and
    number format say; a name that stands twice leaves a gap.
    """
    try:
        described = msgspec.json.decode(header, type=dict[str, Any])
        described.pop("__metadata__", None)
        tensors = msgspec.convert(described, dict[str, TensorHeader])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    place = 0
    ordered = sorted(tensors.items(), key=lambda tensor: tensor[1].data_offsets)
    for name, tensor in ordered:
        if (bits := BITS.get(tensor.dtype)) is None:
            raise ValueError(f"{name:.80} has the unknown number format {tensor.dtype:.20}")
        begin, end = tensor.data_offsets
        if begin != place or (end - begin) * 8 != prod(tensor.shape) * bits:
            raise ValueError(f"{name:.80} does not fill its place")
        place = end
    return dict(ordered)


def check_safetensors(path: Path, field: str) -> None:
    """Refuse a file whose header does not fit its size or itself."""
    size = path.stat().st_size
    wanted, reason = _size_by_header(path, size)
    if wanted != size:
        raise UserError(
            f"a file of the model's weights is damaged: {reason}",
            value=f"{size:,} bytes",
            where=f"{field}, {path}",
            expected="a safetensors file" if wanted is None else f"{wanted:,} bytes, by its header",
            advice="fetch the model again",
        )


def _size_by_header(path: Path, size: int) -> tuple[int | None, str]:
    """The size by its header (None without one), and the fault if the real size differs."""
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else LONGEST_HEADER + 1
        if length > min(LONGEST_HEADER, size - 8):
            return None, "it does not begin with the header of a safetensors file"
        text = stream.read(length)
    try:
        ends = [tensor.data_offsets[1] for tensor in tensors_of(text).values()]
        return 8 + length + max(ends, default=0), "its size is not what its header says"
    except ValueError as error:
        return None, f"its header cannot be right: {error}"


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    return inner if isinstance(inner := config.get("text_config"), dict) else config


def context_length(config: dict[str, Any]) -> int | None:
    """Tokens of the context as vLLM counts them, if config.json says."""
    text = text_config(config)
    named = [number for name in LENGTH_FIELDS if (number := config_number(text, name)) is not None]
    if not named:
        return None
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
    factor = config_number(rope, "factor") if kind in STRETCHING_ROPE else None
    return int(min(named) * (1 if factor is None else factor))


def attention_heads(config: dict[str, Any]) -> tuple[int, int]:
    """All heads, and those of keys and values; 0 where config.json does not say."""
    text = text_config(config)
    named = (config_number(text, name, MOST_HEADS) for name in ("num_attention_heads", "n_head"))
    heads = int(next((number for number in named if number), 0))
    return heads, int(config_number(text, "num_key_value_heads", MOST_HEADS) or heads)


def config_number(text: dict[str, Any], name: str, largest: float = LARGEST_NUMBER) -> float | None:
    """A number of config.json, if it is there; refuses one that no model can have."""
    value = text.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= largest:
        raise UserError(
            f"config.json of the model: {name} is no number that a model can have",
            value=value if isinstance(value, str | float) else str(value)[:40],
            where=f"config.json, {name}",
            expected=f"a number above 0, and at most {largest:,}",
            advice="fetch the model again, or correct config.json",
        )
    return value


def named_stops(directory: Path, field: str) -> list[int]:
    """The tokens that end a sequence by the generation configuration, if there is one."""
    path, config = directory / "generation_config.json", directory / "config.json"
    if not path.is_file():
        return []
    named = json_of(path, f"{field}, {path}").get("eos_token_id")
    stops = named if isinstance(named, list) else [] if named is None else [named]
    text = text_config(json_of(config, f"{field}, {config}")) if config.is_file() else {}
    vocabulary = config_number(text, "vocab_size") or LARGEST_NUMBER
    if bad := [stop for stop in stops if type(stop) is not int or not 0 <= stop < vocabulary]:
        raise UserError(
            "the generation configuration of the model names a token that ends a sequence and is none",
            value=f"{bad[0]!r:.40}",
            where=f"{field}, {path}, eos_token_id",
            expected=f"the number of a token, from 0 to {vocabulary - 1:.0f}, or a list of such numbers",
            advice="fetch the model again, or correct the file",
        )
    return stops


def divides(tensor_parallel: int, heads: int, shared: int) -> bool:
    """Whether vLLM can divide a model with so many heads (``shared``: of keys and values)."""
    larger, smaller = max(shared, tensor_parallel), min(shared, tensor_parallel)
    return heads % tensor_parallel == 0 and larger % smaller == 0


def uneven_heads(heads: int, sequence_parallel: int, field: str) -> UserError:
    fitting = [n for n in range(1, heads + 1) if heads % n == 0]
    return UserError(
        f"the model's {heads} attention heads do not divide over the ranks that share a sequence",
        value=f"{sequence_parallel} ranks",
        where=f"{field}, training.sequence_parallel",
        expected=f"one of {', '.join(map(str, fitting))}",
        advice=Advice(
            "--set training.sequence_parallel={most}, and resources.trainer.ranks a multiple of it",
            most=max(n for n in fitting if n <= sequence_parallel),
        ),
    )
