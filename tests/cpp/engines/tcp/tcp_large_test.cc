// The `tcp` engine with more bytes than 31 bits count. Sanitizers would need minutes.

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/engines/engine_worlds.h"

namespace aiacc {
namespace {

/// A long stretch of addresses with little memory behind it: the same pages over and over.
class RepeatedMemory {
 public:
  static constexpr std::size_t kPeriod = std::size_t{16} << 20;

  /// `bytes` is a multiple of kPeriod.
  explicit RepeatedMemory(std::size_t bytes) : bytes_(bytes) {
    AIACC_CHECK(bytes % kPeriod == 0);
    const int file = memfd_create("aiacc-test", MFD_CLOEXEC);
    void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool works = file >= 0 && base != MAP_FAILED && ftruncate(file, kPeriod) == 0;
    data_ = static_cast<char*>(base);
    for (std::size_t at = 0; works && at < bytes; at += kPeriod) {
      works = mmap(data_ + at, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
              MAP_FAILED;
    }
    const int error = errno;
    close(file);
    if (!works) {
      throw system_error(Code::kInternal, "[test] mapping memory repeatedly", error);
    }
  }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;
  ~RepeatedMemory() { munmap(data_, bytes_); }

  char* data() { return data_; }
  void fill(char value) { std::memset(data_, value, kPeriod); }
  std::string content() const { return {data_, kPeriod}; }

 private:
  const std::size_t bytes_;
  char* data_ = nullptr;
};

/// Sizes that do not fit into 31 bits; the memory behind them is small.
TEST(TcpLargeTest, PiecesOfMoreThanTwoGiB) {
  constexpr std::size_t kBytes = (std::size_t{1} << 31) + RepeatedMemory::kPeriod;
  with_engines(tcp_ranks(2), [&](int rank, Engine& engine) {
    // Rank 0 sends, rank 1 receives, and each leaves its own piece empty.
    RepeatedMemory memory(kBytes);
    if (rank == 0) {
      memory.fill(0x5a);
    }
    const std::vector<std::size_t> sent = {0, rank == 0 ? kBytes : 0};
    const std::vector<std::size_t> received = {rank == 1 ? kBytes : 0, 0};
    engine.all_to_all(0, memory.data(), memory.data(), sent, received);
    EXPECT_EQ(std::string(RepeatedMemory::kPeriod, 0x5a), memory.content());
  });
}

}  // namespace
}  // namespace aiacc
