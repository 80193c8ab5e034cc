// Compares csrc/cuda/driver.h with the toolkit's cuda.h. Compiled where there is one; it is enough
// that it compiles, except for the names of the symbols.

#include <cuda.h>

#include <gtest/gtest.h>

#include "csrc/cuda/driver.h"
#include "tests/cpp/cuda/driver_symbols.h"
#include "tests/cpp/support/foreign_functions.h"

namespace aiacc {
namespace {

#define AIACC_COMPARE(member, function, symbol) \
  static_assert(SameForm<decltype(CudaDriver::member), decltype(&::function)>::value, symbol);
AIACC_CUDA_SYMBOLS(AIACC_COMPARE)

static_assert(kCudaInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kCudaOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kCudaDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(kCudaInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kCudaInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(kCudaNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kCudaNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCudaStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCudaEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCudaHostPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kCudaMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kCudaCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kCudaCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);

// cuda.h turns the plain names into those of the current version by macros.
#define AIACC_TEXT_OF(name) #name
#define AIACC_TEXT(name) AIACC_TEXT_OF(name)

TEST(CudaHeaderTest, SymbolsAreThoseOfTheHeader) {
#define AIACC_NAME(member, function, symbol) EXPECT_STREQ(AIACC_TEXT(function), symbol);
  AIACC_CUDA_SYMBOLS(AIACC_NAME)
}

}  // namespace
}  // namespace aiacc
