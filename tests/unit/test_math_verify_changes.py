"""Each change of math-verify works and is still needed, and the patch with them applies to what is installed."""

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from antlr4.atn.PredictionMode import PredictionMode
from basics import ROOT
from commands import python
from latex2sympy2_extended import latex2sympy2
from math_verify import grader

from mrt_hpc.domains.math import equivalence, math_verify_changes

ADAPTER = "mrt_hpc/domains/math/math_verify_changes.py"
PATCH = ROOT / "docs" / "math-verify.patch"
HALF = (r"\frac{1}{2^{101}}", r"\frac{2^{100}+1}{2^{101}}")


def is_right(pair: tuple[str, str]) -> bool:
    return equivalence.judge(*pair).correct


def simplifies(patch: pytest.MonkeyPatch) -> bool:
    """Whether two different expressions are simplified, after their values have decided."""
    calls: list[object] = []
    patch.setattr(grader, "simplify", lambda difference: calls.append(difference) or difference)
    assert not is_right((r"\sin x + 1", r"\cos x + 3"))
    return bool(calls)


def predictions(patch: pytest.MonkeyPatch) -> list[str]:
    """ANTLR's modes, in the order of their use, for an equation that needs the second one."""
    modes: list[str] = []
    parse = latex2sympy2.PSParser.math

    def record(parser: object) -> object:
        modes.append(PredictionMode(parser._interp.predictionMode).name)  # type: ignore[attr-defined]
        return parse(parser)

    patch.setattr(latex2sympy2.PSParser, "math", record)
    latex2sympy2.latex2sympy("x^2+y^2=1")
    return modes


PROBES = {
    ("sympy_numeric_eq",): (lambda _: is_right(HALF), False, True),
    ("sympy_compare_symbols",): (lambda _: is_right(("r_1", "R_1")), False, True),
    ("sympy_symbolic_eq",): (simplifies, False, True),
    ("parse", "create_parser"): (predictions, ["SLL", "LL"], ["LL"]),
}


@pytest.mark.parametrize("names", PROBES, ids=" ".join)
def test_each_change_works_and_is_needed(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    observe, changed, stock = PROBES[names]
    with monkeypatch.context() as patch:
        assert observe(patch) == changed, f"the change of {' and '.join(names)} in {ADAPTER} does nothing any more"
    for name in names:
        monkeypatch.setattr(math_verify_changes.OWNERS[name], name, math_verify_changes.STOCK[name])
    equivalence._parse_gold.cache_clear()
    assert observe(monkeypatch) == stock, (
        f"math-verify {version('math-verify')} alone does what {ADAPTER} changes in {' and '.join(names)}: take the "
        "change out"
    )


VERDICTS = f"""
from math_verify import parse, verify
read = lambda text: parse("\\\\boxed{{" + text + "}}", parsing_timeout=None)
for answer, gold in ({HALF!r}, {HALF[::-1]!r}, {HALF[:1] * 2!r}, (r"\\sqrt{{3+2\\sqrt{{2}}}}", r"1+\\sqrt{{2}}")):
    print(verify(read(gold), read(answer), timeout_seconds=None))
"""


def test_the_patch_of_math_verify_applies_and_gives_the_right_verdicts(tmp_path: Path) -> None:
    if shutil.which("patch") is None:
        pytest.skip("the command patch is not installed")
    for module in (latex2sympy2, grader):
        package = Path(str(module.__file__)).parent
        shutil.copytree(package, tmp_path / package.name)
    command = ["patch", "--fuzz=0", "-p1", "-d", str(tmp_path), "-i", str(PATCH)]
    applied = subprocess.run(command, capture_output=True, text=True, check=False)
    assert applied.returncode == 0, f"{PATCH} does not fit the installed math-verify: {applied.stdout}{applied.stderr}"
    verdicts = [python("-c", VERDICTS, PYTHONPATH=path).stdout.split() for path in ("", str(tmp_path))]
    assert verdicts == [["True", "True", "True", "True"], ["False", "False", "True", "True"]]
