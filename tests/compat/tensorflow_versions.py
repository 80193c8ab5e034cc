"""The tests of the TensorFlow front-end on several TensorFlows: `make tf-versions`.

Each version has an environment of its own under build/tf-versions, made when it is first needed.
All of them import the aiacc of this checkout: one library of ops, built once, for every version.

    python -m tests.compat.tensorflow_versions           # all; writes RESULTS
    python -m tests.compat.tensorflow_versions 2.16.2    # these; RESULTS keeps the others
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.ranks import ROOT, rank_environment

RESULTS = Path(__file__).with_suffix(".json")
ENVIRONMENTS = ROOT / "build" / "tf-versions"
TESTS = ("tests/unit/tensorflow", "tests/parallel/tensorflow")
#: What is installed for each version: Keras as it was when that TensorFlow appeared.
VERSIONS = {
    "2.16.2": ("keras==3.4.1",),
    "2.18.1": ("keras==3.8.0",),
    "2.20.0": ("keras==3.11.3",),
    "2.21.0": ("keras==3.15.1",),
}
#: tf_keras for each; without what it depends on, that is tensorflow, not tensorflow-cpu.
TF_KERAS = {"2.16.2": "2.16.0", "2.18.1": "2.18.0", "2.20.0": "2.20.1", "2.21.0": "2.21.0"}
TOOLS = ("pytest==8.4.2", "pytest-timeout==2.4.0", "scikit-learn==1.7.2", "mpich==5.0.2")
#: Four tests need torch, which is not installed there. They run with the newest in `make test`.
WITHOUT = {
    "test_with_torch_in_one_process": "needs torch",
    "test_training_with_torch_in_turn": "needs torch",
    "test_the_recipe_finds_what_suits_the_data_of_all_ranks": "needs torch",
    "test_keras_on_another_backend_is_refused": "needs torch",
}


def environment_of(version: str) -> Path:
    """The interpreter with a TensorFlow, which is installed if it is not there yet."""
    folder = ENVIRONMENTS / version
    python = folder / "bin" / "python"
    wanted = [f"tensorflow-cpu=={version}", *VERSIONS[version], *TOOLS]
    alone = [f"tf_keras=={TF_KERAS[version]}"]
    stamp = folder / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted + alone:
        sys.stdout.write(f"installing {' '.join(wanted + alone)}\n")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted], check=True)
        subprocess.run([*pip, "--no-deps", *alone], check=True)
        # The aiacc of this checkout, also for programs that run elsewhere.
        packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        (packages / "aiacc.pth").write_text(f"{ROOT}\n")
        stamp.write_text(json.dumps(wanted + alone))
    return python


def versions_in(python: Path) -> dict[str, str]:
    """What is really there."""
    program = (
        "import json, sys; from importlib.metadata import version\n"
        "names = ('tensorflow-cpu', 'keras', 'numpy', 'protobuf')\n"
        "found = {name: version(name) for name in names}\n"
        "print(json.dumps({'python': sys.version.split()[0], **found}))"
    )
    done = subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, check=True, cwd="/"
    )
    return json.loads(done.stdout)


def run(version: str) -> dict[str, Any]:
    """Run the tests on one version, and tell what became of them."""
    python = environment_of(version)
    with tempfile.TemporaryDirectory(prefix="tf-versions-") as folder:
        report = Path(folder) / "report.xml"
        # A warning of an old version's own is no failure of ours.
        options = ["-W", "default", "-p", "no:cacheprovider", f"--junitxml={report}"]
        left_out = " and ".join(f"not {name}" for name in WITHOUT)
        subprocess.run(
            [str(python), "-m", "pytest", *options, "-k", left_out, *TESTS],
            cwd=ROOT,
            env=rank_environment({"TF_CPP_MIN_LOG_LEVEL": "2"}),
            check=False,
        )
        summary = summary_of(report.read_text())
    return {"versions": versions_in(python), **summary}


def summary_of(report: str) -> dict[str, Any]:
    """What is written to RESULTS, from a report of pytest."""
    passed, skipped, failed = 0, {}, {}
    for case in ET.fromstring(report).iter("testcase"):
        problems = [child for child in case if child.tag in ("failure", "error", "skipped")]
        if not problems:
            passed += 1
            continue
        name = f"{case.get('classname')}.{case.get('name')}"
        why = (problems[0].get("message") or problems[0].tag).splitlines()[0]
        (skipped if problems[0].tag == "skipped" else failed)[name] = why
    return {"passed": passed, "skipped": skipped, "failed": failed}


def table(results: dict[str, Any]) -> str:
    """The results for people: one line for each version."""
    lines = [f"{'TensorFlow':<11}{'Keras':<8}{'numpy':<8}{'protobuf':<10}passed skipped  failed"]
    for version, result in results.items():
        found = result["versions"]
        lines.append(
            f"{version:<11}{found['keras']:<8}{found['numpy']:<8}{found['protobuf']:<10}"
            f"{result['passed']:>6} {len(result['skipped']):>7}  {len(result['failed']):>6}"
        )
    return "\n".join(lines) + "\n"


def main(versions: Sequence[str]) -> int:
    """See the module; 1 if a test failed."""
    unknown = sorted(set(versions) - set(VERSIONS))
    if unknown:
        sys.stderr.write(f"{', '.join(unknown)} (expected one of {', '.join(VERSIONS)})\n")
        return 2
    before = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else {}
    now = {version: run(version) for version in versions or VERSIONS}
    found = {**before, **now}
    results = {version: found[version] for version in VERSIONS if version in found}
    written = {"not run": WITHOUT, "results": results}
    RESULTS.write_text(json.dumps(written, indent=1) + "\n")
    sys.stdout.write(table(results))
    return int(any(result["failed"] for result in now.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
