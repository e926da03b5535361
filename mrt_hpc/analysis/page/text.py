"""Texts of any origin, made fit for a page: every character can be seen, and none has an effect of its own."""

from __future__ import annotations

import json
import re
from typing import Any

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
UNSEEN = re.compile(
    "[\x80-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that change the order of others or cannot be seen: control characters, and those that Unicode calls
default ignorable. The variation selectors U+FE00 to U+FE0F stay, as they give many usual signs their colour.
"""
SURROGATE = re.compile("[\ud800-\udfff]")
IN_SCRIPTS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""The characters with which a text could end the element that holds it, or a line of a script."""


def visible(text: str) -> str:
    """Return a text in which control characters have pictures, unseen ones their numbers, and lone surrogates are
    U+FFFD; line breaks and tabs stay.
    """
    text = SURROGATE.sub("\ufffd", text.replace("\r\n", "\n"))
    text = CONTROL.sub(lambda found: "\u2421" if found[0] == "\x7f" else chr(0x2400 + ord(found[0])), text)
    return UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def script_json(value: Any) -> str:
    """Return JSON that may stand in a script element, whatever its texts contain."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda found: IN_SCRIPTS[found[0]], text)
