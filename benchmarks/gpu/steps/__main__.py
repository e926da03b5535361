"""One step in a process of its own: ``python -m steps NAME FILE FOLDER SECONDS [--tiny]``."""

import argparse
import importlib
import traceback
from pathlib import Path

from mrt_hpc.run.process import die_with_parent
from steps.record import NotHere, Record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    die_with_parent()
    record = Record(given.file, given.folder, given.tiny, given.seconds)
    record.write("running")
    try:
        importlib.import_module(f"steps.{given.name}").run(record)
    except NotHere as lack:
        record.write("skipped", str(lack))
    except Exception:
        record.write("failed", traceback.format_exc())
    else:
        failed = [name for name, part in record.parts.items() if "error" in part]
        record.write("failed" if failed else "done", f"errors in: {', '.join(failed)}" if failed else "")


if __name__ == "__main__":
    main()
