#include "csrc/core/execution/finite_check.h"

#include <utility>

#include "csrc/base/log.h"
#include "csrc/kernels/check_finite.h"

namespace aiacc {
namespace {

/// Warnings of a session: tensors without names count as new ones each time.
constexpr std::size_t kMostWarnings = 1000;

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
  if (name == "off") {
    return FiniteMode::kOff;
  }
  if (name == "warn") {
    return FiniteMode::kWarn;
  }
  if (name == "raise") {
    return FiniteMode::kRaise;
  }
  throw Error(Code::kInvalidArgument,
              "[finite] mode '" + name + "' (expected off, warn or raise); set AIACC_CHECK_FINITE");
}

bool has_checked_inputs(const Unit& unit) {
  const Piece& first = unit.pieces.front();
  const OpKind kind = first.request().kind;
  return (kind == OpKind::kAllreduce || kind == OpKind::kReducescatter) &&
         is_floating(first.spec().dtype);
}

void describe_inputs(const Unit& unit, CheckedUnit& checked) {
  const Piece& first = unit.pieces.front();
  checked.kind = first.request().kind;
  checked.dtype = first.spec().dtype;
  checked.wire = first.request().wire;
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
    tensor.group = static_cast<std::uint32_t>(piece.request().tensors());
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

FiniteCheck::~FiniteCheck() {
  if (found_) {
    AIACC_LOG(kError) << *found_;
  }
}

void FiniteCheck::inspect(const Unit& unit, const std::byte* copies) {
  if (!has_checked_inputs(unit)) {
    return;
  }
  const Piece& first = unit.pieces.front();
  const DataType dtype = first.spec().dtype;
  std::vector<CopyReport> reports;  // empty as long as all is well
  std::size_t seen = 0;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    if (const void* input = unit.pieces[i].buffers().input; input != nullptr) {
      const void* data =
          copies != nullptr ? copies : static_cast<const std::byte*>(input) + slice.offset;
      const CopyReport report = check_finite(data,
                                             slice.bytes / size_of(dtype),
                                             dtype,
                                             first.request().prescale,
                                             first.request().wire);
      if (report.nan != 0 || report.infinite != 0 || report.overflow != 0) {
        reports.resize(unit.pieces.size());
        reports[seen] = report;
      }
      ++seen;
    }
    copies += copies != nullptr ? slice.bytes : 0;
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
    found_any_.store(true);
  }
}

void FiniteCheck::throw_found() {
  const std::lock_guard lock(mutex_);
  if (found_) {
    const Error error(Code::kNotFinite, *found_);
    found_.reset();
    found_any_.store(false);
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
