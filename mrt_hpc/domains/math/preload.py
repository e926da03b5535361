"""Imported by the fork server alone: math-verify builds its tables once, for every worker forked afterwards. The parser
takes three times as long for the first hundred texts. The answers below have the forms of benchmarks.
"""

import logging

from mrt_hpc.domains.math.equivalence import judge

FORMS = (
    "7",
    "-12.5",
    "1,234",
    "\\frac{1}{2}",
    "-\\frac{22}{7}",
    "3\\frac{1}{4}",
    "0.\\overline{36}",
    "50\\%",
    "90^\\circ",
    "12\\text{ cm}",
    "\\sqrt{2}",
    "5\\sqrt{3}+1",
    "\\frac{1+\\sqrt{5}}{2}",
    "\\sqrt[3]{9}",
    "2^{10}-1",
    "10^{-3}",
    "\\frac{3\\pi}{4}",
    "2+3i",
    "\\{1, 2, 3\\}",
    "1, 2, 3",
    "(3, -\\frac{1}{2})",
    "(1, 2, 3)",
    "[0, 1)\\cup(2, \\infty)",
    "(-\\infty, 5]",
    "x^2+3x-1",
    "\\frac{x+1}{x-1}",
    "(x-1)(x+2)^2",
    "x = \\frac{3}{4}",
    "y = 2x + 3",
    "x \\le 5",
    "1 < x < 3",
    "a_n = 2n + 1",
    "\\begin{pmatrix} 1 & -2 \\\\ 3 & 4 \\end{pmatrix}",
    "\\frac{a^2 b}{c_1}",
    "\\sin x + \\cos(2x)",
    "\\tan\\theta",
    "\\log_2 5",
    "\\ln(3) + e^{-2t}",
    "|x - 3|",
    "n!",
    "\\binom{10}{3}",
    "4 \\times 10^{5}",
    "\\left(\\frac{1}{3}\\right)^{n}",
    "\\left[\\frac{1}{2}, 1\\right]",
    "3 + 4 \\cdot 5 - 6/7",
    "\\dfrac{m(m+1)}{2}",
    "\\alpha\\beta^{2} + \\gamma",
    "\\text{even}",
    "x \\in (1, 4)",
    "\\pm 2",
    "\\frac{\\sqrt{6}-\\sqrt{2}}{4}",
    "2\\left(x+y\\right) z",
)

logging.getLogger("mrt_hpc").debug("the grader reads %d forms of answers before the first one", len(FORMS))
for _answer, _gold in zip(FORMS, (*FORMS[1:], FORMS[0]), strict=True):
    judge(_answer, _gold)
    judge(f"{_answer} + 0", _answer)
