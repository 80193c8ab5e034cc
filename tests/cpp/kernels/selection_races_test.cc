// The bodies of the CUDA kernels that select with a thread for every block, which waits for the
// others only where the kernel does: ThreadSanitizer sees what one block reads while another writes
// it.

#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/gpu/selection_body.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/selection_check.h"

namespace aiacc {
namespace {

/// The grid as one block sees it.
class GridOfThreads {
 public:
  GridOfThreads(std::uint32_t number, std::uint32_t blocks, pthread_barrier_t& barrier)
      : number_(number), blocks_(blocks), barrier_(barrier) {}
  std::uint32_t size() const { return blocks_; }
  template <class Phase>
  void blocks(Phase phase) {
    HostBlock<SelectThread, SelectShared, kSelectThreads> block(number_, number_ % 2 != 0);
    phase(block);
    pthread_barrier_wait(&barrier_);
  }
  template <class Phase>
  void one(Phase phase) {
    if (number_ == 0) {
      phase();
    }
    pthread_barrier_wait(&barrier_);
  }

 private:
  const std::uint32_t number_;
  const std::uint32_t blocks_;
  pthread_barrier_t& barrier_;
};

/// Calls kernel(grid) in a thread for every block.
template <class Kernel>
void launch(std::uint32_t blocks, Kernel kernel) {
  pthread_barrier_t barrier;
  ASSERT_EQ(0, pthread_barrier_init(&barrier, nullptr, blocks));
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
  pthread_barrier_destroy(&barrier);
}

void select_by_threads(const SelectPlan& plan, std::uint32_t resident) {
  const std::uint32_t blocks = select_blocks(plan, resident);
  launch(blocks, [&](auto& grid) { begin_selection(grid, plan); });
  launch(blocks, [&](auto& grid) { scan_for_candidates(grid, plan); });
  launch(blocks, [&](auto& grid) { finish_selection(grid, plan); });
}

using SelectionRacesTest = GpuKernelsTest;

TEST_F(SelectionRacesTest, BlocksThatRunAtWillGiveTheBitsOfTheCpu) {
  constexpr std::size_t kSampled = kSelectLeastSampled + 5;  // a sample foretells the threshold
  std::vector<std::pair<SelectionCase, Shape>> cases = {
      {{SelectMode::kTracked, kSampled, 2000}, Shape::kLayers},
      {{SelectMode::kExact, kSampled, 2000}, Shape::kGaussian}};
  for (const SelectMode mode : kGpuSelectModes) {
    for (const Shape shape : {Shape::kGaussian, Shape::kFewValues, Shape::kZero}) {
      cases.push_back({{mode, 20011, 200}, shape});
    }
  }
  for (const auto& [job, shape] : cases) {
    SelectionOfBoth both(rig_, job);
    for (std::uint32_t step = 0; step < 4; ++step) {
      std::vector<float> in = elements_of(shape, job.count, step);
      in[job.count / 2] = step == 2 ? INFINITY : in[job.count / 2];
      ASSERT_EQ("", both.step(in, [](const SelectPlan& plan) { select_by_threads(plan, 4); }))
          << "shape " << static_cast<int>(shape);
    }
  }
}

}  // namespace
}  // namespace aiacc
