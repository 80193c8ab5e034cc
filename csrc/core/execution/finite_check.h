#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/core/execution/unit.h"
#include "csrc/cuda/driver.h"
#include "csrc/kernels/batch_copy.h"

namespace aiacc {

/// What AIACC_CHECK_FINITE asks for, when an input of a reduction on this rank has NaN or infinity.
enum class FiniteMode : std::uint8_t {
  kOff,
  kWarn,   ///< a line in the log, once for a tensor
  kRaise,  ///< the job fails, on every rank
};

/// "off", "warn", "raise". Throws Error(kInvalidArgument) for another word.
FiniteMode finite_mode_from(const std::string& name);

/// A tensor that is looked at, told apart from others also when its operation is gone.
struct CheckedTensor {
  std::string name;
  std::uint32_t process_set = 0;
  std::uint32_t index = 0;  ///< in its group
  std::uint32_t group = 1;  ///< tensors of the group
};

/// A unit on a GPU whose inputs are looked at on their way.
struct CheckedUnit {
  CopyReport* reports = nullptr;  ///< one for each tensor; the GPU writes it until the unit is over
  std::size_t capacity = 0;       ///< of `reports`
  std::size_t count = 0;          ///< tensors, the first ones of `tensors`
  std::vector<CheckedTensor> tensors;
  OpKind kind = OpKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  WireFormat wire = WireFormat::kTensor;
};

/// Whether inputs of a unit can be other than finite numbers, and are added up: all-reduce and
/// reduce-scatter of floats.
bool has_checked_inputs(const Unit& unit);

/// The tensors of a unit that have memory, in its order, into `checked`; allocates only for what
/// `checked` has not held before.
void describe_inputs(const Unit& unit, CheckedUnit& checked);

/// One tensor's report in words, for log and error; "" if it is finite. Pure.
std::string finite_problem(const CopyReport& report,
                           const CheckedTensor& tensor,
                           const CheckedUnit& unit,
                           int rank);

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
  std::size_t units_ = 0;  ///< that there are
  std::vector<std::unique_ptr<CheckedUnit>> spare_;
};

/// Looks at what this rank gives to reductions, before it is added to what others give: so it is
/// the rank with the NaN that names it.
///
/// Threads: any.
class FiniteCheck {
 public:
  /// `mode` is not kOff: without a check there is no such object.
  FiniteCheck(FiniteMode mode, int rank) : mode_(mode), rank_(rank) {}
  /// Logs what came too late to be thrown.
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  /// Looks at a unit in the calling thread. `slices`: where its inputs lie in host memory. Throws
  /// Error(kNotFinite) if it shall.
  void inspect(const Unit& unit, const std::vector<SliceMemory>& slices);

  /// Takes what the GPU has found in a unit that is over. What it shall throw waits for
  /// `throw_found`.
  void collect(const CheckedUnit& unit);
  bool has_found();
  /// Throws Error(kNotFinite) with the first that `collect` has met; only once.
  void throw_found();

 private:
  std::string first_problem(const CheckedUnit& unit, const CopyReport* reports);
  bool is_new(const CheckedTensor& tensor);

  const FiniteMode mode_;
  const int rank_;
  std::mutex mutex_;
  std::optional<std::string> found_;
  bool thrown_ = false;  ///< one is enough
  std::unordered_set<std::string> warned_;
};

}  // namespace aiacc
