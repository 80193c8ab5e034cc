#include "csrc/bindings/c_api.h"

#include <algorithm>
#include <memory>
#include <string>

#include "csrc/base/build_info.h"
#include "csrc/bindings/c_guard.h"
#include "csrc/core/runtime.h"

namespace aiacc {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

template <class T>
T& target(T* pointer) {
  if (pointer == nullptr) {
    throw Error(Code::kInvalidArgument, "[c] NULL (expected where to put the answer)");
  }
  return *pointer;
}

/// One number of the topology.
std::int32_t answer_with(int RankTopology::* number, std::int32_t* to) noexcept {
  return answered([&] { target(to) = Runtime::instance().session()->topology().*number; });
}

std::shared_ptr<const Communicator> communicator_of(std::uint32_t process_set) {
  auto communicator =
      Runtime::instance().session()->coordinator().communicators().find(process_set);
  if (communicator == nullptr) {
    throw Error(Code::kInvalidArgument,
                "[process set] process set " + std::to_string(process_set) +
                    " is not registered (expected one that add_process_set returned)");
  }
  return communicator;
}

}  // namespace

std::int32_t note_failure(const Status& status) noexcept {
  try {
    last_error() = status.message();
  } catch (...) {
    last_error().clear();  // no memory for a text
  }
  return static_cast<std::int32_t>(status.code());
}

}  // namespace aiacc

using aiacc::RankTopology;
using aiacc::Runtime;

uint32_t aiacc_abi_version(void) { return AIACC_ABI_VERSION; }

const char* aiacc_version(void) {
  static const std::string version = [] {
    for (const auto& [key, value] : aiacc::build_info()) {
      if (key == "version") {
        return value;
      }
    }
    return std::string();
  }();
  return version.c_str();
}

const char* aiacc_last_error(void) { return aiacc::last_error().c_str(); }

int aiacc_is_initialized(void) { return Runtime::instance().initialized() ? 1 : 0; }

int32_t aiacc_rank(int32_t* rank) { return aiacc::answer_with(&RankTopology::rank, rank); }
int32_t aiacc_size(int32_t* size) { return aiacc::answer_with(&RankTopology::size, size); }
int32_t aiacc_local_rank(int32_t* rank) {
  return aiacc::answer_with(&RankTopology::local_rank, rank);
}
int32_t aiacc_local_size(int32_t* size) {
  return aiacc::answer_with(&RankTopology::local_size, size);
}
int32_t aiacc_cross_rank(int32_t* rank) {
  return aiacc::answer_with(&RankTopology::cross_rank, rank);
}
int32_t aiacc_cross_size(int32_t* size) {
  return aiacc::answer_with(&RankTopology::cross_size, size);
}

int32_t aiacc_process_set_size(uint32_t process_set, int32_t* size) {
  return aiacc::answered(
      [&] { aiacc::target(size) = aiacc::communicator_of(process_set)->size(); });
}

int32_t aiacc_process_set_ranks(uint32_t process_set, int32_t* ranks, size_t room) {
  return aiacc::answered([&] {
    const auto communicator = aiacc::communicator_of(process_set);
    aiacc::target(ranks);
    std::copy_n(communicator->ranks.begin(), std::min(room, communicator->ranks.size()), ranks);
  });
}

int32_t aiacc_flush(void) {
  return aiacc::answered([] { Runtime::instance().session()->coordinator().flush(); });
}

int32_t aiacc_poll(int64_t handle, int* done) {
  return aiacc::answered([&] {
    aiacc::target(done) = Runtime::instance().session()->coordinator().poll(handle) ? 1 : 0;
  });
}
