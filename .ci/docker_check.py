"""`make docker-check`: executes the Dockerfiles of the cpu and test images without docker.

Every stage gets a system of its own, made by debootstrap, in which its instructions run; then the
health check, the entry point, the demo, and the services of the compose file and the pods of the
MPIJob on virtual hosts. What only docker can tell is not checked: layers, the base images
themselves, the cuda image.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import chroot_root
import containers
import dockerfile
import mpijob
from containers import System

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "docker-check"
#: Image to what must succeed in it, as its user.
CHECKS = {
    "cpu": [
        "aiaccrun -np 2 python /opt/aiacc/examples/digits.py --epochs 3",
        "aiaccrun -np 2 python /opt/aiacc/examples/keras_digits.py --epochs 2 --verbose 2",
        "mpirun -np 2 python /opt/aiacc/examples/digits.py --epochs 3",
    ],
    "test": ["make test-python PYTEST_ARGS='tests/unit/test_splits.py -q'"],
}


def main() -> int:
    """Execute the images that are named; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("images", nargs="*", help=f"default: {' '.join(CHECKS)}")
    options = parser.parse_args()
    given = dict(argument.partition("=")[::2] for argument in options.build_arg)
    unknown = [image for image in options.images if image not in CHECKS]
    if unknown:
        parser.error(f"images {unknown} (expected some of {', '.join(CHECKS)})")
    if os.geteuid() != 0:
        print("docker-check mounts and changes roots: it needs the superuser (expected uid 0)")
        return 2
    for image in options.images or CHECKS:
        try:
            check(image, given)
        except (ValueError, RuntimeError) as error:
            print(f"docker/{image}.Dockerfile: {error}", flush=True)
            return 1
        print(f"docker/{image}.Dockerfile: every stage and check succeeded", flush=True)
    return 0


def check(image: str, given: Mapping[str, str]) -> None:
    """Execute one Dockerfile and what must succeed in its image.

    Raises:
        ValueError: It says something that cannot be executed here.
        RuntimeError: A command failed.
    """
    stages = dockerfile.parse((ROOT / f"docker/{image}.Dockerfile").read_text(), given)
    systems: dict[str, System] = {}
    for stage in dockerfile.needed(stages, stages[-1].name):
        systems[stage.name] = execute(image, stage, systems, given)
    last = systems[stages[-1].name]
    for words in (last.healthcheck, [*last.entrypoint, "--version"]):
        call(last, words)
    for command in CHECKS[image]:
        call(last, ["/bin/sh", "-c", command])
    if image == "cpu":
        containers.check(last, ROOT / "docker/compose.yaml")
        mpijob.check(last, ROOT / "docker/kubernetes/mpijob.yaml")


def execute(
    image: str,
    stage: dockerfile.Stage,
    systems: Mapping[str, System],
    given: Mapping[str, str],
) -> System:
    """Run one stage's instructions; what it leaves."""
    root = WORK / image / stage.name
    print(f"== {image}: stage {stage.name} from {stage.base}", flush=True)
    if stage.base in systems:
        system = replace(systems[stage.base], root=root, arguments={})
        base = systems[stage.base].root
    else:
        suite = chroot_root.suite_of(stage.base)
        if not suite:
            raise ValueError(
                f"FROM {stage.base}: cannot be executed here (expected a stage, or "
                "debian:RELEASE-DATE-slim)"
            )
        system, base = System(root), WORK / suite
        chroot_root.bootstrap(suite, base)
    root.parent.mkdir(parents=True, exist_ok=True)
    chroot_root.copy(base, root)
    for instruction in stage.instructions:
        step(system, instruction, systems, given)
    return system


def step(
    system: System,
    instruction: dockerfile.Instruction,
    systems: Mapping[str, System],
    given: Mapping[str, str],
) -> None:
    """Execute one instruction."""
    variables = {**system.arguments, **system.environment}
    match instruction.keyword:
        case "ARG":
            found = dockerfile.argument(instruction, variables, given)
            system.arguments |= {name: reachable(name, value) for name, value in found.items()}
        case "ENV":
            known = {"PATH": chroot_root.PATH, **variables}
            system.environment |= dockerfile.assignments(instruction, known)
        case "USER":
            system.user = instruction.text
        case "WORKDIR":
            system.workdir = instruction.text
            made = ["/bin/mkdir", "-p", system.workdir]
            call(replace(system, workdir="/", user="root"), made)
        case "COPY":
            copy(system, instruction, systems)
        case "RUN":
            bound = dockerfile.mount(instruction)
            binds = []
            if bound:
                origin = systems[bound["from"]].root / bound["source"].lstrip("/")
                binds.append((origin, bound["target"]))
            call(system, ["/bin/sh", "-c", instruction.text], system.arguments, binds)
        case "ENTRYPOINT":
            system.entrypoint = instruction.words()
        case "CMD":
            system.command = instruction.words()
        case "HEALTHCHECK":
            system.healthcheck = health_command(instruction)


