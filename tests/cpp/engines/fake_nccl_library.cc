// Stands for libnccl: every function returns the number of its line in the list. AIACC_VERSION,
// from CMake, is what it says its version is; before 2.31 it lacks ncclAllReduceConfig.

#include "tests/cpp/engines/nccl_symbols.h"

#define AIACC_EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum Number {
#define AIACC_NUMBER(member, symbol) k_##member,
  AIACC_NCCL_SYMBOLS(AIACC_NUMBER) k_all_reduce_config
};
}  // namespace

#define AIACC_FUNCTION(member, symbol) \
  AIACC_EXPORT int symbol();           \
  int symbol() { return k_##member; }
AIACC_NCCL_SYMBOLS(AIACC_FUNCTION)
#if AIACC_VERSION >= 23100
AIACC_FUNCTION(all_reduce_config, ncclAllReduceConfig)
#endif

AIACC_EXPORT int ncclGetVersion(int* version) { return *version = AIACC_VERSION, 0; }
AIACC_EXPORT const char* ncclGetErrorString(int) { return "an error"; }
AIACC_EXPORT const char* ncclGetLastError(void*) { return "and why"; }
