"""Plans which gradients of examples/digits.py travel together, step by step, and compares.

    python examples/plan_digits.py
    python examples/plan_digits.py --ranks 4

Prints every command before it runs it, so that each can be tried by itself, and takes less than two
minutes. The model is small and the ranks share a host: do not expect the plan to be faster here.
See docs/planning.md for what planning gains, and where it does not.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

DIGITS = Path(__file__).with_name("digits.py")
TOOLS = Path(sys.executable).parent
RESULT = re.compile(r"test accuracy ([\d.]+)%  (\d+) images/s")


def run(title: str, command: list[str]) -> str:
    """Run a command that the user could have typed; what it printed."""
    print(f"\n# {title}\n$ {shlex.join(command)}", flush=True)
    program = TOOLS / command[0]
    found = str(program) if program.exists() else command[0]
    ended = subprocess.run([found, *command[1:]], stdout=subprocess.PIPE, text=True, check=False)
    print(ended.stdout, end="", flush=True)
    if ended.returncode:
        sys.exit(f"{shlex.join(command)} ended with status {ended.returncode}")
    return ended.stdout


def main() -> None:
    """Profile, probe, plan, explain, train in three ways, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace, network, plan = (f"{folder}/{name}.json" for name in ("trace", "network", "plan"))
        on_ranks = ["aiaccrun", "-np", str(options.ranks)]
        train = ["python", str(DIGITS), "--epochs", str(options.epochs)]
        run(
            "When is each gradient ready?",
            ["aiacc-plan", "profile", trace, *on_ranks[1:], "python", str(DIGITS), "--epochs", "1"],
        )
        run(
            "What do operations cost between these ranks?",
            [*on_ranks, "aiacc-plan", "probe", "--max-mib", "1", "--output", network],
        )
        run("Which gradients to merge?", ["aiacc-plan", "plan", trace, "--net", network,
                                          "--output", plan])  # fmt: skip
        run("Why?", ["aiacc-plan", "explain", trace, "--net", network])
        without = run("Train without the plan,", [*on_ranks, *train])
        planned = run("and with it.", [*on_ranks, *train, "--plan", plan])
        alone = run("Or let the job do all this by itself.", [*on_ranks, *train, "--plan", "auto"])
    print(
        "\n# All learn the same; sums may be rounded in another order. Images/s do not compare:"
        "\n# each is of one short run, and two runs of the same may differ by more. plan='auto'"
        "\n# compares steps there and back, and says what it has found in a line of its own."
    )
    results = (("no plan", without), ("the plan", planned), ("plan='auto'", alone))
    for title, output in results:
        found = RESULT.search(output)
        if found is None:
            sys.exit(f"no result of training with {title} (expected test accuracy, images/s)")
        print(f"{title:11}: accuracy {found[1]} %, {found[2]} images/s")


if __name__ == "__main__":
    main()