def reachable(name: str, value: str) -> str:
    """An argument's value, "" for an index that has no address here: pip would ask it for long."""
    if not name.endswith("INDEX_URL") or not value:
        return value
    try:
        socket.getaddrinfo(urlsplit(value).hostname, None)
    except OSError:
        print(f"{name}={value} is out of reach: left out", flush=True)
        return ""
    return value


def health_command(instruction: dockerfile.Instruction) -> list[str]:
    """The command of a HEALTHCHECK, whose text begins with CMD."""
    return replace(instruction, text=instruction.text.removeprefix("CMD").strip()).words()


def copy(
    system: System, instruction: dockerfile.Instruction, systems: Mapping[str, System]
) -> None:
    """COPY: from the tree without what .dockerignore names, or from another stage."""
    *sources, target = instruction.words()
    stage = instruction.flags.get("from")
    origin = systems[stage].root if stage else ROOT
    folder = target.endswith("/") or len(sources) > 1
    place = system.root / os.path.normpath(Path(system.workdir) / target).lstrip("/")
    for name in sources:
        path = origin / name.lstrip("/")
        if path.is_dir():
            shutil.copytree(path, place, ignore=None if stage else ignored, dirs_exist_ok=True)
            copied = place
        else:
            copied = place / path.name if folder else place
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)
        if "chown" in instruction.flags:
            inside = "/" + str(copied.relative_to(system.root))
            owner = ["/bin/chown", "-R", instruction.flags["chown"], inside]
            call(replace(system, user="root", workdir="/"), owner)


def ignored(folder: str, names: list[str]) -> list[str]:
    """Those of a folder's files that .dockerignore keeps out of the build."""
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    relative = Path(folder).relative_to(ROOT)
    return [name for name in names if is_ignored(str(relative / name), rules)]


def is_ignored(path: str, rules: list[str]) -> bool:
    """Whether rules of .dockerignore, without "!", name a path of the tree. Pure."""
    for rule in rules:
        if rule.startswith("#") or not rule:
            continue
        anywhere = rule.removeprefix("**/")
        name = path.rsplit("/", 1)[-1] if anywhere != rule else path
        if fnmatch.fnmatchcase(name, anywhere) and name.count("/") == anywhere.count("/"):
            return True
    return False


def call(
    system: System,
    words: list[str],
    variables: Mapping[str, str] | None = None,
    binds: list[tuple[Path, str]] | None = None,
) -> None:
    """Run a command in a system, as its user; raises RuntimeError if it fails."""
    print(f"[{system.user}] {' '.join(words)}", flush=True)
    for_pip, files = package_index()
    line = chroot_root.command_line(
        system.root,
        words,
        user=system.user,
        workdir=system.workdir,
        environment={**for_pip, **(variables or {}), **system.environment},
        binds=[*files, *(binds or [])],
    )
    code = subprocess.run(line, check=False).returncode
    if code != 0:
        raise RuntimeError(f"exit code {code} of: {' '.join(words)}")


def package_index() -> tuple[dict[str, str], list[tuple[Path, str]]]:
    """How pip reaches an index from here: variables, and files of this machine to bind."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    variables, files = {}, []
    for name, value in settings.items():
        key, path = name.rsplit(".", 1)[-1], value.strip("'")
        place = f"/run/docker-check/{key}"
        if key == "default-timeout":
            variables["PIP_DEFAULT_TIMEOUT"] = path
        elif key == "cert":
            variables |= {"PIP_CERT": place, "SSL_CERT_FILE": place}
            files.append((Path(path), place))
        elif key == "find-links" and Path(path).is_dir():
            variables["PIP_FIND_LINKS"] = place
            files.append((Path(path), place))
    return variables, list(dict.fromkeys(files))


if __name__ == "__main__":
    sys.exit(main())
