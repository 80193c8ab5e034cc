#include "csrc/core/execution/gpu/report_pool.h"

#include <algorithm>

namespace aiacc {
namespace {

/// Units of a slab, and tensors of each.
constexpr std::size_t kUnits = 64;
constexpr std::size_t kTensors = 256;

}  // namespace

ReportPool::ReportPool(const CudaDriver& driver) : driver_(driver) { grow(kUnits, kTensors); }

ReportPool::~ReportPool() {
  for (void* slab : slabs_) {
    AIACC_CUDA_LOG(driver_, host_release, slab);
  }
}

ReportPool::Taken ReportPool::take(const Unit& unit) {
  const std::size_t count = unit.pieces.size();
  const auto fits = [&](const CheckedUnit* spare) { return spare->capacity >= count; };
  CheckedUnit* taken = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto found = std::find_if(spare_.begin(), spare_.end(), fits);
    if (found == spare_.end()) {
      std::size_t capacity = kTensors;
      while (capacity < count) {
        capacity *= 2;
      }
      grow(capacity == kTensors ? kUnits : 1, capacity);
      found = std::find_if(spare_.begin(), spare_.end(), fits);
    }
    taken = *found;
    spare_.erase(found);
  }
  describe_inputs(unit, *taken);
  std::fill_n(taken->reports, taken->count, CopyReport{});
  return Taken(taken, GiveBack{this});
}

void ReportPool::give_back(CheckedUnit* unit) {
  const std::lock_guard lock(mutex_);
  spare_.push_back(unit);
}

/// Needs the lock, except in the constructor.
void ReportPool::grow(std::size_t units, std::size_t capacity) {
  void* slab = nullptr;
  slabs_.reserve(slabs_.size() + 1);
  all_.reserve(all_.size() + units);
  spare_.reserve(all_.size() + units);
  AIACC_CUDA_CHECK(
      driver_, host_allocate, &slab, units * capacity * sizeof(CopyReport), kCudaHostPortable);
  slabs_.push_back(slab);
  for (std::size_t i = 0; i < units; ++i) {
    all_.push_back(std::make_unique<CheckedUnit>());
    all_.back()->reports = static_cast<CopyReport*>(slab) + i * capacity;
    all_.back()->capacity = capacity;
    spare_.push_back(all_.back().get());
  }
}

}  // namespace aiacc
