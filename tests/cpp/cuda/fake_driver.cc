// Stands for libcuda: every function returns the number of its line in the list. Used by
// driver_test.

#include "tests/cpp/cuda/driver_symbols.h"

namespace {
enum Number {
#define AIACC_NUMBER(member, function, symbol) k_##member,
  AIACC_CUDA_SYMBOLS(AIACC_NUMBER)
};
}  // namespace

#define AIACC_EXPORT(member, function, symbol)                                       \
  extern "C" __attribute__((visibility("default"))) int fake_##member() asm(symbol); \
  int fake_##member() { return k_##member; }
AIACC_CUDA_SYMBOLS(AIACC_EXPORT)
