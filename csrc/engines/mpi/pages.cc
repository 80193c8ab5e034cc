#include "csrc/engines/mpi/pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kOwn = MAP_PRIVATE | MAP_ANONYMOUS;

}  // namespace

Pages::Pages(std::size_t bytes) : size_(bytes) {
  void* data = mmap(nullptr, bytes, kReadWrite, kOwn, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(Code::kEngine,
                "[mpi] no address space for " + std::to_string(bytes) +
                    " bytes: " + std::strerror(errno) + "; lower AIACC_LANES, or the limit");
  }
  data_ = static_cast<std::byte*>(data);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Pages::~Pages() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

void Pages::give_up() noexcept {
  if (data_ != nullptr) {
    // In place of the old pages, so that there is no moment in which nothing is there.
    constexpr int kFresh = kOwn | MAP_NORESERVE | MAP_FIXED;
    if (mmap(data_, size_, kReadWrite, kFresh, -1, 0) == MAP_FAILED) {
      madvise(data_, size_, MADV_DONTNEED);
    }
    data_ = nullptr;
    size_ = 0;
  }
}

}  // namespace aiacc
