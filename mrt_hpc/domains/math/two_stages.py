"""math-verify's LaTeX parser, first in the fast one of ANTLR's two modes.

Most of a verdict's time is ANTLR's full prediction (LL). Its simpler one (SLL) either gives the same tree or reports a
syntax error (documentation of ``PredictionMode``), so that the full one is needed only where the simple one fails.
"""

from __future__ import annotations

from typing import Any

from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2

_Parser: Any = latex2sympy2._Latex2Sympy
_parse_whole, _create_parser = _Parser.parse, _Parser.create_parser


def install() -> None:
    """Have every parse of this process try the simple mode first."""
    _Parser.parse, _Parser.create_parser = _parse, _create


def uninstall() -> None:
    """Take it back."""
    _Parser.parse, _Parser.create_parser = _parse_whole, _create_parser


def _parse(self: Any, latex: str) -> Any:
    self.prediction_mode = PredictionMode.SLL
    try:
        return _parse_whole(self, latex)
    except Exception:  # of which kind does not matter: the second stage decides
        self.prediction_mode = PredictionMode.LL
        return _parse_whole(self, latex)


def _create(self: Any, latex: str) -> Any:
    parser = _create_parser(self, latex)
    parser._interp.predictionMode = self.prediction_mode
    return parser
