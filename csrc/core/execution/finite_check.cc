#include "csrc/core/execution/finite_check.h"

#include <algorithm>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/kernels/check_finite.h"

namespace aiacc {
namespace {

/// Warnings of a session: tensors without names count as new ones each time.
constexpr std::size_t kMostWarnings = 1000;

/// Units of a slab, and tensors of each.
constexpr std::size_t kUnits = 64;
constexpr std::size_t kTensors = 256;

std::string label_in_group(const CheckedTensor& tensor) {
  std::string label = "'" + label_of(tensor.process_set, tensor.name) + "'";
  if (tensor.group > 1) {
    label += ", tensor " + std::to_string(tensor.index) + " of " + std::to_string(tensor.group);
  }
  return label;
}

/// "NaN and infinity"
std::string met(const CopyReport& report, const std::string& format) {
  std::string text;
  for (const auto& [yes, what] : {std::pair<std::uint8_t, std::string>{report.nan, "NaN"},
                                  {report.infinite, "infinity"},
                                  {report.overflow, "numbers too large for " + format}}) {
    if (yes != 0) {
      text += (text.empty() ? "" : " and ") + what;
    }
  }
  return text;
}

}  // namespace

FiniteMode finite_mode_from(const std::string& name) {
  for (const auto& [word, mode] : {std::pair{"off", FiniteMode::kOff},
                                   std::pair{"warn", FiniteMode::kWarn},
                                   std::pair{"raise", FiniteMode::kRaise}}) {
    if (name == word) {
      return mode;
    }
  }
  throw Error(Code::kInvalidArgument,
              "[finite] mode '" + name + "' (expected off, warn or raise); set AIACC_CHECK_FINITE");
}

bool has_checked_inputs(const Unit& unit) {
  const OpKind kind = unit.request().kind;
  return (kind == OpKind::kAllreduce || kind == OpKind::kReducescatter) &&
         is_floating(unit.dtype());
}

void describe_inputs(const Unit& unit, CheckedUnit& checked) {
  checked.kind = unit.request().kind;
  checked.dtype = unit.dtype();
  checked.wire = unit.request().wire;
  checked.count = 0;
  for (const Piece& piece : unit.pieces) {
    if (piece.buffers().input == nullptr) {
      continue;  // zeros of a rank that has joined
    }
    if (checked.count == checked.tensors.size()) {
      checked.tensors.emplace_back();
    }
    CheckedTensor& tensor = checked.tensors[checked.count++];
    tensor.name = piece.request().name;
    tensor.process_set = piece.request().process_set;
    tensor.index = piece.tensor;
    tensor.group = static_cast<std::uint32_t>(piece.request().tensors.size());
  }
}

std::string finite_problem(const CopyReport& report,
                           const CheckedTensor& tensor,
                           const CheckedUnit& unit,
                           int rank) {
  const bool narrows = unit.wire != WireFormat::kTensor;
  const std::string what = met(report, narrows ? name_of(unit.wire) : name_of(unit.dtype));
  if (what.empty()) {
    return "";
  }
  return std::string("[finite] ") + name_of(unit.kind) + " " + label_in_group(tensor) + ": rank " +
         std::to_string(rank) + " gave " + what + " (" + name_of(unit.dtype) +
         (narrows ? std::string(" on its way as ") + name_of(unit.wire) : "") +
         "; expected finite numbers); look at what computes it there, or lower the scale of the "
         "loss";
}

ReportPool::ReportPool(const CudaDriver& driver) : driver_(driver) { grow(kUnits, kTensors); }

ReportPool::~ReportPool() {
  for (void* slab : slabs_) {
    AIACC_CUDA_LOG(driver_, host_release, slab);
  }
}

ReportPool::Taken ReportPool::take(const Unit& unit) {
  const std::size_t count = unit.pieces.size();
  const auto fits = [&](const auto& spare) { return spare->capacity >= count; };
  Taken taken(nullptr, GiveBack{this});
  {
    const std::lock_guard lock(mutex_);
    if (std::none_of(spare_.begin(), spare_.end(), fits)) {
      std::size_t capacity = kTensors;
      while (capacity < count) {
        capacity *= 2;
      }
      grow(capacity == kTensors ? kUnits : 1, capacity);
    }
    const auto found = std::find_if(spare_.begin(), spare_.end(), fits);
    taken.reset(found->release());
    spare_.erase(found);
  }
  describe_inputs(unit, *taken);
  std::fill_n(taken->reports, taken->count, CopyReport{});
  return taken;
}

void ReportPool::give_back(CheckedUnit* unit) {
  const std::lock_guard lock(mutex_);
  spare_.emplace_back(unit);
}

/// Needs the lock, except in the constructor.
void ReportPool::grow(std::size_t units, std::size_t capacity) {
  void* slab = nullptr;
  slabs_.reserve(slabs_.size() + 1);
  spare_.reserve(units_ + units);  // so that they can be given back without memory
  AIACC_CUDA_CHECK(
      driver_, host_allocate, &slab, units * capacity * sizeof(CopyReport), kCudaHostPortable);
  slabs_.push_back(slab);
  for (; units > 0; --units, ++units_) {
    spare_.push_back(std::make_unique<CheckedUnit>());
    spare_.back()->reports = static_cast<CopyReport*>(slab) + (units - 1) * capacity;
    spare_.back()->capacity = capacity;
  }
}

FiniteCheck::~FiniteCheck() {
  if (found_) {
    AIACC_LOG(kError) << *found_;
  }
}

void FiniteCheck::inspect(const Unit& unit, const std::vector<SliceMemory>& slices) {
  if (!has_checked_inputs(unit)) {
    return;
  }
  const Request& request = unit.request();
  std::vector<CopyReport> reports;  // empty as long as all is well
  std::size_t seen = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (unit.pieces[i].buffers().input == nullptr) {
      continue;
    }
    const std::size_t count = slices[i].bytes / size_of(unit.dtype());
    const CopyReport report =
        check_finite(slices[i].input, count, unit.dtype(), request.prescale, request.wire);
    if (report.nan != 0 || report.infinite != 0 || report.overflow != 0) {
      reports.resize(slices.size());
      reports[seen] = report;
    }
    ++seen;
  }
  if (reports.empty()) {
    return;
  }
  CheckedUnit checked;
  describe_inputs(unit, checked);
  if (const std::string problem = first_problem(checked, reports.data()); !problem.empty()) {
    throw Error(Code::kNotFinite, problem);
  }
}

