#include "csrc/base/timeline.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/text.h"
#include "csrc/base/thread.h"

namespace aiacc {
namespace {

/// Whole ones, as in "ts": what nests does so when it is rounded down, and no reader loses a digit.
std::int64_t microseconds(Clock::time_point time) {
  return std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch()).count();
}

/// What tells this host, since it came up, from all others; "" if the system does not say.
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

/// Throws for a folder or a device: other ranks would write beside it, "/dev/null.rank1" for one. A
/// FIFO somebody may read.
void check_is_file(const std::string& path) {
  struct stat found{};
  if (stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode) && !S_ISFIFO(found.st_mode)) {
    throw Error(Code::kInvalidArgument,
                "[timeline] cannot write '" + path + "', which is a " +
                    (S_ISDIR(found.st_mode) ? "folder" : "device or the like") +
                    " (expected a file, new or not); name one, as in /tmp/timeline.json");
  }
}

/// The array of events in a file, which it closes.
class EventFile {
 public:
  explicit EventFile(int descriptor) : file_(descriptor) {}
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }

  int descriptor() const { return file_; }

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

struct Timeline::Event {
  std::string name;
  std::string category;
  std::string row;
  Clock::time_point begin;
  Clock::time_point end;
  std::uint64_t bytes;
};

/// What recording threads and the writer have in common.
struct Timeline::Queue {
  std::atomic<bool> on{false};
  std::mutex mutex;  ///< protects what follows
  std::condition_variable changed;
  std::vector<Event> events;
  std::size_t bytes = 0;       ///< that the events take
  std::uint64_t left_out = 0;  ///< events for which there was no room
  int step = 0;                ///< number of the next
  Clock::time_point step_began{};
  bool stopping = false;
  std::uint64_t file = 0;     ///< number of the one that is written
  std::uint64_t written = 0;  ///< number of the last one whose writer has ended

  // With the lock.
  void begin_file() {
    ++file;
    events.clear();
    bytes = 0;
    left_out = 0;
    step = 0;
    step_began = Clock::now();
    stopping = false;
  }
  void push(Event event) {
    const std::size_t more =
        sizeof event + event.name.size() + event.category.size() + event.row.size();
    if (bytes + more > kMostBytes) {
      ++left_out;
      return;
    }
    bytes += more;
    events.push_back(std::move(event));
  }
};

/// Writes one file, in a thread of its own.
///
/// The thread may hang in a system call for as long as the file system stands still, and the
/// timeline does not wait for it for ever. So it must not touch the timeline, only the queue and
/// what is here; nor may it say or write anything once its file is not the one that is written.
class Timeline::Writer {
 public:
  Writer(std::shared_ptr<Queue> queue, std::uint64_t file, std::string path, int rank)
      : queue_(std::move(queue)), file_(file), path_(std::move(path)), rank_(rank) {}

  void run(EventFile& output) {
    int error = output.append(first_event(rank_));
    std::vector<Event> batch;
    bool last = false;
    while (error == 0 && !last) {
      batch.clear();
      {
        std::unique_lock lock(queue_->mutex);
        queue_->changed.wait(
            lock, [this] { return queue_->stopping || is_left() || !queue_->events.empty(); });
        if (is_left()) {
          return;
        }
        last = queue_->stopping;
        batch.swap(queue_->events);
        queue_->bytes = 0;
      }
      std::string text;
      for (const Event& event : batch) {
        add(event, text);
      }
      error = output.append(text);
    }
    if (error == 0) {
      error = output.close();
    }
    const std::lock_guard lock(queue_->mutex);
    if (!is_left()) {
      end(error);
    }
  }

 private:
  struct Row {
    int number = 0;
    std::int64_t end = 0;  ///< of its last slice
  };

  /// With the lock.
  bool is_left() const { return queue_->file != file_; }

