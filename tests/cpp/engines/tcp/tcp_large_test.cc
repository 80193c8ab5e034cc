// The `tcp` engine with more bytes than 31 bits count. Sanitizers would need minutes.

#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_worlds.h"
#include "tests/cpp/support/repeated_memory.h"

namespace aiacc {
namespace {

/// Sizes that do not fit into 31 bits; the memory behind them is small.
TEST(TcpLargeTest, PiecesOfMoreThanTwoGiB) {
  constexpr std::size_t kBytes = (std::size_t{1} << 31) + RepeatedMemory::kPeriod;
  with_engines(tcp_ranks(2), [&](int rank, Engine& engine) {
    // Rank 0 sends, rank 1 receives, and each leaves its own piece empty.
    RepeatedMemory memory(kBytes);
    if (rank == 0) {
      memory.fill(0x5a);
    }
    const std::vector<std::size_t> none(2, 0);
    const std::vector<std::size_t> sent = {0, rank == 0 ? kBytes : 0};
    const std::vector<std::size_t> received = {rank == 1 ? kBytes : 0, 0};
    engine.all_to_all(0, memory.data(), memory.data(), sent, received);
    EXPECT_EQ(std::string(RepeatedMemory::kPeriod, 0x5a), memory.content());
  });
}

}  // namespace
}  // namespace aiacc
