#pragma once

// The list of the kernels that move batches, for the device (batch_copy.cu) and the host
// (batch_copy.cc): AIACC_COPY_KERNELS calls X(name, operation), where the operation is a template
// of batch_copy_body.h that still lacks its last argument, the codec.

#define AIACC_COPY_KERNELS(X)                                 \
  X(raw1, RawCopy, std::uint8_t, std::uint8_t)                \
  X(raw2, RawCopy, std::uint16_t, std::uint16_t)              \
  X(raw4, RawCopy, std::uint32_t, std::uint32_t)              \
  X(raw8, RawCopy, std::uint64_t, std::uint64_t)              \
  X(uint8_uint8, IntegerCopy, std::uint8_t, std::uint8_t)     \
  X(int8_int8, IntegerCopy, std::int8_t, std::int8_t)         \
  X(uint16_uint16, IntegerCopy, std::uint16_t, std::uint16_t) \
  X(int16_int16, IntegerCopy, std::int16_t, std::int16_t)     \
  X(int32_int32, IntegerCopy, std::int32_t, std::int32_t)     \
  X(int64_int64, IntegerCopy, std::int64_t, std::int64_t)     \
  X(uint32_uint32, IntegerCopy, std::uint32_t, std::uint32_t) \
  X(uint64_uint64, IntegerCopy, std::uint64_t, std::uint64_t) \
  X(bool_bool, IntegerCopy, Bool8, Bool8)                     \
  X(float16_float16, FloatCopy, Float16, Float16)             \
  X(bfloat16_bfloat16, FloatCopy, BFloat16, BFloat16)         \
  X(float32_float32, FloatCopy, float, float)                 \
  X(float64_float64, FloatCopy, double, double)               \
  X(float32_float16, FloatCopy, float, Float16)               \
  X(float16_float32, FloatCopy, Float16, float)               \
  X(float32_bfloat16, FloatCopy, float, BFloat16)             \
  X(bfloat16_float32, FloatCopy, BFloat16, float)             \
  X(float32_float8_e4m3, FloatCopy, float, Float8E4M3)        \
  X(float8_e4m3_float32, FloatCopy, Float8E4M3, float)        \
  X(float32_float8_e5m2, FloatCopy, float, Float8E5M2)        \
  X(float8_e5m2_float32, FloatCopy, Float8E5M2, float)
