#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace aiacc {

/// As the PMIx standard lays it out, as far as it is read here.
struct PmixValue {
  std::uint16_t type;
  struct {
    const void* bytes;
    std::size_t size;
  } object;
};

/// What became of one request; `_Answer` in aiacc/bootstrap/providers/pmix_client.py is the same.
struct PmixAnswer {
  int event;               ///< an eventfd; the last that happens is that 1 is added to it
  std::atomic<int> there;  ///< 1: the rest is valid and does not change any more
  int status;
  void* bytes;  ///< from malloc, or null
  std::size_t size;
};

}  // namespace aiacc

// Threads of PMIx call the first two, also when nobody waits any more, or when Python has ended and
// the process has not. So they use nothing but the PmixAnswer at `answer`, which has to be there
// still, and they neither block nor throw.
extern "C" {

void aiacc_pmix_answer(int status, void* answer) noexcept;

/// Keeps a copy of a byte object: the library frees `value` afterwards. Other types leave no bytes.
void aiacc_pmix_answer_with(int status, const aiacc::PmixValue* value, void* answer) noexcept;

/// Whether `answer` may be read now.
int aiacc_pmix_is_there(const void* answer) noexcept;
}
