"""Changes private functions of math-verify. ``docs/math-verify.patch`` makes two changes that suit every user: the two
stages of the parser, and exact numbers compared by their digits.

The parser first runs in the fast one of ANTLR's two modes (SLL), which gives the same tree or a syntax error.

Two expressions are compared by their values (``equal_values``), and two symbols by their names with their case; sympy
simplifies the difference only where there are too few values, which takes 10 to 100 ms.
"""

from typing import Any

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2
from math_verify import grader

from mrt_hpc.domains.math.equal_values import expressions_agree, is_number, numbers_equal
from mrt_hpc.domains.math.words import is_word

_Parser: Any = latex2sympy2._Latex2Sympy
OWNERS: dict[str, Any] = {
    "parse": _Parser,
    "create_parser": _Parser,
    "sympy_numeric_eq": grader,
    "sympy_symbolic_eq": grader,
    "sympy_compare_symbols": grader,
}
"""What is changed, and where it is looked up."""
STOCK = {name: getattr(owner, name) for name, owner in OWNERS.items()}


def install() -> None:
    """Replace the functions of math-verify, in this process."""
    for name, changed in zip(OWNERS, (_parse, _create, _numeric_eq, _symbolic_eq, _same_symbols), strict=True):
        setattr(OWNERS[name], name, changed)


def _parse(self: Any, latex: str) -> Any:
    self.prediction_mode = PredictionMode.SLL
    try:
        return STOCK["parse"](self, latex)
    except Exception:  # of which kind does not matter: the second stage decides
        self.prediction_mode = PredictionMode.LL
        return STOCK["parse"](self, latex)


def _create(self: Any, latex: str) -> Any:
    parser = STOCK["create_parser"](self, latex)
    parser._interp.predictionMode = self.prediction_mode
    return parser


def _numeric_eq(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Of matrices math-verify compares the elements, which come here one by one."""
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return bool(STOCK["sympy_numeric_eq"](a, b, float_rounding, numeric_precision))
    if is_number(a) and is_number(b):
        whole = [grader.get_pct_val(value, value) for value in (a, b)]  # 9 and 9 % are equal to math-verify
        return numbers_equal(*whole) if all(value.is_Integer for value in whole) else numbers_equal(a, b)
    agree = expressions_agree(a, b)
    return bool(STOCK["sympy_symbolic_eq"](a, b)) if agree is None else agree


def _symbolic_eq(a: Any, b: Any) -> bool:
    """Pairs that are not two expressions; the numeric comparison has decided those."""
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        return False
    return bool(STOCK["sympy_symbolic_eq"](a, b))


def _same_symbols(gold: Any, other: Any) -> bool:
    """One side is a symbol; the case of a word does not count."""
    names = [_letters(gold), _letters(other)]
    return names[0] == names[1] or (all(map(is_word, names)) and names[0].lower() == names[1].lower())


def _letters(side: Any) -> str:
    """Or the letters of a product as written."""
    parts = side.args if isinstance(side, sympy.Mul) else (side,)
    if not all(part == sympy.E or part.is_Symbol for part in parts):
        return str(side)
    return "".join("e" if part == sympy.E else part.name for part in parts)
