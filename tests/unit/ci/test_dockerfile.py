"""What docker_check.py reads out of a Dockerfile, and where it would put it."""

import pytest

TEXT = """
# syntax is nobody's business
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS build
ARG FLAGS=-O2
ENV PATH=/venv/bin:$PATH A=${FLAGS}
RUN first \\
 # why
 && second --flag=x
COPY --chown=me:me a b /there/
FROM other AS unused
RUN never
FROM build AS end
RUN --mount=type=bind,from=build,source=/wheels,target=/tmp/w install /tmp/w
ENTRYPOINT ["run", "a b"]
"""


@pytest.fixture
def stages(script):
    return script("dockerfile").parse(TEXT)


def test_stages_and_what_they_are_made_from(stages):
    assert [(stage.name, stage.base) for stage in stages] == [
        ("build", "debian:bookworm-slim"),
        ("unused", "other"),
        ("end", "build"),
    ]


def test_arguments_choose_the_base(script):
    stages = script("dockerfile").parse(TEXT, {"BASE": "debian:trixie"})
    assert stages[0].base == "debian:trixie"


def test_lines_that_are_continued_are_one_instruction(stages):
    run = stages[0].instructions[2]
    assert (run.line, run.keyword, run.text) == (7, "RUN", "first && second --flag=x")


def test_flags_are_not_part_of_the_words(stages):
    copy, last = stages[0].instructions[3], stages[2].instructions[1]
    assert (dict(copy.flags), copy.words()) == ({"chown": "me:me"}, ["a", "b", "/there/"])
    assert last.words() == ["run", "a b"]


def test_variables_see_those_before_them(script, stages):
    dockerfile = script("dockerfile")
    flags, variables = stages[0].instructions[:2]
    given = dockerfile.argument(flags, {}, {})
    assert given == {"FLAGS": "-O2"}
    assert dockerfile.argument(flags, {}, {"FLAGS": "-O3"}) == {"FLAGS": "-O3"}
    assert dockerfile.assignments(variables, {"PATH": "/bin", **given}) == {
        "PATH": "/venv/bin:/bin",
        "A": "-O2",
    }
    assert dockerfile.expand("${NONE:-x}$NONE", {}) == "x"


def test_only_stages_that_are_needed(script, stages):
    needed = script("dockerfile").needed(stages, "end")
    assert [stage.name for stage in needed] == ["build", "end"]
    with pytest.raises(ValueError, match=r"no stage 'no' \(expected one of build, unused, end\)"):
        script("dockerfile").needed(stages, "no")


def test_where_a_mount_comes_from(script, stages):
    run = stages[2].instructions[0]
    assert script("dockerfile").mount(run)["source"] == "/wheels"
    assert script("dockerfile").source(run) == "build"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("FROM a\nADD x y", "line 2: ADD is not known"),
        ("RUN x", "line 1: RUN before any FROM"),
        ("ARG X=1", "no FROM"),
        ("FROM a b", "line 1: FROM a b"),
        ("FROM a\nRUN x \\", "line 2: an instruction that does not end"),
    ],
)
def test_what_is_refused(script, text, problem):
    with pytest.raises(ValueError, match=problem):
        script("dockerfile").parse(text)


@pytest.mark.parametrize(
    ("image", "suite"),
    [
        ("debian:bookworm-20250520-slim", "bookworm"),
        ("debian:trixie", "trixie"),
        ("ubuntu:24.04", ""),
        ("debian:12", ""),
    ],
)
def test_images_that_debootstrap_can_make(script, image, suite):
    assert script("chroot_root").suite_of(image) == suite


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("build", True),
        ("aiacc/build", False),
        ("aiacc/_core.so", True),
        ("aiacc/torch/x.so", False),
        ("tests/unit/__pycache__", True),
        ("#x", False),
    ],
)
def test_what_a_build_does_not_see(script, path, ignored):
    rules = ["# why", "build", "aiacc/*.so", "**/__pycache__"]
    assert script("docker_check").is_ignored(path, rules) == ignored


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ({}, ["entry", "x"]),
        ({"command": ["y"]}, ["entry", "y"]),
        ({"entrypoint": ["sshd"]}, ["sshd"]),
        ({"entrypoint": ["sh"], "command": ["y"]}, ["sh", "y"]),
    ],
)
def test_what_a_container_of_a_service_runs(script, service, words):
    containers = script("containers")
    image = containers.System(None, entrypoint=["entry"], command=["x"])
    assert containers.words_of(service, image) == words


def test_an_index_that_has_no_address_here_is_left_out(script, monkeypatch, capsys):
    check = script("docker_check")

    def resolve(host, port):
        if host != "here":
            raise OSError(host)

    monkeypatch.setattr(check.socket, "getaddrinfo", resolve)
    assert check.reachable("TORCH_INDEX_URL", "https://here/whl") == "https://here/whl"
    assert capsys.readouterr().out == ""
    assert check.reachable("TORCH_INDEX_URL", "https://away/whl") == ""
    assert "TORCH_INDEX_URL=https://away/whl is out of reach" in capsys.readouterr().out
    assert check.reachable("TORCH", "torch==2.13.0") == "torch==2.13.0"
