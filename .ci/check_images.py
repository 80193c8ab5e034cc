"""Checks that Dockerfiles, the compose file and the manifests of Kubernetes agree with each other.

`make docker-check` executes them. This only reads.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dockerfile
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
SSHD = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]
DEMO = "/opt/aiacc/examples/digits.py"
HOME = "/home/mpiuser/"
IMAGES = ("cpu", "cuda")

#: File, what of it, what that is, and what it should be.
Fact = tuple[str, str, object, object]
#: Gives the text of a file by its path.
Read = Callable[[str], str]


def main() -> int:
    """Check the files; 1 if two of them contradict each other."""
    found = list(contradictions(lambda path: (ROOT / path).read_text()))
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


def contradictions(read: Read) -> Iterator[str]:
    """What does not agree in the files that ``read`` gives."""
    for path, what, found, expected in _facts(read):
        if found != expected:
            yield f"{path}:1: {what} is {found!r} (expected {expected!r}); change one of them"


def _facts(read: Read) -> Iterator[Fact]:
    lines = read("docker/sshd_config").splitlines()
    sshd = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    yield from _of_sshd(sshd, read("docker/ssh_config"))
    for image in (*IMAGES, "test"):
        path = f"docker/{image}.Dockerfile"
        stages = dockerfile.parse(read(path))
        yield from _of_copies(path, stages)
        if image in IMAGES:
            yield from _of_image(path, stages, sshd["Port"])
    yield from _of_compose(YAML(typ="safe").load(read("docker/compose.yaml"))["services"])
    yaml = {
        name: YAML(typ="safe").load(read(f"docker/kubernetes/{name}.yaml"))
        for name in ("mpijob", "torch-runtime", "trainjob")
    }
    yield from _of_mpijob(yaml["mpijob"], sshd)
    yield from _of_trainjob(yaml["trainjob"], yaml["torch-runtime"])
    tools = re.search(r"^BUILD_TOOLS := (.*)$", read("Makefile"), re.M)
    pinned = [line for line in read("docker/build.txt").splitlines() if not line.startswith("#")]
    expected = sorted(tools[1].split()) if tools is not None else []
    yield "docker/build.txt", "what compiles", sorted(pinned), expected


def _of_sshd(sshd: dict[str, str], client: str) -> Iterator[Fact]:
    """It is one that mpiuser may start, and clients know where it listens."""
    path = "docker/sshd_config"
    for name, expected in (
        ("PidFile", sshd["PidFile"] if sshd["PidFile"].startswith(HOME) else f"{HOME}..."),
        ("HostKey", f"{HOME}.ssh/id_rsa"),
        ("AuthorizedKeysFile", f"{HOME}.ssh/authorized_keys"),
        ("StrictModes", "no"),
        ("UsePAM", "no"),
        ("Port", sshd["Port"] if int(sshd["Port"]) >= 1024 else "1024 or more"),
    ):
        yield path, name, sshd[name], expected
    yield "docker/ssh_config", f"Port {sshd['Port']}", f"Port {sshd['Port']}" in client, True


def _of_image(path: str, stages: list[dockerfile.Stage], port: str) -> Iterator[Fact]:
    """It starts aiaccrun as mpiuser, from pinned bases, without a compiler."""
    yield path, "USER", _last(stages, "USER").text, "mpiuser"
    yield path, "ENTRYPOINT", _last(stages, "ENTRYPOINT").words(), ["aiaccrun"]
    yield path, "EXPOSE", _last(stages, "EXPOSE").text, port
    checks = '["aiaccrun", "--check-build"]' in _last(stages, "HEALTHCHECK").text
    yield path, "a HEALTHCHECK that runs aiaccrun --check-build", checks, True
    names = {stage.name for stage in stages}
    for stage in stages:
        pinned = stage.base in names or any(one.isdigit() for one in stage.base.split(":")[-1])
        yield path, f"{stage.base} pinned", pinned, True
        compiler = any("g++" in one.text for one in stage.instructions if one.keyword == "RUN")
        yield path, f"a compiler in {stage.name}", compiler, stage.name == "build"


def _last(stages: list[dockerfile.Stage], keyword: str) -> dockerfile.Instruction:
    """What the last image has, from its own stage or those below."""
    by_name = {stage.name: stage for stage in stages}
    stage: dockerfile.Stage | None = stages[-1]
    while stage is not None:
        for instruction in reversed(stage.instructions):
            if instruction.keyword == keyword:
                return instruction
        stage = by_name.get(stage.base)
    return dockerfile.Instruction(0, keyword, {}, "")


def _of_copies(path: str, stages: list[dockerfile.Stage]) -> Iterator[Fact]:
    """What is copied is in the tree."""
    for stage in stages:
        for instruction in stage.instructions:
            if instruction.keyword == "COPY":
                for name in instruction.words()[:-1]:
                    what = f"{name}, of line {instruction.line}, in the tree"
                    yield path, what, (ROOT / name).exists(), True


def _of_compose(services: dict[str, Any]) -> Iterator[Fact]:
    """It starts a rank in each of two containers."""
    path, launcher, worker = "docker/compose.yaml", services["launcher"], services["worker"]
    yield path, "entrypoint of worker", worker["entrypoint"], SSHD
    hosts = ",".join(f"{one['hostname']}:1" for one in (launcher, worker))
    expected = ["--mpi", "-np", "2", "-H", hosts, "python", DEMO]
    yield path, "command of launcher", launcher["command"], expected
    for name, service in (("launcher", launcher), ("worker", worker)):
        yield path, f"volumes of {name}", service["volumes"], services["keys"]["volumes"]
        yield path, f"shm_size of {name}", service["shm_size"], "1g"
    condition = launcher["depends_on"]["worker"]["condition"]
    yield path, "what launcher waits for", condition, "service_healthy"


def _of_mpijob(job: dict[str, Any], sshd: dict[str, str]) -> Iterator[Fact]:
    """It has as many ranks as slots, and workers that its launcher reaches."""
    path, spec = "docker/kubernetes/mpijob.yaml", job["spec"]
    yield path, "kind", (job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob")
    yield path, "mpiImplementation", spec["mpiImplementation"], "MPICH"
    yield path, "the mounted key", spec["sshAuthMountPath"] + "/id_rsa", sshd["HostKey"]
    replicas = spec["mpiReplicaSpecs"]
    yield path, "replicas", set(replicas), {"Launcher", "Worker"}
    pods = {name: replicas[name]["template"]["spec"] for name in ("Launcher", "Worker")}
    for name, pod in pods.items():
        (container,) = pod["containers"]
        yield path, f"user of {name}", container["securityContext"]["runAsUser"], 1000
    (launcher,), (worker,) = pods["Launcher"]["containers"], pods["Worker"]["containers"]
    yield path, "command of Worker", worker["command"], SSHD
    yield path, "probed port", worker["readinessProbe"]["tcpSocket"]["port"], int(sshd["Port"])
    slots = replicas["Worker"]["replicas"] * spec["slotsPerWorker"]
    command = launcher["command"]
    yield path, "number of ranks", int(command[command.index("-n") + 1]), slots
    yield path, "what runs", command[-2:], ["python", DEMO]
    yield from _of_shared_memory(path, pods["Worker"])


def _of_trainjob(job: dict[str, Any], runtime: dict[str, Any]) -> Iterator[Fact]:
    """It runs on the runtime, with torchrun and engine tcp."""
    path, other = "docker/kubernetes/torch-runtime.yaml", "docker/kubernetes/trainjob.yaml"
    for name, document in ((path, runtime), (other, job)):
        yield name, "apiVersion", document["apiVersion"], "trainer.kubeflow.org/v1alpha1"
    reference = job["spec"]["runtimeRef"]
    names = runtime["kind"], runtime["metadata"]["name"]
    yield other, "runtimeRef", (reference["kind"], reference["name"]), names
    yield other, "command", job["spec"]["trainer"]["command"], ["torchrun", DEMO]
    labels = runtime["metadata"]["labels"]
    yield path, "framework", labels["trainer.kubeflow.org/framework"], "torch"
    yield path, "torch in mlPolicy", "torch" in runtime["spec"]["mlPolicy"], True
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    template = node["template"]
    expected = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    yield path, "labels of the job", template["metadata"]["labels"], expected
    pod = template["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # Trainer looks for both by this name.
    yield path, "names of job and container", (node["name"], container["name"]), ("node", "node")
    tcp = {"name": "AIACC_ENGINE", "value": "tcp"} in container["env"]
    yield path, "engine tcp in env", tcp, True
    yield from _of_shared_memory(path, pod)


def _of_shared_memory(path: str, pod: dict[str, Any]) -> Iterator[Fact]:
    """64 MiB, which pods have otherwise, do not do for MPI or torch."""
    (container,) = pod["containers"]
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    yield path, "the mount", (mount["name"], mount["mountPath"]), (volume["name"], "/dev/shm")
    expected = {"medium": "Memory", "sizeLimit": "1Gi"}
    yield path, "the volume", volume["emptyDir"], expected


if __name__ == "__main__":
    sys.exit(main())
