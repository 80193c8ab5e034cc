"""Dockerfiles, the compose file and the manifests of Kubernetes agree with each other."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from aiacc.run.options import parser

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
SSHD = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]
DEMO = "/opt/aiacc/examples/digits.py"
IMAGES = ("cpu", "cuda")


def read_yaml(name):
    return YAML(typ="safe").load((DOCKER / name).read_text())


def sshd_settings():
    lines = (DOCKER / "sshd_config").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def last_of(stages, keyword):
    """The value that the last image has, from its own stage or those below."""
    by_name = {stage.name: stage for stage in stages}
    stage = stages[-1]
    while stage is not None:
        for instruction in reversed(stage.instructions):
            if instruction.keyword == keyword:
                return instruction
        stage = by_name.get(stage.base)
    raise AssertionError(f"no {keyword}")


@pytest.fixture(params=IMAGES)
def stages(request, script):
    return script("dockerfile").parse((DOCKER / f"{request.param}.Dockerfile").read_text())


def test_images_run_as_mpiuser_and_start_aiaccrun(stages):
    assert last_of(stages, "USER").text == "mpiuser"
    assert last_of(stages, "ENTRYPOINT").words() == ["aiaccrun"]
    assert '["aiaccrun", "--check-build"]' in last_of(stages, "HEALTHCHECK").text
    assert last_of(stages, "EXPOSE").text == sshd_settings()["Port"]


def test_a_compiler_is_in_no_image(stages):
    runs = {stage.name: [i.text for i in stage.instructions] for stage in stages}
    assert any("g++" in text for text in runs.pop("build"))
    assert not any("g++" in text for texts in runs.values() for text in texts)


def test_bases_are_pinned(stages):
    names = {stage.name for stage in stages}
    for stage in stages:
        assert stage.base in names or any(digit.isdigit() for digit in stage.base.split(":")[1])


@pytest.mark.parametrize("image", [*IMAGES, "test"])
def test_what_is_copied_is_in_the_tree(script, image):
    for stage in script("dockerfile").parse((DOCKER / f"{image}.Dockerfile").read_text()):
        for instruction in stage.instructions:
            if instruction.keyword == "COPY":
                *sources, _ = instruction.words()
                for name in sources:
                    assert (ROOT / name).exists(), f"{image}: line {instruction.line}"


def test_sshd_is_one_that_mpiuser_may_start():
    settings = sshd_settings()
    home = "/home/mpiuser/"
    assert settings["PidFile"].startswith(home)
    assert settings["HostKey"] == home + ".ssh/id_rsa"
    assert settings["AuthorizedKeysFile"] == home + ".ssh/authorized_keys"
    assert (settings["StrictModes"], settings["UsePAM"]) == ("no", "no")
    assert int(settings["Port"]) >= 1024
    assert f"Port {settings['Port']}" in (DOCKER / "ssh_config").read_text()


def test_compose_starts_a_rank_in_each_of_two_containers():
    services = read_yaml("compose.yaml")["services"]
    assert services["worker"]["entrypoint"] == SSHD
    options = parser().parse_args(services["launcher"]["command"])
    assert options.mpi
    hosts = [part.split(":")[0] for part in options.hosts.split(",")]
    assert sorted(hosts) == sorted(services[name]["hostname"] for name in ("launcher", "worker"))
    assert options.num_proc == len(hosts)
    assert options.command == ["python", DEMO]
    for name in ("launcher", "worker"):
        assert services[name]["volumes"] == services["keys"]["volumes"]
        assert services[name]["shm_size"] == "1g"
    assert services["launcher"]["depends_on"]["worker"]["condition"] == "service_healthy"


def test_the_mpijob_has_as_many_ranks_as_slots():
    job = read_yaml("kubernetes/mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    assert spec["mpiImplementation"] == "MPICH"
    assert spec["sshAuthMountPath"] + "/id_rsa" == sshd_settings()["HostKey"]
    replicas = spec["mpiReplicaSpecs"]
    assert set(replicas) == {"Launcher", "Worker"}
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert worker["command"] == SSHD
    assert worker["readinessProbe"]["tcpSocket"]["port"] == int(sshd_settings()["Port"])
    command = launcher["command"]
    ranks = int(command[command.index("-n") + 1])
    assert ranks == replicas["Worker"]["replicas"] * spec["slotsPerWorker"]
    assert command[-2:] == ["python", DEMO]
    for container in (launcher, worker):
        assert container["securityContext"]["runAsUser"] == 1000


def test_the_trainjob_uses_the_runtime_with_torchrun_and_tcp():
    runtime = read_yaml("kubernetes/torch-runtime.yaml")
    job = read_yaml("kubernetes/trainjob.yaml")
    for document in (runtime, job):
        assert document["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    reference = job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    assert runtime["metadata"]["labels"]["trainer.kubeflow.org/framework"] == "torch"
    assert "torch" in runtime["spec"]["mlPolicy"]
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    template = node["template"]
    assert template["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
    }
    (container,) = template["spec"]["template"]["spec"]["containers"]
    # Trainer looks for both by this name.
    assert (node["name"], container["name"]) == ("node", "node")
    assert {"name": "AIACC_ENGINE", "value": "tcp"} in container["env"]
    assert job["spec"]["trainer"]["command"] == ["torchrun", DEMO]


def test_pods_have_enough_shared_memory():
    """64 MiB, which they have otherwise, do not do for MPI or torch."""
    workers = read_yaml("kubernetes/mpijob.yaml")["spec"]["mpiReplicaSpecs"]["Worker"]
    (node,) = read_yaml("kubernetes/torch-runtime.yaml")["spec"]["template"]["spec"][
        "replicatedJobs"
    ]
    for spec in (workers["template"]["spec"], node["template"]["spec"]["template"]["spec"]):
        (container,) = spec["containers"]
        (mount,) = container["volumeMounts"]
        (volume,) = spec["volumes"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], "/dev/shm")
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
