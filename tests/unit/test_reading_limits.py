"""What is read of files that others have written has limits: lines, members of archives, logs, events, numbers and
templates of models.
"""

import json
import os
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from basics import TRAINER
from commands import recipe, refusal, typed
from run_of import run_of

from mrt_hpc.datasets.sources import SourceFile, read_rows
from mrt_hpc.recipe import chat_template
from mrt_hpc.recipe.chat_template import LONGEST_TEMPLATE, check_stored
from mrt_hpc.recipe.model_files import ModelFiles
from mrt_hpc.recipe.ownership import LONGEST_LINE
from mrt_hpc.run.archive import GroupArchive
from mrt_hpc.run.event_stream import AT_ONCE, EventStream
from mrt_hpc.run.manifest import MANIFEST, DamagedError
from mrt_hpc.run.problems import read_problems
from mrt_hpc.view import logs

SPARSE = 96 * 2**20
"""Bytes of a file that takes no room."""


@pytest.mark.parametrize("name", ["rows.jsonl.zst", "rows.csv.zst"])
def test_a_line_of_compressed_data(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pa.output_stream(str(path), compression="zstd") as stream:
        stream.write(b"problem,answer\n" if "csv" in name else b'{"problem": "a"}\n')
        for _ in range(LONGEST_LINE // 2**20 + 1):
            stream.write(b"1" * 2**20)
    assert path.stat().st_size < 2**20
    assert f"{LONGEST_LINE:,}" in str(refusal(list, read_rows(SourceFile(name, path))).expected)


def test_a_line_of_a_data_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.touch()
    os.truncate(path, SPARSE)
    assert f"{LONGEST_LINE:,}" in str(refusal(read_problems, path, None).expected)


def test_a_member_of_an_archive(tmp_path: Path) -> None:
    path, size = tmp_path / "groups.zip", 7
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"00000/{MANIFEST}", b"x" * size)
    path.write_bytes(path.read_bytes().replace(struct.pack("<LL", size, size), struct.pack("<LL", size, 2**31)))
    with pytest.raises(DamagedError, match="2,147,483,648 bytes"):
        GroupArchive(path).file(0, MANIFEST)


def test_logs_are_read_from_their_ends(tmp_path: Path) -> None:
    layout = run_of(tmp_path / "run")
    log = layout.logs / f"{TRAINER}.00000.a.rank0.log"
    log.touch()
    os.truncate(log, SPARSE)
    with log.open("a") as stream:
        stream.write("\nthe last line\n")
    shown = typed("logs", layout.root).output
    assert "the last line" in shown and len(shown) <= logs.AT_ONCE + 1000


def test_events_are_read_in_parts(tmp_path: Path) -> None:
    line = json.dumps({"time": 1.0, "kind": "published", "version": 1, "text": "x" * 2**16}) + "\n"
    count = 2 * AT_ONCE // len(line) + 3
    (tmp_path / f"{TRAINER}.00000.0.a.jsonl").write_text(line * count)
    stream = EventStream(tmp_path)
    assert (len(stream.new()), stream.new(), stream.faults) == (count, [], [])
    endless = tmp_path / f"{TRAINER}.00001.0.a.jsonl"
    endless.touch()
    os.truncate(endless, SPARSE)
    stream = EventStream(tmp_path)
    assert len(stream.new()) == count
    assert f"{AT_ONCE:,} bytes or more" in stream.faults[0]


def test_numbers_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 10**12}))
    model = ModelFiles(tmp_path, "model.path")
    assert "num_attention_heads" in refusal(model.check_division, 3).what
    os.truncate(tmp_path / "config.json", 2**33)
    assert "8,589,934,592 bytes" in refusal(model.check_division, 3).what


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(("template", "said"), [
    (LOOPS, "takes more than 1 s"), ("{{ 'a' * 10**10 }}", "takes more than"),
    ("{# #}" * LONGEST_TEMPLATE, "bytes"), (f"{{{{ {'[' * 2000}{']' * 2000} }}}}", "RecursionError"),
], ids=["loops", "memory", "size", "nesting"])  # fmt: skip
def test_a_chat_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, said: str) -> None:
    monkeypatch.setattr(chat_template, "RENDERS_WITHIN_S", 1)
    (tmp_path / chat_template.OWN_FILES[0]).write_text(template)
    assert said in refusal(check_stored, tmp_path, recipe("quickstart").prompt, "model.path").what
