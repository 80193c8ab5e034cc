// A CUDA driver without GPU as a library that passes for libcuda.so.1, for tests of whole
// processes. Functions whose names begin with fake_ are for the test itself.

#include <cstdint>
#include <thread>

#include "tests/cpp/cuda/driver_symbols.h"
#include "tests/cpp/support/fakes/fake_cuda.h"

#define AIACC_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kDevices = 2;

aiacc::FakeCuda& fake() {
  static auto* const cuda = new aiacc::FakeCuda(kDevices);  // until the process ends
  return *cuda;
}

}  // namespace

// Every function of the driver is, once it is looked up, the one of the fake's table.
#define AIACC_RESOLVE(member, function, symbol)                   \
  extern "C" __attribute__((used)) void (*resolve_##member())() { \
    return reinterpret_cast<void (*)()>(fake().driver().member);  \
  }                                                               \
  AIACC_EXPORT __attribute__((ifunc("resolve_" #member))) void driver_##member() asm(symbol);
AIACC_CUDA_SYMBOLS(AIACC_RESOLVE)

/// Blocks until every stream is empty.
AIACC_EXPORT void fake_drain() { fake().drain(); }
AIACC_EXPORT void fake_hold() { fake().hold(); }
AIACC_EXPORT void fake_release() { fake().release(); }
AIACC_EXPORT int fake_synchronising_calls() { return fake().synchronising_calls(); }
AIACC_EXPORT unsigned long long fake_copied_by_pinned() { return fake().copied_by_pinned(); }
AIACC_EXPORT unsigned long long fake_copied_by_registered() {
  return fake().copied_by_registered();
}
AIACC_EXPORT int fake_misuses() { return fake().misuses(); }
/// The legacy stream of a device.
AIACC_EXPORT void fake_set_capturing(int device, int capturing) {
  // A context belongs to a thread; that of the caller is the caller's.
  std::thread([device, capturing] {
    fake().driver().context_push(
        reinterpret_cast<aiacc::CudaContext>(static_cast<std::uintptr_t>(device) + 1));
    fake().set_capturing(nullptr, capturing != 0);
  }).join();
}
