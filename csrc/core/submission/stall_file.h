#pragma once

#include <future>
#include <string>
#include <vector>

#include "csrc/core/submission/stall_inspector.h"

namespace aiacc {

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
