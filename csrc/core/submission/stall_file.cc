#include "csrc/core/submission/stall_file.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>

#include "csrc/base/log.h"
#include "csrc/base/thread.h"

namespace aiacc {

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
