"""math-verify is as ``math_verify_changes`` expects it, each change is still needed, and the patch for it applies."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from basics import ROOT

ADAPTER = "mrt_hpc/domains/math/math_verify_changes.py"
PATCH = ROOT / "docs" / "math-verify.patch"
PARSER, GRADER = "latex2sympy2_extended.latex2sympy2", "math_verify.grader"
PARAMETERS = {
    (PARSER, "_Latex2Sympy.create_parser"): ["self", "latex_str"],
    (PARSER, "_Latex2Sympy.parse"): ["self", "latex_str"],
    (GRADER, "sympy_numeric_eq"): ["a", "b", "float_rounding", "numeric_precision"],
    (GRADER, "sympy_symbolic_eq"): ["a", "b"],
    (GRADER, "sympy_compare_symbols"): ["gold", "pred"],
    (GRADER, "get_pct_val"): ["expr", "default"],
}
"""What the adapter replaces or calls, by module and name."""
HALF = (r"\frac{1}{2^{101}}", r"\frac{2^{100}+1}{2^{101}}")


def installed(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


def parameters(module: str, name: str) -> list[str] | None:
    """By the source, as another test may have installed the changes in this process."""
    body: list[ast.stmt] = ast.parse(installed(module).read_text()).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part), None)
        body = node.body if isinstance(node, ast.ClassDef) else []
    return [argument.arg for argument in node.args.args] if isinstance(node, ast.FunctionDef) else None


@pytest.mark.parametrize(("module", "name"), PARAMETERS)
def test_the_functions_that_are_changed_are_where_they_were(module: str, name: str) -> None:
    found, expected = parameters(module, name), PARAMETERS[module, name]
    assert found == expected, (
        f"math-verify {version('math-verify')} with latex2sympy2_extended {version('latex2sympy2_extended')} has "
        f"{f'{name} with the parameters {found}' if found else f'no {name}'} in {module}, and {ADAPTER} needs it with "
        f"{expected}: read the new sources, then change {ADAPTER} and {PATCH.relative_to(ROOT)}"
    )


def is_right(pair: tuple[str, str]) -> bool:
    from mrt_hpc.domains.math.equivalence import judge

    return judge(*pair).correct


def simplifies(patch: pytest.MonkeyPatch) -> bool:
    """Whether two different expressions are simplified, after their values have decided."""
    from math_verify import grader

    calls: list[object] = []
    patch.setattr(grader, "simplify", lambda difference: calls.append(difference) or difference)
    assert not is_right((r"\sin x + 1", r"\cos x + 3"))
    return bool(calls)


def predictions(patch: pytest.MonkeyPatch) -> list[str]:
    """ANTLR's modes, in the order of their use, for an equation that needs the second one."""
    from antlr4.atn.PredictionMode import PredictionMode
    from latex2sympy2_extended import latex2sympy2

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
    from mrt_hpc.domains.math import equivalence, math_verify_changes

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


def verdicts_with(path: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", VERDICTS]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout.split()


def test_the_patch_of_math_verify_applies_and_gives_the_right_verdicts(tmp_path: Path) -> None:
    if shutil.which("patch") is None:
        pytest.skip("the command patch is not installed")
    for module in (PARSER, GRADER):
        shutil.copytree(installed(module).parent, tmp_path / module.partition(".")[0])
    applied = subprocess.run(
        ["patch", "--fuzz=0", "-p1", "-d", str(tmp_path), "-i", str(PATCH)], capture_output=True, text=True, check=False
    )
    assert applied.returncode == 0, f"{PATCH} does not fit the installed math-verify: {applied.stdout}{applied.stderr}"
    verdicts = [verdicts_with(path) for path in ("", str(tmp_path))]
    assert verdicts == [["True", "True", "True", "True"], ["False", "False", "True", "True"]]
