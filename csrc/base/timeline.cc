#include "csrc/base/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/text.h"
#include "csrc/base/thread.h"

namespace aiacc {
namespace {

/// As "12.345". Not by printf's %f, which writes a comma where the locale of the process has one.
std::string microseconds(std::chrono::nanoseconds time) {
  char text[40];
  const auto ns = static_cast<long long>(std::max(time.count(), std::int64_t{0}));
  std::snprintf(text, sizeof text, "%lld.%03lld", ns / 1000, ns % 1000);
  return text;
}

/// Of this host, since it came up; "" if the system does not tell.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

/// Opens the array. What is added to "ts" for the time since the epoch has Horovod's name.
std::string first_event(int rank) {
  const auto offset =
      std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
  const auto epoch = std::chrono::duration_cast<std::chrono::microseconds>(offset).count();
  const std::string number = std::to_string(rank);
  return "[\n"
         R"({"name": "process_name", "ph": "M", "pid": )" +
         number + R"(, "args": {"name": "rank )" + number +
         R"(", "start_time_since_epoch_in_micros": )" + std::to_string(epoch) + R"(, "boot": ")" +
         json_text(boot_id()) + "\"}}";
}

constexpr std::string_view kEnd = "\n]\n";
constexpr std::string_view kBetween = ",\n";  // of events; no name contains it

/// Returns 0, or errno's value after `written` bytes.
int write_all(int file, std::string_view text, std::size_t& written) {
  written = 0;
  while (written < text.size()) {
    const ssize_t now = ::write(file, text.data() + written, text.size() - written);
    if (now < 0 && errno == EINTR) {
      continue;
    }
    if (now <= 0) {
      return now < 0 ? errno : ENOSPC;
    }
    written += static_cast<std::size_t>(now);
  }
  return 0;
}

/// The array of events in a file, which it closes.
class EventFile {
 public:
  explicit EventFile(int file) : file_(file) {}
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }

  /// Returns 0, or errno's value: then the file has ended with as many whole events as there was
  /// room for, and there must be no further call.
  int append(const std::string& text) {
    std::size_t written = 0;
    const int error = write_all(file_, text, written);
    if (error != 0) {
      end_early(text, written);
      return error;
    }
    const auto last = text.rfind(kBetween);
    last_event_ = last == std::string::npos ? last_event_ : size_ + last;
    size_ += text.size();
    return 0;
  }

  int close() {
    const int error = append(std::string(kEnd));
    // A network's file system may tell only now.
    return ::close(std::exchange(file_, -1)) != 0 && error == 0 ? errno : error;
  }

 private:
  void end_early(const std::string& text, std::size_t written) {
    std::size_t size = last_event_ > 0 && written < kEnd.size() ? last_event_ : size_;
    if (written >= kEnd.size()) {
      const auto last = text.rfind(kBetween, written - kEnd.size());
      size += last == std::string::npos ? 0 : last;
    }
    if (cut(size) && size > 0 && write_all(file_, kEnd, written) != 0) {
      cut(size);
    }
  }

  bool cut(std::size_t size) {
    const auto at = static_cast<off_t>(size);
    return ftruncate(file_, at) == 0 && lseek(file_, at, SEEK_SET) == at;
  }

  int file_;
  std::size_t size_ = 0;
  std::size_t last_event_ = 0;  ///< where it begins; 0: there is none that could be left out
};

}  // namespace

std::string timeline_path(const std::string& path, int rank) {
  const std::string number = std::to_string(rank);
  const std::string placeholder = "{rank}";
  const auto at = path.find(placeholder);
  if (at != std::string::npos) {
    return std::string(path).replace(at, placeholder.size(), number);
  }
  if (rank == 0) {
    return path;
  }
  const auto name = path.rfind('/') + 1;  // 0 without a folder
  const auto dot = path.rfind('.');
  const auto end = dot == std::string::npos || dot <= name ? path.size() : dot;
  return path.substr(0, end) + ".rank" + number + path.substr(end);
}

void Timeline::start(const std::string& path, bool mark_rounds) {
  const std::lock_guard control(control_mutex_);
  const std::string name = timeline_path(path, rank_);
  if (on() && name == path_) {
    mark_rounds_.store(mark_rounds);
    return;
  }
  const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) {
    throw system_error(Code::kInvalidArgument, "[timeline] cannot write '" + name + "'", errno);
  }
  end();
  path_ = name;
  mark_rounds_.store(mark_rounds);
  try {
    // Threads that saw the last one on may have recorded after its end.
    const std::lock_guard lock(mutex_);
    queue_.clear();
    stopping_ = false;
    step_ = 0;
    step_began_ = Clock::now();
    writer_ = start_thread("aiacc timeline", [this, file] { write(file); });
    on_.store(true);
  } catch (...) {
    close(file);
    throw;
  }
}

void Timeline::stop() {
  const std::lock_guard control(control_mutex_);
  end();
}

void Timeline::end() {
  on_.store(false);
  if (!writer_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  writer_.join();
}

void Timeline::record(const std::string& name,
                      const std::string& category,
                      const std::string& row,
                      Clock::time_point begin,
                      Clock::time_point end,
                      std::uint64_t bytes) {
  if (!on()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({name, category, row, begin, end, bytes});
  }
  changed_.notify_one();
}

void Timeline::mark_step() {
  if (!on()) {
    return;
  }
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({"step " + std::to_string(step_++), "STEP", "steps", step_began_, now, 0});
    step_began_ = now;
  }
  changed_.notify_one();
}

void Timeline::write(int descriptor) {
  EventFile file(descriptor);
  int error = file.append(first_event(rank_));
  std::map<std::string, int> rows;
  bool last = false;
  while (error == 0 && !last) {
    std::vector<Event> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      last = stopping_;
      batch.swap(queue_);
    }
    std::string text;
    for (const Event& event : batch) {
      const auto [row, added] = rows.emplace(event.row, static_cast<int>(rows.size()));
      if (added) {
        text +=
            ",\n"
            R"({"name": "thread_name", "ph": "M", "pid": )" +
            std::to_string(rank_) + R"(, "tid": )" + std::to_string(row->second) +
            R"(, "args": {"name": ")" + json_text(event.row) + "\"}}";
      }
      text +=
          ",\n"
          R"({"name": ")" +
          json_text(event.name) + R"(", "cat": ")" + json_text(event.category) +
          R"(", "ph": "X", "pid": )" + std::to_string(rank_) + R"(, "tid": )" +
          std::to_string(row->second) + R"(, "ts": )" +
          microseconds(event.begin.time_since_epoch()) + R"(, "dur": )" +
          microseconds(event.end - event.begin) + R"(, "args": {"bytes": )" +
          std::to_string(event.bytes) + "}}";
    }
    error = file.append(text);
  }
  if (error == 0) {
    error = file.close();
  }
  if (error != 0) {
    end_early(error);
  }
}

void Timeline::end_early(int error) {
  {
    const std::lock_guard lock(mutex_);
    on_.store(false);
    queue_.clear();
  }
  const std::string what = "[timeline] '" + path_ +
                           "' ends here, and the job goes on; make room, or choose another file "
                           "(AIACC_TIMELINE)";
  AIACC_LOG(kWarning) << system_error(Code::kEngine, what, error).what();
}

}  // namespace aiacc
