#include "csrc/bindings/pmix_answers.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#define AIACC_EXPORTED __attribute__((visibility("default")))

namespace aiacc {
namespace {

constexpr int kSuccess = 0;
constexpr int kOutOfMemory = -32;
constexpr std::uint16_t kByteObject = 27;

void finish(PmixAnswer& answer, int status) {
  answer.status = status;
  const int event = answer.event;
  answer.there.store(1, std::memory_order_release);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(event, &one, sizeof one);
}

}  // namespace
}  // namespace aiacc

AIACC_EXPORTED void aiacc_pmix_answer(int status, void* answer) noexcept {
  aiacc::finish(*static_cast<aiacc::PmixAnswer*>(answer), status);
}

AIACC_EXPORTED void aiacc_pmix_answer_with(int status,
                                           const aiacc::PmixValue* value,
                                           void* answer) noexcept {
  auto& to = *static_cast<aiacc::PmixAnswer*>(answer);
  if (status == aiacc::kSuccess && value != nullptr && value->type == aiacc::kByteObject) {
    to.size = value->object.size;
    to.bytes = std::malloc(to.size + 1);  // not null for an empty one either
    if (to.bytes == nullptr) {
      status = aiacc::kOutOfMemory;
    } else if (to.size > 0) {
      std::memcpy(to.bytes, value->object.bytes, to.size);
    }
  }
  aiacc::finish(to, status);
}

AIACC_EXPORTED int aiacc_pmix_is_there(const void* answer) noexcept {
  return static_cast<const aiacc::PmixAnswer*>(answer)->there.load(std::memory_order_acquire);
}
