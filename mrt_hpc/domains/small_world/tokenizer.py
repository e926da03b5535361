r"""The small world's tokenizer: one token a word or number of its traces, bytes for everything else.

Any text survives ``decode(encode(text))``: a stretch that is no known word falls apart into its bytes. Every stretch (a
number, ``\n\n``, ``\boxed{``) is a token of its own, so an episode always starts at a token boundary. It is saved as a
Hugging Face directory like any other.
"""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mrt_hpc.domains.small_world.equations import END_THINK, PARAGRAPH_END, THINK

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
