"""What `make versions` makes of reports; it runs the tests on other versions itself."""

from tests.compat.versions import main, summary_of, table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad"><failure
message="assert 1 == 2&#10; where"/></testcase>
<testcase classname="tests.a" name="test_left_out"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_summed_up():
    found = summary_of(REPORT)
    assert found == {
        "passed": 1,
        "skipped": {"tests.a.test_left_out": "no GPU"},
        "failed": {"tests.a.test_bad": "assert 1 == 2"},
    }
    versions = {"keras": "3.4.1", "numpy": "1.26.4", "protobuf": "4.25.8"}
    lines = table({"tensorflow-2.16.2": {"versions": versions, **found}}).splitlines()
    assert lines[1].split()[:4] == ["tensorflow-2.16.2", "1", "1", "1"]
    assert lines[1].endswith("keras 3.4.1, numpy 1.26.4, protobuf 4.25.8")


def test_an_unknown_version_is_named(capsys):
    assert main(["1.15.0"]) == 2
    assert "1.15.0 (expected one of tensorflow-2.16.2" in capsys.readouterr().err
