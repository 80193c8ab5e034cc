#include "csrc/core/submission/stall_inspector.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <tuple>

#include "csrc/base/log.h"
#include "csrc/base/text.h"
#include "csrc/base/thread.h"
#include "csrc/core/negotiation/request_matching.h"

namespace aiacc {
namespace {

std::string json_list(const RankSet& ranks) {
  const std::vector<int> list = ranks.ranks();
  return shape_text({list.begin(), list.end()});
}

/// "1, 3 to 998".
std::string spans(const RankSet& set) {
  const std::vector<int> ranks = set.ranks();
  std::string text;
  for (std::size_t first = 0, next = 0; first < ranks.size(); first = next) {
    for (next = first + 1; next < ranks.size() && ranks[next] == ranks[next - 1] + 1; ++next) {
    }
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[first]);
    if (next - first > 1) {
      text += (next - first > 2 ? " to " : ", ") + std::to_string(ranks[next - 1]);
    }
  }
  return text;
}

std::string fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// What missing ranks wait for and those that have submitted the tensor do not; "" for nothing. A
/// name that is in the answers is there with all its ranks, also if others found no room.
std::string other_wait_text(const Stall& stall, const Answers& answers) {
  for (const PendingName& name : answers.names) {
    if (name.ranks.meets(stall.missing) && !name.ranks.meets(stall.submitted)) {
      const RankSet others = name.ranks.without(stall.missing);
      return "; rank(s) " + spans(name.ranks.without(others)) + " wait for '" + name.label + "'";
    }
  }
  return "";
}

}  // namespace

bool StallInspector::should_ask(const std::vector<PendingName>& pending,
                                Clock::time_point now) const {
  std::uint32_t waited_ms = 0;
  for (const PendingName& name : pending) {
    waited_ms = std::max(waited_ms, name.waited_ms);
  }
  const auto oldest = now - std::chrono::milliseconds(waited_ms);
  // Once in a period, whoever has asked: what is older by then is in the next report.
  const bool warns = warn_s_ > 0 && now >= std::max(oldest, asked_) + duration_of(warn_s_);
  const auto reached = oldest + duration_of(fail_s_);
  return warns ||
         (fail_s_ > 0 && now >= (reached > asked_ ? reached : asked_ + duration_of(fail_s_)));
}

std::vector<Stall> StallInspector::inspect(const Answers& answers) const {
  const double limit = std::min(warn_s_ > 0 ? warn_s_ : fail_s_, fail_s_ > 0 ? fail_s_ : warn_s_);
  std::vector<Stall> stalls;
  if (limit <= 0) {
    return stalls;
  }
  const auto join =
      std::find_if(answers.names.begin(), answers.names.end(), [](const PendingName& name) {
        return name.label == name_of(OpKind::kJoin);
      });
  const RankSet joined = join == answers.names.end() ? RankSet() : join->ranks;
  for (const PendingName& name : answers.names) {
    const double waited_s = name.waited_ms / 1000.0;
    const RankSet missing =
        name.is_message ? name.awaited : name.awaited.without(name.ranks).without(joined);
    if (waited_s >= limit && !missing.empty()) {
      stalls.push_back({name.label, waited_s, name.ranks, missing});
    }
  }
  std::sort(stalls.begin(), stalls.end(), [](const Stall& a, const Stall& b) {
    return std::tie(b.waited_s, a.name) < std::tie(a.waited_s, b.name);
  });
  return stalls;
}

int stall_reporter(const std::vector<Stall>& stalls) {
  int lowest = stalls.front().submitted.first();
  for (const Stall& stall : stalls) {
    lowest = std::min(lowest, stall.submitted.first());
  }
  return lowest;
}

std::string stall_text(const std::vector<Stall>& stalls, const Answers& answers) {
  std::string text = "[stall] ";
  const std::size_t shown = std::min(stalls.size(), kMostStallsShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const Stall& stall = stalls[i];
    text += (i == 0 ? "" : "; ") + std::string("tensor '") + stall.name + "' has waited " +
            fixed(stall.waited_s) + " s for rank(s) " + spans(stall.missing) + "; rank(s) " +
            spans(stall.submitted) + " have submitted it" + other_wait_text(stall, answers);
  }
  if (shown < stalls.size()) {
    text += "; " + std::to_string(stalls.size() - shown) + " more tensors wait";
  }
  return text + ". Do all ranks run the same operations? (AIACC_STALL_WARN_S, AIACC_STALL_FAIL_S)";
}

std::string stall_json(const Stall& stall) {
  return R"({"tensor": ")" + json_text(stall.name) + R"(", "waited_s": )" + fixed(stall.waited_s) +
         R"(, "missing_ranks": )" + json_list(stall.missing) + R"(, "submitted_ranks": )" +
         json_list(stall.submitted) + "}";
}

StallFile::~StallFile() {
  if (written_.valid()) {
    written_.wait_for(std::chrono::seconds(1));
  }
}

void StallFile::append(const std::vector<Stall>& stalls) noexcept {
  if (path_.empty()) {
    return;
  }
  try {
    if (written_.valid() &&
        written_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      AIACC_LOG(kWarning) << "[stall] AIACC_STALL_FILE=" << path_
                          << " lacks this report: the last one is still being written";
      return;
    }
    std::string lines;
    for (std::size_t i = 0; i < std::min(stalls.size(), kMostStallsShown); ++i) {
      lines += stall_json(stalls[i]) + '\n';
    }
    const auto done = std::make_shared<std::promise<void>>();
    written_ = done->get_future();
    start_thread("aiacc stalls", [path = path_, lines, done] {
      if (!(std::ofstream(path, std::ios::app) << lines << std::flush)) {
        AIACC_LOG(kWarning) << "[stall] cannot write to AIACC_STALL_FILE=" << path
                            << "; is the disk full?";
      }
      done->set_value();
    }).detach();
  } catch (const std::exception& error) {  // no room for a thread
    AIACC_LOG(kWarning) << "[stall] AIACC_STALL_FILE=" << path_
                        << " lacks this report: " << error.what();
  }
}

}  // namespace aiacc
