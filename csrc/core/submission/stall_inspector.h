#pragma once

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/core/negotiation/message.h"

namespace aiacc {

/// A tensor that some ranks have submitted and others have not.
struct Stall {
  std::string name;
  double waited_s = 0;
  RankSet submitted;  ///< who waits
  RankSet missing;
};

/// Detects and reports tensors that wait for ranks.
///
/// Needs no help from the transport: the question and the answers travel in ordinary rounds, only
/// when something of some rank has waited for `warn_s`. All ranks read the same out of the answers.
/// Threads: the loop thread's only. No I/O.
class StallInspector {
 public:
  StallInspector(double warn_s, double fail_s) : warn_s_(warn_s), fail_s_(fail_s) {}

  /// Whether to ask all ranks, given what is pending here.
  bool should_ask(const std::vector<PendingName>& pending, Clock::time_point now) const;
  /// Somebody has asked all ranks: one question in a period is enough for a job.
  void asked(Clock::time_point now) { asked_ = now; }

  /// What the answers of all ranks say about old tensors, oldest first. Only members of a tensor's
  /// process set can be missing, and no rank that waits in join. Nothing about tensors that the
  /// answers had no room for.
  std::vector<Stall> inspect(const Answers& answers) const;
  /// Whether a stall has lasted so long that the job shall fail (`fail_s`, 0: never).
  bool is_fatal(const Stall& stall) const { return fail_s_ > 0 && stall.waited_s >= fail_s_; }

 private:
  double warn_s_;
  double fail_s_;
  Clock::time_point asked_{};
};

/// A report has no more, since the thread that answers other ranks writes it.
inline constexpr std::size_t kMostStallsShown = 6;

/// Who reports them, of which there are some: of the ranks that wait, the lowest one.
int stall_reporter(const std::vector<Stall>& stalls);

/// "[stall] tensor 'x' has waited 60.0 s for rank(s) 1, 3; rank(s) 0, 2 have submitted it; ...", of
/// the first `kMostStallsShown`. "; rank(s) 1 wait for 'y'" follows if missing ranks have submitted
/// something that the others have not: the first such name in the answers.
std::string stall_text(const std::vector<Stall>& stalls, const Answers& answers);
/// {"tensor": "x", "waited_s": 60.0, "missing_ranks": [1, 3], "submitted_ranks": [0, 2]}
std::string stall_json(const Stall& stall);

/// The file to which stalls are appended as lines of JSON. A thread for each report writes it: the
/// file system may stand still, and the caller answers the other ranks.
class StallFile {
 public:
  /// "": none.
  explicit StallFile(std::string path) : path_(std::move(path)) {}
  StallFile(const StallFile&) = delete;
  StallFile& operator=(const StallFile&) = delete;
  /// Waits a second for a report that is being written.
  ~StallFile();

  /// Appends the first `kMostStallsShown`. Never blocks or throws: what cannot be written is a
  /// warning. Threads: one at a time.
  void append(const std::vector<Stall>& stalls) noexcept;

 private:
  const std::string path_;
  std::future<void> written_;  ///< the last report
};

}  // namespace aiacc
