"""One rank of a job of `bench.job`: python -m bench.worker MODULE:FUNCTION FOLDER."""

import importlib
import json
import os
import sys
from pathlib import Path

#: Where launchers say the rank of a process.
_RANKS = ("AIACC_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def main() -> None:
    """Call the function with the task of the folder, and write what it returns.

    The task says "rank" and "folder" as well: ranks may meet in the folder.
    """
    (module, _, function), folder = sys.argv[1].partition(":"), Path(sys.argv[2])
    rank = next(os.environ[name] for name in _RANKS if name in os.environ)
    task = json.loads((folder / "task.json").read_text())
    task |= {"rank": int(rank), "folder": str(folder)}
    found = getattr(importlib.import_module(module), function)(task)
    fresh = folder / f"rank{rank}.new"
    fresh.write_text(json.dumps(found))
    fresh.rename(folder / f"rank{rank}.json")  # never half a result


if __name__ == "__main__":
    main()
