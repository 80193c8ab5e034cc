#include "csrc/core/dispatch/dead_unit.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace aiacc {
namespace {

auto dispatch_order(const LaneReport& unit) {
  return std::tie(unit.order, unit.process_set, unit.unit);
}

/// What each rank says of each lane.
using Lanes = std::map<std::pair<int, std::uint32_t>, const LaneReport*>;

Lanes lanes_of(const Answers& answers) {
  Lanes lanes;
  for (const LaneAnswer& answer : answers.lanes) {
    answer.ranks.for_each([&](int rank) { lanes[{rank, answer.report.lane}] = &answer.report; });
  }
  return lanes;
}

/// Null if the lane is idle.
const LaneReport* lane_of(const Lanes& lanes, int rank, std::uint32_t lane) {
  const auto found = lanes.find({rank, lane});
  return found == lanes.end() ? nullptr : found->second;
}

bool keeps_alive(const LaneReport* current, const LaneReport& unit) {
  if (current == nullptr || dispatch_order(*current) > dispatch_order(unit)) {
    return false;
  }
  return dispatch_order(*current) < dispatch_order(unit) || !current->stuck;
}

std::string describe(const LaneReport& unit,
                     const std::vector<int>& members,
                     const Lanes& lanes,
                     double limit_s) {
  std::string waiting;
  std::string done;
  for (std::size_t member = 0; member < members.size(); ++member) {
    const int rank = members[member];
    const LaneReport* current = lane_of(lanes, rank, unit.lane);
    const bool inside = current != nullptr && dispatch_order(*current) == dispatch_order(unit);
    std::string& list = inside ? waiting : done;
    list += (list.empty() ? "" : ", ") + std::to_string(rank);
    if (inside && current->ahead > 0) {
      const int awaited = members[(member + current->ahead) % members.size()];
      list += " (for rank " + std::to_string(awaited) + ")";
    }
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", limit_s);
  return "[core] unit " + std::to_string(unit.unit) + " of process set " +
         std::to_string(unit.process_set) + " on lane " + std::to_string(unit.lane) + " (" +
         unit.tensors + ") can never end: nothing has moved for at least " + seconds +
         " s, rank(s) " + waiting + " wait in it, rank(s) " + (done.empty() ? "none" : done) +
         " are done with it or never had it; the ranks disagree about what they have agreed on, "
         "this is a bug in aiacc, please report it";
}

}  // namespace

std::optional<DeadUnit> dead_unit(const Answers& answers,
                                  const ProcessSetTable& sets,
                                  double limit_s) {
  if (!answers.lanes_complete) {
    return std::nullopt;  // What is missing would look idle.
  }
  const Lanes lanes = lanes_of(answers);
  const LaneReport* first = nullptr;
  for (const LaneAnswer& answer : answers.lanes) {
    const LaneReport& unit = answer.report;
    const auto members = sets.members(unit.process_set);
    if (!unit.stuck || members == nullptr ||
        (first != nullptr && dispatch_order(*first) <= dispatch_order(unit))) {
      continue;
    }
    const bool alive = std::any_of(members->begin(), members->end(), [&](int rank) {
      return !answers.ranks.has(rank) || keeps_alive(lane_of(lanes, rank, unit.lane), unit);
    });
    first = alive ? first : &unit;
  }
  if (first == nullptr) {
    return std::nullopt;
  }
  return DeadUnit{first->order,
                  first->process_set,
                  first->unit,
                  describe(*first, *sets.members(first->process_set), lanes, limit_s)};
}

bool DeadUnitWatch::should_ask(Clock::time_point now) {
  if (now < ask_at_) {
    return false;
  }
  ask_at_ = now + duration_of(limit_s_);
  return true;
}

double DeadUnitWatch::limit_s(Clock::time_point now) const {
  return now < doubt_to_ ? std::numeric_limits<double>::infinity() : limit_s_;
}

std::optional<std::string> DeadUnitWatch::proof(std::optional<DeadUnit> dead,
                                                Clock::time_point now) {
  if (dead && suspect_ == dead) {
    return dead->text;
  }
  suspect_ = std::move(dead);
  if (suspect_) {
    doubt_to_ = now + duration_of(limit_s_ / 8);
    ask_at_ =
        now + duration_of(limit_s_ / 4);  // when others doubt no more, though they began later
  }
  return std::nullopt;
}

}  // namespace aiacc
