#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/core/execution/finite_check.h"
#include "csrc/cuda/driver.h"

namespace aiacc {

/// Pinned memory for the reports of checked copies, which kernels write and the host reads. UVA
/// gives it the same address on both.
///
/// Threads: any.
class ReportPool {
 public:
  /// Takes memory for the units of a usual step. The context is current here and in the destructor.
  explicit ReportPool(const CudaDriver& driver);
  /// When the GPU is past everything that has been taken.
  ~ReportPool();
  ReportPool(const ReportPool&) = delete;
  ReportPool& operator=(const ReportPool&) = delete;

  struct GiveBack {
    ReportPool* pool = nullptr;
    void operator()(CheckedUnit* unit) const { pool->give_back(unit); }
  };
  /// Goes back to the pool, which outlives it, when the GPU is past it.
  using Taken = std::unique_ptr<CheckedUnit, GiveBack>;

  /// For the inputs of a unit, described, with reports that are zero. Needs the context. Allocates,
  /// which may wait for the GPU, when more units are under way, or larger ones, than ever before.
  Taken take(const Unit& unit);

 private:
  void give_back(CheckedUnit* unit);
  void grow(std::size_t units, std::size_t capacity);

  const CudaDriver& driver_;
  std::mutex mutex_;
  std::vector<void*> slabs_;
  std::vector<std::unique_ptr<CheckedUnit>> all_;
  std::vector<CheckedUnit*> spare_;
};

}  // namespace aiacc
