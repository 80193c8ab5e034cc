// The bodies of the CUDA kernels that select with a thread for every block, which waits for the
// others only where the kernel does: ThreadSanitizer sees what one block reads while another writes
// it.

#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/gpu/selection_body.h"
#include "tests/cpp/kernels/selection/distributions.h"

namespace aiacc {
namespace {

class Barrier {
 public:
  explicit Barrier(std::uint32_t threads) : threads_(threads) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint32_t turn = turn_;
    if (++waiting_ == threads_) {
      waiting_ = 0;
      ++turn_;
      all_came_.notify_all();
    } else {
      all_came_.wait(lock, [&] { return turn_ != turn; });
    }
  }

 private:
  const std::uint32_t threads_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  std::uint32_t waiting_ = 0;
  std::uint32_t turn_ = 0;
};

/// The grid as one block sees it.
class GridOfThreads {
 public:
  GridOfThreads(std::uint32_t number, std::uint32_t blocks, Barrier& barrier)
      : number_(number), blocks_(blocks), barrier_(barrier) {}
  std::uint32_t size() const { return blocks_; }
  template <class Phase>
  void blocks(Phase phase) {
    HostBlock<SelectThread, SelectShared, kSelectThreads> block(number_, number_ % 2 != 0);
    phase(block);
    barrier_.wait();
  }
  template <class Phase>
  void one(Phase phase) {
    if (number_ == 0) {
      phase();
    }
    barrier_.wait();
  }

 private:
  const std::uint32_t number_;
  const std::uint32_t blocks_;
  Barrier& barrier_;
};

/// Calls kernel(grid) in a thread for every block.
template <class Kernel>
void launch(std::uint32_t blocks, Kernel kernel) {
  Barrier barrier(blocks);
  std::vector<std::thread> threads;
  for (std::uint32_t number = 0; number < blocks; ++number) {
    threads.emplace_back([&, number] {
      GridOfThreads grid(number, blocks, barrier);
      kernel(grid);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void select_by_threads(const SelectPlan& plan, std::uint32_t resident) {
  const std::uint32_t blocks = select_blocks(plan, resident);
  launch(blocks, [&](auto& grid) { begin_selection(grid, plan); });
  launch(blocks, [&](auto& grid) { scan_for_candidates(grid, plan); });
  launch(blocks, [&](auto& grid) { finish_selection(grid, plan); });
}

/// What differs from the CPU's selection in some steps of a buffer, or "".
std::string difference(std::size_t count, std::size_t k, SelectMode mode, Shape shape) {
  std::vector<float> residuals[2] = {std::vector<float>(count), std::vector<float>(count)};
  std::vector<float> expected_residual(count);
  std::vector<unsigned char> workspace(select_workspace_bytes(count, k));
  SelectState state = {};
  ThresholdTrack track;
  SelectScratch scratch;
  for (std::uint32_t step = 0; step < 4; ++step) {
    std::vector<float> in = elements_of(shape, count, step);
    if (step == 2) {
      in[count / 2] = INFINITY;
    }
    std::vector<std::uint32_t> expected(2 * k);
    select_largest(expected.data(),
                   in.data(),
                   expected_residual.data(),
                   count,
                   k,
                   0.5F,
                   mode,
                   step,
                   track,
                   scratch);
    std::vector<std::uint32_t> wire(2 * k);
    std::vector<float>& residual = residuals[1 - step % 2];
    select_by_threads(plan_selection(wire.data(),
                                     in.data(),
                                     residuals[step % 2].data(),
                                     residual.data(),
                                     count,
                                     k,
                                     0.5F,
                                     mode,
                                     step,
                                     &state,
                                     workspace.data()),
                      4);
    if (expected != wire) {
      return "pairs of step " + std::to_string(step);
    }
    if (std::memcmp(expected_residual.data(), residual.data(), count * sizeof(float)) != 0) {
      return "residual of step " + std::to_string(step);
    }
  }
  return "";
}

TEST(SelectionRaces, BlocksThatRunAtWillGiveTheBitsOfTheCpu) {
  for (const SelectMode mode : {SelectMode::kTracked, SelectMode::kExact, SelectMode::kReference}) {
    for (const Shape shape : {Shape::kGaussian, Shape::kFewValues, Shape::kZero}) {
      EXPECT_EQ("", difference(20011, 200, mode, shape))
          << static_cast<int>(mode) << " " << static_cast<int>(shape);
    }
  }
}

TEST(SelectionRaces, AlsoWhereASampleForetellsTheThreshold) {
  EXPECT_EQ("", difference(kSelectLeastSampled + 5, 2000, SelectMode::kTracked, Shape::kLayers));
  EXPECT_EQ("", difference(kSelectLeastSampled + 5, 2000, SelectMode::kExact, Shape::kGaussian));
}

}  // namespace
}  // namespace aiacc