  void add(const Event& event, std::string& text) {
    const std::int64_t begin = microseconds(event.begin);
    const std::int64_t end = std::max(microseconds(event.end), begin);
    const std::string args = R"(, "args": {"bytes": )" + std::to_string(event.bytes) + "}";
    Row* row = event.row.empty() ? nullptr : &row_of(event.row, text);
    if (row != nullptr && begin >= row->end) {
      row->end = end;
      add(event,
          "X",
          R"("tid": )" + std::to_string(row->number) + R"(, "ts": )" + std::to_string(begin) +
              R"(, "dur": )" + std::to_string(end - begin) + args,
          text);
      return;
    }
    const std::string id = R"("id": ")" + std::to_string(rank_) + "." +
                           std::to_string(++asynchronous_) + R"(", "ts": )";
    add(event, "b", id + std::to_string(begin) + args, text);
    add(event, "e", id + std::to_string(end), text);
  }

  void add(const Event& event, const char* type, const std::string& rest, std::string& text) {
    text +=
        ",\n"
        R"({"name": ")" +
        json_text(event.name) + R"(", "cat": ")" + json_text(event.category) + R"(", "ph": ")" +
        type + R"(", "pid": )" + std::to_string(rank_) + ", " + rest + "}";
  }

  Row& row_of(const std::string& name, std::string& text) {
    const auto [row, added] = rows_.try_emplace(name);
    if (added) {
      row->second.number = static_cast<int>(rows_.size());
      text +=
          ",\n"
          R"({"name": "thread_name", "ph": "M", "pid": )" +
          std::to_string(rank_) + R"(, "tid": )" + std::to_string(row->second.number) +
          R"(, "args": {"name": ")" + json_text(name) + "\"}}";
    }
    return row->second;
  }

  /// With the lock.
  void end(int error) {
    queue_->on.store(false);
    queue_->events.clear();
    queue_->written = file_;
    queue_->changed.notify_all();
    if (error != 0) {
      const std::string what = "[timeline] '" + path_ +
                               "' ends here, and the job goes on; make room, or choose another "
                               "file (AIACC_TIMELINE)";
      AIACC_LOG(kWarning) << system_error(Code::kEngine, what, error).what();
    }
    if (queue_->left_out > 0) {
      AIACC_LOG(kWarning) << "[timeline] '" << path_ << "' lacks " << queue_->left_out
                          << " events, which came faster than its file system took them";
    }
  }

  const std::shared_ptr<Queue> queue_;
  const std::uint64_t file_;  ///< its number
  const std::string path_;
  const int rank_;
  std::map<std::string, Row> rows_;
  std::uint64_t asynchronous_ = 0;  ///< events so far
};

Timeline::Timeline(int rank, std::chrono::milliseconds patience)
    : rank_(rank), patience_(patience), queue_(std::make_shared<Queue>()) {}

bool Timeline::on() const { return queue_->on.load(std::memory_order_relaxed); }

void Timeline::start(const std::string& path, bool mark_rounds) {
  const std::lock_guard control(control_mutex_);
  const std::string name = timeline_path(path, rank_);
  if (on() && name == path_) {
    mark_rounds_.store(mark_rounds);
    return;
  }
  check_is_file(path);
  // Opening a FIFO that nobody reads would wait for a reader; writing to one may wait. What it has
  // stays until the timeline that is on has ended, which may be written to it by another name.
  const auto file = std::make_shared<EventFile>(
      open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
  struct stat opened{};
  if (file->descriptor() < 0 || fstat(file->descriptor(), &opened) != 0) {
    throw system_error(Code::kInvalidArgument, "[timeline] cannot write '" + name + "'", errno);
  }
  mark_rounds_.store(mark_rounds);
  if (on() && opened.st_dev == device_ && opened.st_ino == inode_) {
    return;
  }
  fcntl(file->descriptor(), F_SETFL, O_WRONLY);
  end();
  if (S_ISREG(opened.st_mode) && ftruncate(file->descriptor(), 0) != 0) {
    throw system_error(Code::kInvalidArgument, "[timeline] cannot empty '" + name + "'", errno);
  }
  path_ = name;
  device_ = opened.st_dev;
  inode_ = opened.st_ino;
  // Threads that saw the last one on may have recorded after its end.
  const std::lock_guard lock(queue_->mutex);
  queue_->begin_file();
  const auto writer = std::make_shared<Writer>(queue_, queue_->file, name, rank_);
  writer_ = start_thread("aiacc timeline", [writer, file] { writer->run(*file); });
  queue_->on.store(true);
}

void Timeline::stop() {
  const std::lock_guard control(control_mutex_);
  end();
}

void Timeline::end() {
  queue_->on.store(false);
  if (!writer_.joinable()) {
    return;
  }
  std::unique_lock lock(queue_->mutex);
  queue_->stopping = true;
  queue_->changed.notify_all();
  const bool written =
      queue_->changed.wait_for(lock, patience_, [this] { return queue_->written == queue_->file; });
  if (written) {
    lock.unlock();
    writer_.join();
    return;
  }
  ++queue_->file;
  queue_->events.clear();
  writer_.detach();
  AIACC_LOG(kWarning) << "[timeline] '" << path_
                      << "' has no end, and the job goes on: its file system did not take all of "
                         "it in time";
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
    const std::lock_guard lock(queue_->mutex);
    queue_->push({name, category, row, begin, end, bytes});
  }
  queue_->changed.notify_one();
}

void Timeline::mark_step() {
  if (!on()) {
    return;
  }
  const auto now = Clock::now();
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->push(
        {"step " + std::to_string(queue_->step++), "STEP", "steps", queue_->step_began, now, 0});
    queue_->step_began = now;
  }
  queue_->changed.notify_one();
}

}  // namespace aiacc
