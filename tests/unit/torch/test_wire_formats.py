"""How compressed all-reduces travel: the decision, and the core's numbers of the formats."""

import itertools

import pytest
import torch

import aiacc.torch as hvd
from aiacc import _core
from aiacc.collectives import submission
from aiacc.compression.codecs import MSTopK, Quantised
from aiacc.compression.policy import Policy
from aiacc.torch.adapter import DTYPE_CODES
from aiacc.torch.compression.wire_format import AS_THEY_ARE, choose, has_cast

FP16, BF16 = hvd.Compression.fp16, hvd.Compression.bf16
E4M3, E5M2 = hvd.Compression.fp8_e4m3, hvd.Compression.fp8_e5m2
SINGLE, HALF, DOUBLE, WHOLE = torch.float32, torch.float16, torch.float64, torch.int64


class Derived(FP16):
    """A compressor of somebody else's."""


@pytest.mark.parametrize(
    ("compression", "dtypes", "wire"),
    [
        (hvd.Compression.none, [SINGLE, WHOLE], AS_THEY_ARE),
        (FP16, [SINGLE], 1),
        (BF16, [SINGLE, SINGLE], 2),
        (E4M3, [SINGLE], 3),
        (E5M2, [SINGLE], 4),
        # float32 is what the kernels can narrow.
        (FP16, [HALF], None),
        (BF16, [HALF], None),
        (FP16, [DOUBLE], None),
        (FP16, [WHOLE], None),
        (FP16, [SINGLE, WHOLE], None),
        # Integers pass; the core refuses the other dtypes.
        (E4M3, [WHOLE, torch.bool], AS_THEY_ARE),
        (E4M3, [DOUBLE], 3),
        (E5M2, [SINGLE, WHOLE], 4),
        # Compressors of others, as classes and as objects.
        (Derived, [SINGLE], None),
        (Derived(), [SINGLE], None),
    ],
)
def test_what_travels_how(compression, dtypes, wire):
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        assert choose(compression, dtypes, op) == wire


@pytest.mark.parametrize(
    ("compression", "text"),
    [
        (hvd.Compression.mstopk, r"compression=Compression\.mstopk .*call it: .*mstopk\(\)"),
        (hvd.Compression, r"compression=Compression .*members, such as Compression\.bf16$"),
        (MSTopK, r'compression=MSTopK .*give a codec of that class, such as "mstopk"$'),
        (Quantised, r'compression=Quantised .*give a codec of that class, such as "int8"$'),
        (Policy, r"compression=Policy .*leave it out"),
        (None, r"compression=None \(expected one of Compression.*leave it out"),
        ("auto", r"compression='auto' .*only DistributedOptimizer"),
        ("auto:int8", r"compression='auto:int8' .*only DistributedOptimizer"),
        (0.01, r"compression=0\.01 \(expected"),
    ],
)
@pytest.mark.usefixtures("job_of_one")
def test_what_is_no_compressor_is_named_at_once(compression, text):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    with pytest.raises(ValueError, match=text):
        choose(compression, [SINGLE], hvd.Average)
    with pytest.raises(ValueError, match=text):
        hvd.HookState(compression=compression)
    if not str(compression).startswith("auto"):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(optimizer, compression=compression)


@pytest.mark.parametrize(
    ("codec", "name"), [("int8", "'int8'"), (hvd.Compression.int8, r"CodedCompressor\(int8\)")]
)
def test_a_hook_given_a_codec_for_its_process_set_says_so(codec, name):
    with pytest.raises(TypeError, match=rf"process_set={name} .*HookState\(compression="):
        hvd.HookState(codec)


def test_with_adasum_a_cast_stands_for_the_format_if_there_is_one():
    for compression, dtype in itertools.product((FP16, BF16, Derived), (SINGLE, HALF, WHOLE)):
        assert choose(compression, [dtype], hvd.Adasum) is None
    assert choose(E4M3, [WHOLE], hvd.Adasum) == AS_THEY_ARE
    assert all(map(has_cast, (FP16, Derived, [])))
    assert not any(map(has_cast, (E4M3, E5M2)))


def _submit(wire, op=hvd.Sum):
    """What a third becomes."""
    tensor = torch.ones(3) / 3
    address = tensor.data_ptr()
    prepared = submission.allreduce("w", (3,), DTYPE_CODES[SINGLE], -1, op, wire=wire)
    _core.wait(prepared.start(address, address))
    return tensor[0]


@pytest.mark.usefixtures("job_of_one")
@pytest.mark.parametrize(
    ("wire", "op", "text"),
    [
        (1, hvd.Adasum, r"'allreduce.w': wire format float16 .*not Adasum"),
        (2, hvd.Adasum, r"'allreduce.w': wire format bfloat16 .*not Adasum"),
        (3, hvd.Sum, r"'allreduce.w': wire format float8_e4m3 in host memory"),
        (4, hvd.Sum, r"'allreduce.w': wire format float8_e5m2 in host memory"),
        *(
            (wrong, hvd.Sum, rf"wire format {wrong} \(expected 0\.\.9, plus 256")
            for wrong in (-1, 10, 255, 2**31)
        ),
    ],
)
def test_numbers_are_the_cores(wire, op, text):
    with pytest.raises(ValueError, match=text):
        _submit(wire, op)
    assert choose(E4M3, [SINGLE], hvd.Adasum) == 3, "for the core to refuse"
    for sent in (AS_THEY_ARE, 1, 2):
        assert _submit(sent) == torch.tensor(1 / 3), "one rank sends nothing"


def _group(call):
    return lambda tensor, **options: call([tensor], **options)


@pytest.mark.usefixtures("job_of_one")
@pytest.mark.parametrize("compression", [E4M3, E5M2])
def test_8_bits_are_refused_in_host_memory_where_they_are_submitted(compression):
    text = r"allreduce\.bad': wire format float8_.*in host memory.*use Compression\.bf16"
    for call in (
        *(hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_),
        *(_group(hvd.grouped_allreduce), _group(hvd.grouped_allreduce_)),
        *(_group(hvd.grouped_allreduce_async), _group(hvd.grouped_allreduce_async_)),
    ):
        with pytest.raises(ValueError, match=text):
            call(torch.ones(4), name="bad", compression=compression)
    for call in (hvd.reducescatter, _group(hvd.grouped_reducescatter)):
        with pytest.raises(ValueError, match=r"FP8E.*float32.*expected an all-reduce.*bf16"):
            call(torch.ones(4), compression=compression)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match=r"op=Adasum with compression=FP8E.*bf16"):
        hvd.DistributedOptimizer(optimizer, compression=compression, op=hvd.Adasum)
    whole = torch.arange(4)
    assert hvd.allreduce(whole, compression=compression).equal(whole)
    assert hvd.reducescatter(whole, compression=compression).equal(whole)
