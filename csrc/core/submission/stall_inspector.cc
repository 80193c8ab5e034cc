#include "csrc/core/submission/stall_inspector.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>

#include "csrc/base/log.h"
#include "csrc/base/text.h"
#include "csrc/base/thread.h"
#include "csrc/core/negotiation/request_matching.h"

namespace aiacc {
namespace {

std::string json_list(const std::vector<int>& ranks) {
  return shape_text({ranks.begin(), ranks.end()});
}

/// "1, 3 to 998".
std::string spans(const std::vector<int>& ranks) {
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

/// Who has submitted it.
RankSet ranks_with(const Answers& answers, const std::string& label) {
  const auto found =
      std::lower_bound(answers.names.begin(),
                       answers.names.end(),
                       label,
                       [](const PendingName& name, const auto& l) { return name.label < l; });
  return found != answers.names.end() && found->label == label ? found->ranks : RankSet();
}

RankSet set_of(const std::vector<int>& ranks) {
  RankSet set;
  for (const int rank : ranks) {
    set.add(rank);
  }
  return set;
}

/// What missing ranks wait for and those that have submitted the tensor do not; "" for nothing. A
/// name that is in the answers is there with all its ranks, also if others found no room.
std::string other_wait_text(const Stall& stall, const Answers& answers) {
  const RankSet missing = set_of(stall.missing);
  const RankSet submitted = set_of(stall.submitted);
  for (const PendingName& name : answers.names) {
    if (name.ranks.meets(missing) && !name.ranks.meets(submitted)) {
      std::vector<int> ranks;
      std::copy_if(
          stall.missing.begin(), stall.missing.end(), std::back_inserter(ranks), [&](int rank) {
            return name.ranks.has(rank);
          });
      return "; rank(s) " + spans(ranks) + " wait for '" + name.label + "'";
    }
  }
  return "";
}

}  // namespace

Clock::time_point StallInspector::next_check(const Pending& pending) const {
  if (pending.empty()) {
    return Clock::time_point::max();
  }
  auto oldest = Clock::time_point::max();
  for (const PendingOperation& operation : pending) {
    oldest = std::min(oldest, operation.submitted);
  }
  auto check = Clock::time_point::max();
  if (warn_s_ > 0) {
    // Once in a period, whoever has asked: what is older by then is in the next report.
    check = std::max(oldest, asked_) + duration_of(warn_s_);
  }
  if (fail_s_ > 0) {
    const auto reached = oldest + duration_of(fail_s_);
    check = std::min(check, reached > asked_ ? reached : asked_ + duration_of(fail_s_));
  }
  return check;
}

bool StallInspector::should_ask(const Pending& pending, Clock::time_point now) {
  if (now < next_check(pending)) {
    return false;
  }
  asked_ = now;
  return true;
}

std::vector<Stall> StallInspector::inspect(const Pending& pending,
                                           const Answers& answers,
                                           const ProcessSetTable& sets,
                                           Clock::time_point now) const {
  const double limit = std::min(warn_s_ > 0 ? warn_s_ : fail_s_, fail_s_ > 0 ? fail_s_ : warn_s_);
  std::vector<Stall> stalls;
  if (limit <= 0) {
    return stalls;
  }
  const RankSet joined = ranks_with(answers, name_of(OpKind::kJoin));
  for (const PendingOperation& operation : pending) {
    Stall stall;
    stall.name = operation.name;
    stall.waited_s = std::chrono::duration<double>(now - operation.submitted).count();
    if (stall.waited_s < limit) {
      continue;
    }
    if (!operation.awaited.empty()) {
      stall.missing = operation.awaited;  // The answers say nothing about messages.
      stalls.push_back(std::move(stall));
      continue;
    }
    const RankSet submitted = ranks_with(answers, operation.name);
    if (submitted.empty() && !answers.complete) {
      continue;
    }
    answers.ranks.for_each([&](int rank) {
      if (submitted.has(rank)) {
        stall.submitted.push_back(rank);
      } else if (sets.index_of(operation.process_set, rank) >= 0 && !joined.has(rank)) {
        stall.missing.push_back(rank);
      }
    });
    stalls.push_back(std::move(stall));
  }
  std::sort(stalls.begin(), stalls.end(), [](const Stall& a, const Stall& b) {
    return a.waited_s > b.waited_s;
  });
  return stalls;
}

std::vector<Stall> stalls_to_report(std::vector<Stall> stalls, int rank) {
  const auto others = [&](const Stall& stall) {
    return stall.missing.empty() || (!stall.submitted.empty() && stall.submitted.front() != rank);
  };
  stalls.erase(std::remove_if(stalls.begin(), stalls.end(), others), stalls.end());
  return stalls;
}

std::string stall_text(const std::vector<Stall>& stalls, const Answers& answers) {
  std::string text = "[stall] ";
  const std::size_t shown = std::min(stalls.size(), kMostStallsShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const Stall& stall = stalls[i];
    text += (i == 0 ? "" : "; ") + std::string("tensor '") + stall.name + "' has waited " +
            fixed(stall.waited_s) + " s for rank(s) " + spans(stall.missing);
    if (!stall.submitted.empty()) {
      text += "; rank(s) " + spans(stall.submitted) + " have submitted it" +
              other_wait_text(stall, answers);
    }
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
