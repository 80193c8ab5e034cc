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


def test_stages_and_their_instructions(script):
    dockerfile = script("dockerfile")
    build, _, end = stages = dockerfile.parse(TEXT)
    assert [stage.name for stage in stages] == ["build", "unused", "end"]
    assert [stage.base for stage in stages] == ["debian:bookworm-slim", "other", "build"]
    assert dockerfile.parse(TEXT, {"BASE": "debian:trixie"})[0].base == "debian:trixie"
    _, _, run, copy = build.instructions
    assert (run.line, run.keyword, run.text) == (7, "RUN", "first && second --flag=x")
    assert (dict(copy.flags), copy.words()) == ({"chown": "me:me"}, ["a", "b", "/there/"])
    install, entry = end.instructions
    assert entry.words() == ["run", "a b"]
    assert (dockerfile.mount(install)["source"], dockerfile.source(install)) == ("/wheels", "build")
    assert dockerfile.needed(stages, "end") == [build, end]
    with pytest.raises(ValueError, match=r"no stage 'no' \(expected one of build, unused, end\)"):
        dockerfile.needed(stages, "no")


def test_variables_see_those_before_them(script):
    dockerfile = script("dockerfile")
    flags, variables, *_ = dockerfile.parse(TEXT)[0].instructions
    given = dockerfile.argument(flags, {}, {})
    assert given == {"FLAGS": "-O2"}
    assert dockerfile.argument(flags, {}, {"FLAGS": "-O3"}) == {"FLAGS": "-O3"}
    found = dockerfile.assignments(variables, {"PATH": "/bin", **given})
    assert found == {"PATH": "/venv/bin:/bin", "A": "-O2"}
    assert dockerfile.expand("${NONE:-x}$NONE", {}) == "x"


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


def test_what_a_build_does_not_see(script):
    rules = ["# why", "build", "aiacc/*.so", "**/__pycache__"]
    seen = ("aiacc/build", "aiacc/torch/x.so", "#x")
    ignored = ("build", "aiacc/_core.so", "tests/unit/__pycache__")
    is_ignored = script("docker_check").is_ignored
    assert [path for path in (*seen, *ignored) if is_ignored(path, rules)] == [*ignored]
