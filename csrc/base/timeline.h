#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "csrc/base/event.h"

namespace aiacc {

/// The file of a rank's timeline: `path` with the rank in place of "{rank}". Without that, rank 0
/// has `path` itself, as with Horovod, and the others "name.rank3.json" for "name.json". Pure.
std::string timeline_path(const std::string& path, int rank);

/// Writes what happened as Chrome trace events (chrome://tracing, Perfetto).
///
/// Off: one atomic load per event and no thread. On: events are queued and a writer thread that
/// sleeps between batches appends them. Threads: any. The file is a JSON array; it is valid after
/// `stop`, and readable by the viewers also when the process died before. The first event tells the
/// time of day at which "ts" is 0, by which the files of several hosts fit together, and which boot
/// of which host the clock belongs to: ranks of one share it. Where there is no room for more, the
/// file ends with its last whole event and a warning; `start` begins a new one.
/// Slices of a row do not overlap, which viewers would not show: a phase that begins before the end
/// of another one of its row is an asynchronous event. Times are whole microseconds.
/// A file system that is slow, or stands still, costs no more than the events that do not fit into
/// the queue: they are left out, and a warning tells their number at the end.
class Timeline {
 public:
  /// What the queue may hold.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  static constexpr std::chrono::seconds kPatience{5};

  /// `patience`: how long `stop` waits for the file system.
  explicit Timeline(int rank, std::chrono::milliseconds patience = kPatience);
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Writes to `timeline_path`. A timeline that is on with another file ends; with the same file,
  /// by whatever path, it goes on. Throws Error(kInvalidArgument) if the file cannot be opened, or
  /// `path` is a folder or device.
  void start(const std::string& path, bool mark_rounds);
  /// Writes what is queued, and closes the file. Where that takes longer than the patience, the
  /// file is left as it is then, with a warning.
  void stop();
  bool on() const;
  /// Ends a step of training: a phase "step N" from the end of the one before, or from the start.
  void mark_step();
  bool marks_rounds() const { return on() && mark_rounds_.load(std::memory_order_relaxed); }

  /// One finished phase: `name` in row `row` ("lane 0", "steps") from `begin` to `end`, or, if
  /// `row` is empty, an asynchronous one, of which many may take place at a time. `category` is
  /// Horovod's name for the phase ("NEGOTIATE_ALLREDUCE"), which tools look for.
  void record(const std::string& name,
              const std::string& category,
              const std::string& row,
              Clock::time_point begin,
              Clock::time_point end,
              std::uint64_t bytes);

 private:
  struct Event;
  struct Queue;
  class Writer;

  void end();

  const int rank_;
  const std::chrono::milliseconds patience_;
  const std::shared_ptr<Queue> queue_;  ///< a writer that was left has it, too
  std::string path_;                    ///< of the file that is written
  dev_t device_ = 0;                    ///< that it is on
  ino_t inode_ = 0;
  std::atomic<bool> mark_rounds_{false};
  std::mutex control_mutex_;  ///< serialises start and stop
  std::thread writer_;
};

}  // namespace aiacc
