"""Some forty mistakes over all commands: each is told in words of the package, with a next step that can be typed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import typed
from synthetic_run import Shape, SyntheticRun
from typed_advice import Scene, Situation, Theatre, nothing
from typed_situations import NO_DATA

from mrt_hpc.cli.main import main
from mrt_hpc.run.layout import RunLayout

FILES = {
    "n.yaml": "name: x\n",
    "empty.yaml": "",
    "list.yaml": "- 1\n",
    "open.yaml": "training: {\n",
    "binary.yaml": "\x00\x01",
    "bad field.yaml": "extends: quickstart\ntraning: {}\n",
    "loop.yaml": "extends: loop.yaml\n",
    "data.jsonl": '{"question": "1+1"}\n',
    "good.jsonl": '{"problem": "1+1", "answer": "2"}\n',
    "semicolons.csv": "Nr;Aufgabe;Loesung\n1;2;3\n",
    "odd.yaml": "type: slurm\nname: odd\npartitions: {cpu: a}\nsbatch: {time: 3}\n",
    "raises.py": "def judged(answer, gold):\n    assert answer != 'foo'\n    return answer == gold\n",
    "raises.yaml": "extends: quickstart\ndata: {type: small_world, split: train, verifier: {type: 'raises:judged'}}\n",
}
WRONG = {
    "plan nothere.yaml": "a name that mrt-hpc recipes list shows",
    "plan folder": "not a run directory",
    "plan site.yaml": "this is a site profile, and no recipe",
    "plan suite.yaml": "this is a suite, and no recipe",
    "plan empty.yaml": "holds no fields",
    "plan list.yaml": "holds no fields",
    "plan open.yaml": "not YAML",
    "plan binary.yaml": "YAML",
    "plan 'bad field.yaml'": "training is the nearest",
    "plan loop.yaml": "circle",
    "plan quikstart": "quickstart is the nearest",
    "plan quickstart --set training.learning_rat=1": "learning_rate is the nearest",
    "plan quickstart --set x": "not an override",
    "plan quickstart --site nowhere": "there is no such site profile",
    "plan quickstart --site odd.yaml": "sbatch.time: wrong value",
    "plan runs/rum": "runs/c d is the nearest",
    "submit quickstart --run n.yaml": "no directory",
    "submit quickstart --set data.problems=100000": "100000",
    "status runs": "one of runs/c d",
    "status nowhere": "not a run directory",
    "explain 'runs/c d' segment-000.traner": "segment-000.trainer is the nearest",
    "explain 'runs/c d' segment-000.inference[9]": "no such task",
    "logs 'runs/c d' trainer": "no such log",
    "traces 'runs/c d' --iteration 77": "77",
    "traces 'runs/c d' --problem none": "none",
    "cost runs": "one of runs/c d",
    "compare 'runs/c d'@9": "no such weights version",
    "compare 'runs/c d' --benchmark none": "none",
    "compare nowhere": "not a run directory",
    "analyze regret 'runs/c d' --benchmark none": "none",
    "eval 'runs/c d' --suite nowhere": "there is no such suite",
    "report nowhere": "not a run directory",
    "report 'runs/c d' --page /proc/x.html": "/proc/x.html",
    "fork 'runs/c d' --at 99": "99",
    "cancel nowhere": "not a run directory",
    "sync 'runs/c d'": "trained without W&B",
    "fields my_method": "no such field",
    "recipes copy quikstart": "quickstart is the nearest",
    "data check nowhere.jsonl": "nowhere.jsonl",
    "data prepare data.jsonl out.jsonl": "answer",
    "data prepare semicolons.csv out.jsonl": "--delimiter",
    "data fetch nothing": "mrt-hpc data fetch",
    "judge foo 3 --recipe nothere": "there is no such recipe",
}


MORE = {
    "submit quickstart --sweep seed": "no sweep",
    "submit quickstart --sweep recipe=quickstart,sft_suffix": "no sweep",
    "submit 'runs/c d' --run elsewhere": "a run is continued in its own directory",
    "submit 'runs/c d' 'runs/c d'": "one run is continued at a time",
    "submit 'runs/c d' --set schedule.iterations=3": "4 iterations are done already",
    "logs nowhere": "not a run directory",
    "traces nowhere": "not a run directory",
    "cost nowhere": "not a run directory",
    "clean nowhere": "not a run directory",
    "regrade nowhere --site local": "not a run directory",
    "sync nowhere": "not a run directory",
    "status 'runs/c d' --watch": "needs a terminal",
    "doctor --site nowhere": "there is no such site profile",
    "doctor --recipe quikstart": "quickstart is the nearest",
    "init a/b": "a/b",
    "container check nothere.sif": " not ",
    "model fetch nothing": "nothing",
    "check no_module:Class --run 'runs/c d'": "no_module",
    "fork nowhere --at last": "not a run directory",
    "eval nowhere --suite small_world": "nowhere",
    "judge 3 3 --recipe empty.yaml": "holds no fields",
}


def mistaken(scene: Scene) -> None:
    for name, text in FILES.items():
        scene.write(name, text)
    (scene.here / "folder").mkdir()


def mended(scene: Scene) -> None:
    """What the user edits, where a file is wrong."""
    for name in FILES:
        if name.endswith(".yaml"):
            scene.write(name, "extends: quickstart\n")
    scene.write("odd.yaml", "type: slurm\nname: odd\npartitions: {cpu: a}\n")


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with pytest.MonkeyPatch.context() as patch:
        yield Theatre(tmp_path_factory.mktemp("mistakes"), patch)


@pytest.mark.parametrize("words", [*WRONG, *MORE])
def test_a_mistake_is_told_and_what_is_next_is_taken_when_it_is_typed(theatre: Theatre, words: str) -> None:
    edited = mended if any(name in words for name in FILES) else nothing
    outcome = theatre.tried(Situation(words, mistaken, 2, edited, {"SOURCE": "good.jsonl"}, NO_DATA))
    assert {**WRONG, **MORE}[words] in outcome.printed
    assert "next:" in outcome.printed
    assert not re.search(r"Traceback|\.tmp-|\[key\]", outcome.printed)
    assert not outcome.faults, "\n".join([outcome.printed, *outcome.faults])


def test_mistakes_are_tried_with_each_command() -> None:
    tried = {words.split()[0] for words in (*WRONG, *MORE)}
    assert set(main.commands) - tried == {"resume", "runs"}, "another name of submit, and a list of any folder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    SyntheticRun(tmp_path / "runs" / "c d", Shape(4, 2, problems=4, paragraphs=1)).write()
    return tmp_path


def test_an_answer_for_which_a_verifier_raises_an_error_is_wrong_and_not_the_gold_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    said = typed("judge", "foo", "3", "--recipe", "raises.yaml").output
    assert "gold answer with itself" not in said
    assert "verdict:  wrong" in said and "AssertionError" in said
    assert "gold answer with itself" in typed("judge", "3", "foo", "--recipe", "raises.yaml", exits=2).stderr


def test_a_copy_of_a_run_is_named_as_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shutil.copytree(folder / "runs" / "c d", folder / "copy")
    assert "copies of one run" in typed("compare", "runs/c d", "copy").output


def test_a_role_is_explained_as_its_logs_are_shown(folder: Path) -> None:
    run = RunLayout(folder / "runs" / "c d")
    assert "segment-000.trainer" in typed("explain", run.root, "trainer").output
