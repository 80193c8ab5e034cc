#pragma once

// The bodies of the kernels of block_code.h, for block_code.cu and block_code.cc.

#include "csrc/kernels/gpu/block_decode_body.h"
#include "csrc/kernels/gpu/block_encode_body.h"

/// Calls X(name, format) for every format, in the order of BlockFormat.
#define AIACC_BLOCK_CODES(X) X(int8, Int8Code) X(int4, Int4Code) X(float8_e4m3, Float8Code)
