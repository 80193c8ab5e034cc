"""Every CUDA kernel is built for every architecture; the hot ones need no more than they may.

Read from what nvcc has left in the build folder (cmake/cuda.cmake).
"""

import json
import re

import pytest

from tests.support.programs import ROOT, needs

SOURCES = sorted((ROOT / "csrc/kernels").rglob("*.cu"))
#: Most registers of the kernels by compute capability. The hot ones may not spill.
TABLE = json.loads((ROOT / "tests/unit/cuda_kernel_registers.json").read_text())
BUILT = ROOT / "build/dev/generated"
_needed = needs(
    "" if any(BUILT.glob("*.ptxas")) else "the kernels are not built; install nvcc, run make build"
)
ENTRY = re.compile(
    r"entry function '(?P<name>\w+)' for 'sm_(?P<architecture>\d+)'"
    r".*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)

#: Those with passes that a step seldom needs, which may spill, as may functions that they call.
SELDOM = {"aiacc_select_foresee", "aiacc_select_finish"}
#: Those that move packed factors, and bytes of an element. Rows of a triangle begin at any address,
#: so a thread moves elements one by one, and a warp neighbours.
FACTORS = {
    f"aiacc_factors_{work}_{dtype}": size
    for work in ("pack", "unpack", "average")
    for dtype, size in (("float32", 4), ("float64", 8))
}
#: Of an access to memory in intermediate code: how many at a time, and bits of each.
WIDTH = r"(?:\.global)?(?:\.v(\d))?\.[a-z](\d+)"
#: Those that go to any places, 4 bytes each.
SCATTERED = {"aiacc_add_pairs": 4}


def kernel_names():
    """Names of all kernels; those that copy are in the list that the host's twins are made of."""
    pairs = (ROOT / "csrc/kernels/batch_copy_pairs.h").read_text()
    copied = re.findall(r"^ +X\((\w+),", pairs, re.MULTILINE)
    copies = {f"aiacc_copy_{name}{size}" for name in copied for size in ("", "_large")}
    return copies | TABLE["75"].keys() | FACTORS.keys() | SCATTERED.keys()


def test_every_image_is_embedded_for_every_architecture():
    """A new .cu file is compiled, embedded and known by a name."""
    names = {source.stem for source in SOURCES}
    cmake = (ROOT / "cmake/cuda.cmake").read_text()
    assert set(re.findall(r"^aiacc_device_image\(\S*/(\w+)\.cu ", cmake, re.MULTILINE)) == names
    embedded = (ROOT / "csrc/kernels/device_image.cc").read_text()
    assert set(re.findall(r"^AIACC_EMBED\((\w+), ", embedded, re.MULTILINE)) == names
    listed = re.search(r'AIACC_CUDA_ARCHITECTURES "([0-9;]+)"', cmake)
    assert listed.group(1).split(";") == sorted(TABLE, key=int)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_wider_side_moves_16_bytes_at_a_time(source):
    """In the intermediate code for the lowest architecture."""
    code = (BUILT / source.stem / f"{source.stem}.compute_75.ptx").read_text()
    kernels = {
        # What a kernel calls stands outside of it, and does not know which memory it gets.
        name: code.replace(".global", "") if "\n.func" in code else body
        for name, body in re.findall(r"\.entry (\w+)\((.*?)\n}\n", code, re.DOTALL)
    }
    assert kernels
    assert set(kernels) <= kernel_names()
    for name, body in kernels.items():
        widths = {
            access: max(
                int(count or 1) * int(bits) // 8
                for count, bits in re.findall(rf"\b{access}{WIDTH}", body)
            )
            for access in ("ld", "st")
        }
        assert max(widths.values()) == (FACTORS | SCATTERED).get(name, 16), (name, widths)


@pytest.fixture(scope="module")
def report():
    """What ptxas has said of all sources."""
    return "".join((BUILT / f"{source.stem}.ptxas").read_text() for source in SOURCES)


@pytest.mark.parametrize("architecture", sorted(TABLE, key=int))
def test_kernels_fit(architecture, report):
    entries = [one for one in ENTRY.finditer(report) if one["architecture"] == architecture]
    found = {entry["name"]: entry for entry in entries}
    assert set(found) == kernel_names()
    for name, most in TABLE[architecture].items():
        assert int(found[name]["registers"]) <= most, name
        spilled = int(found[name]["stores"]) + int(found[name]["loads"])
        assert not spilled or name in SELDOM, name


def test_functions_that_kernels_call_spill_nothing(report):
    called = re.findall(r"Function properties for (_Z\w+)\n.*?(\d+) bytes spill stores", report)
    assert called
    # Those of SELDOM may.
    assert [name for name, spilled in called if spilled != "0" and "SelectPlan" not in name] == []
    assert "warning" not in report
