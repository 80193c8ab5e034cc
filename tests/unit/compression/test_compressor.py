"""What an argument ``compression`` may be."""

import pytest

from aiacc.compression.codecs import BF16, MSTopK, Quantised
from aiacc.compression.compressor import ALLOWED, CodedCompressor, allowed_of, compressor_of


class _Ours(CodedCompressor):
    front_end = "ours"


class _Theirs(CodedCompressor):
    front_end = "theirs"


class _Cast:
    front_end = "theirs"

    def compress(self, tensor):
        return tensor, None

    decompress = compress


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("auto", ALLOWED),
        ("auto:bf16+int8", (BF16, Quantised("int8"))),
        (
            "auto:int8:block=512+mstopk:density=0.001,mode=exact",
            (Quantised("int8", block=512), MSTopK(density=0.001, mode="exact")),
        ),
        ("auto:none+bf16", (BF16,)),
        ("int8", None),
        (BF16, None),
        (None, None),
    ],
)
def test_what_a_chooser_may_take(text, allowed):
    assert allowed_of(text) == allowed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("auto:", r"compression='auto:': codec ''"),
        ("auto:int9", r"compression='auto:int9': codec 'int9'.*'auto:bf16\+int8'"),
        ("auto:int8,bf16", r"compression='auto:int8,bf16': codec 'int8,bf16'"),
        ("auto:int8:bits=3", r"'bits' \(expected block"),
        ("auto:powersgd", r"compression='auto:powersgd' .*powersgd"),
        ("auto:int8+int8:block=512", r"each codec once"),
        ("auto:none", r"besides none"),
    ],
)
def test_what_it_may_not_is_named(text, error):
    with pytest.raises(ValueError, match=error):
        allowed_of(text)


def test_one_of_another_front_end_is_named():
    for compression, name in ((_Theirs(BF16), "bf16"), (_Cast, "_Cast")):
        with pytest.raises(
            ValueError, match=rf"compression={name} of aiacc\.theirs .*aiacc\.ours.*\"bf16\""
        ):
            compressor_of(compression, {}, _Ours)
    ours = _Ours(BF16)
    assert compressor_of(ours, {}, _Ours) is ours
