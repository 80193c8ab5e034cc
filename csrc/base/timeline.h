#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/socket.h"

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
class Timeline {
 public:
  explicit Timeline(int rank) : rank_(rank) {}
  ~Timeline() { stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Writes to `timeline_path`. A timeline that is on with another path ends; with the same path it
  /// goes on. Throws Error(kInvalidArgument) if the file cannot be opened.
  void start(const std::string& path, bool mark_rounds);
  void stop();
  bool on() const { return on_.load(std::memory_order_relaxed); }
  /// Ends a step of training: a phase "step N" from the end of the one before, or from the start.
  void mark_step();
  bool marks_rounds() const { return on() && mark_rounds_.load(std::memory_order_relaxed); }

  /// One finished phase: `name` in row `row` ("lane 0", "negotiation") from `begin` to `end`.
  /// `category` is Horovod's name for the phase ("NEGOTIATE_ALLREDUCE"), which tools look for.
  void record(const std::string& name,
              const std::string& category,
              const std::string& row,
              Clock::time_point begin,
              Clock::time_point end,
              std::uint64_t bytes);

 private:
  struct Event {
    std::string name;
    std::string category;
    std::string row;
    Clock::time_point begin;
    Clock::time_point end;
    std::uint64_t bytes;
  };
  void end();
  void write(int descriptor);
  void end_early(int error);

  const int rank_;
  std::string path_;  ///< of the file that is written
  std::atomic<bool> on_{false};
  std::atomic<bool> mark_rounds_{false};
  std::mutex control_mutex_;  ///< serialises start and stop
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> queue_;
  int step_ = 0;  ///< number of the next
  Clock::time_point step_began_{};
  bool stopping_ = false;
  std::thread writer_;
};

}  // namespace aiacc
