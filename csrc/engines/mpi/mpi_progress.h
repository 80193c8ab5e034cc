#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "csrc/engines/mpi/mpi_plugin.h"

namespace aiacc {

/// A thread that lets MPI go on while nobody calls it.
///
/// What a rank has sent may still wait in MPI when its request is done, and moves only in calls of
/// MPI: without them another rank would wait for it for as long as this one stays outside. MPI has
/// no event to sleep on, so the thread naps between calls: for a quarter of the time since the
/// process has last waited for MPI, 1 ms to 10 ms, or 1 s while it rests.
class MpiProgress {
 public:
  /// `communicator` must outlive the thread; errors there are ignored: whoever waits gets them,
  /// too.
  MpiProgress(const MpiPlugin& plugin, MpiHandle communicator);
  ~MpiProgress();
  MpiProgress(const MpiProgress&) = delete;
  MpiProgress& operator=(const MpiProgress&) = delete;

  /// While no engine is left, the thread rests, so that it is outside MPI when this returns and,
  /// but for moments, from then on: MPICH drops its locks as soon as MPI_Finalize begins, before it
  /// calls back, and aborts over one that is held. Any thread.
  void rest(bool rests) noexcept;

  /// Returns when the thread has ended: it is outside MPI for good. Any thread, several times.
  void stop() noexcept;

 private:
  void run();

  const MpiPlugin& plugin_;
  const MpiHandle communicator_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable outside_;
  std::mutex join_mutex_;
  bool rests_ = false;
  bool calling_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace aiacc
