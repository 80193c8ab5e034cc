#include "csrc/core/dispatch/lanes.h"

#include <algorithm>
#include <utility>

namespace aiacc {

LaneReport report_of(std::size_t lane, const UnitWait& unit, double limit_s) {
  LaneReport report;
  report.lane = static_cast<std::uint32_t>(lane);
  report.process_set = unit.id.process_set;
  report.order = unit.id.order;
  report.unit = unit.id.unit;
  if (unit.seconds > 0 && unit.seconds >= limit_s) {
    report.stuck = true;
    report.ahead = unit.ahead;
    report.tensors = unit.name;
  }
  return report;
}

Lanes::Lanes(int numbered, const Run& run, const Prepare& prepare) {
  for (int lane = 0; lane <= numbered; ++lane) {
    Lane::Prepare prepare_here;
    if (prepare) {
      prepare_here = [prepare, lane](const Unit& unit) { prepare(lane, unit); };
    }
    lanes_.push_back(std::make_unique<Lane>(
        lane == numbered ? "express" : "lane " + std::to_string(lane),
        [run, lane](Unit& unit, PackBuffer& buffer) { return run(lane, unit, buffer); },
        std::move(prepare_here)));
  }
}

void Lanes::push(Unit& unit) {
  Lane* lane = lanes_[unit.plan.lane].get();
  const auto is_wanted = [this](const Piece& piece) { return piece.operation == kept_for_; };
  const bool is_short = lane == lanes_.back().get() || unit.plan.bytes <= kept_bytes_;
  if (kept_ == nullptr && is_short &&
      std::any_of(unit.pieces.begin(), unit.pieces.end(), is_wanted)) {
    kept_ = lane;
  }
  lane->push(unit, lane != kept_);
}

Lane* Lanes::take_kept() {
  kept_for_ = nullptr;
  return std::exchange(kept_, nullptr);
}

std::vector<LaneReport> Lanes::reports(const TensorTable& table, double limit_s) const {
  std::vector<LaneReport> reports;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto current = lanes_[lane]->current();
    if (!current) {
      continue;
    }
    const Communicator& communicator = *current->communicator;
    const LaneWait wait =
        current->running ? communicator.engine->waits(static_cast<int>(lane)) : LaneWait{};
    const UnitWait unit{current->id,
                        table.labels(current->operations),
                        wait.seconds,
                        communicator.distance_to(wait)};
    reports.push_back(report_of(lane, unit, limit_s));
  }
  return reports;
}

double Lanes::longest_wait() const {
  double longest = 0;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto current = lanes_[lane]->current();
    if (current && current->running) {
      const LaneWait wait = current->communicator->engine->waits(static_cast<int>(lane));
      longest = std::max(longest, wait.seconds);
    }
  }
  return longest;
}

bool Lanes::drain(Clock::time_point deadline) {
  bool idle = true;
  for (const auto& lane : lanes_) {
    idle = lane->quiesce(deadline) && idle;
  }
  return idle;
}

}  // namespace aiacc
