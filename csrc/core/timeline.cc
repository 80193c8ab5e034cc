#include "csrc/core/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
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
         escape(boot_id()) + "\"}}";
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
    step_ = 0;
    step_began_ = Clock::now();
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
      text +=
          ",\n"
          R"({"name": ")" +
          escape(event.name) + R"(", "cat": ")" + escape(event.category) +
          R"(", "ph": "X", "pid": )" + std::to_string(rank_) + R"(, "tid": )" +
          std::to_string(row->second) + R"(, "ts": )" +
          microseconds(event.begin.time_since_epoch()) + R"(, "dur": )" +
          microseconds(event.end - event.begin) + R"(, "args": {"bytes": )" +
          std::to_string(event.bytes) + "}}";
    }
    write_all(file, text);
  }
  write_all(file, "\n]\n");
  close(file);
}

}  // namespace aiacc
