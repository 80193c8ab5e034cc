#include "csrc/core/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned char>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out;
}

double microseconds(Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

/// Opens the array. What is added to "ts" for the time since the epoch has Horovod's name.
std::string first_event(int rank) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double epoch = std::chrono::duration<double, std::micro>(now).count();
  char text[160];
  std::snprintf(text,
                sizeof text,
                "[\n"
                R"({"name": "process_name", "ph": "M", "pid": %d, )"
                R"("args": {"name": "rank %d", "start_time_since_epoch_in_micros": %.0f}})",
                rank,
                rank,
                epoch - microseconds(Clock::now()));
  return text;
}

void write_all(int file, const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t now = ::write(file, text.data() + written, text.size() - written);
    if (now < 0 && errno != EINTR) {
      return;  // A full disk must not stop the training.
    }
    written += now > 0 ? static_cast<std::size_t>(now) : 0;
  }
}

}  // namespace

void Timeline::start(const std::string& path, bool mark_rounds) {
  const std::lock_guard control(control_mutex_);
  std::string name = path;
  const std::string placeholder = "{rank}";
  const auto at = name.find(placeholder);
  if (at != std::string::npos) {
    name.replace(at, placeholder.size(), std::to_string(rank_));
  } else if (rank_ != 0) {
    return;
  }
  if (writer_.joinable() && name == path_) {
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
  {
    // Threads that saw the last one on may have recorded after its end.
    const std::lock_guard lock(mutex_);
    queue_.clear();
    stopping_ = false;
  }
  writer_ = std::thread([this, file] { write(file); });
  on_.store(true);
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

void Timeline::write(int file) {
  write_all(file, first_event(rank_));
  std::map<std::string, int> rows;
  bool last = false;
  while (!last) {
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
            R"(, "args": {"name": ")" + escape(event.row) + "\"}}";
      }
      char numbers[160];
      std::snprintf(numbers,
                    sizeof numbers,
                    R"("ph": "X", "pid": %d, "tid": %d, "ts": %.3f, "dur": %.3f, )"
                    R"("args": {"bytes": %llu}})",
                    rank_,
                    row->second,
                    microseconds(event.begin),
                    microseconds(event.end) - microseconds(event.begin),
                    static_cast<unsigned long long>(event.bytes));
      text +=
          ",\n"
          R"({"name": ")" +
          escape(event.name) + R"(", "cat": ")" + escape(event.category) + "\", " + numbers;
    }
    write_all(file, text);
  }
  write_all(file, "\n]\n");
  close(file);
}

}  // namespace aiacc