void FiniteCheck::collect(const CheckedUnit& unit) {
  std::string problem = first_problem(unit, unit.reports);
  const std::lock_guard lock(mutex_);
  if (!problem.empty() && !found_ && !thrown_) {
    found_ = std::move(problem);
  }
}

bool FiniteCheck::has_found() {
  const std::lock_guard lock(mutex_);
  return found_.has_value();
}

void FiniteCheck::throw_found() {
  const std::lock_guard lock(mutex_);
  if (found_) {
    const Error error(Code::kNotFinite, *found_);
    found_.reset();
    thrown_ = true;
    throw error;
  }
}

/// Warns of all of them, or returns the first one, which is to be thrown.
std::string FiniteCheck::first_problem(const CheckedUnit& unit, const CopyReport* reports) {
  for (std::size_t i = 0; i < unit.count; ++i) {
    const CheckedTensor& tensor = unit.tensors[i];
    const std::string problem = finite_problem(reports[i], tensor, unit, rank_);
    if (problem.empty()) {
      continue;
    }
    if (mode_ == FiniteMode::kRaise) {
      return problem;
    }
    if (is_new(tensor)) {
      AIACC_LOG(kWarning) << problem;
    }
  }
  return "";
}

/// Whether it is to be warned of.
bool FiniteCheck::is_new(const CheckedTensor& tensor) {
  const std::lock_guard lock(mutex_);
  if (warned_.size() >= kMostWarnings || !warned_.insert(label_in_group(tensor)).second) {
    return false;
  }
  if (warned_.size() == kMostWarnings) {
    AIACC_LOG(kWarning) << "[finite] " << kMostWarnings
                        << " tensors with NaN or infinity; what follows is not reported";
  }
  return true;
}

}  // namespace aiacc
