#include "csrc/base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

namespace aiacc::fork_guard {
namespace {

struct State {
  std::atomic<std::uint32_t> generation{0};
  std::mutex mutex;
  std::unordered_set<int> descriptors;
};

void before_fork();
void in_parent();
void in_child();

State& state() {
  // Leaked on purpose: sockets of a process that exits may be closed late.
  static State* const state = [] {
    pthread_atfork(&before_fork, &in_parent, &in_child);
    return new State;
  }();
  return *state;
}

// Held over the fork: no other thread is in the middle of changing the set.
void before_fork() { state().mutex.lock(); }

void in_parent() { state().mutex.unlock(); }

void in_child() {
  for (const int fd : state().descriptors) {
    ::close(fd);
  }
  state().descriptors.clear();
  state().generation.fetch_add(1, std::memory_order_relaxed);
  state().mutex.unlock();
}

}  // namespace

std::uint32_t generation() noexcept { return state().generation.load(std::memory_order_relaxed); }

void opened(int fd) {
  const std::lock_guard lock(state().mutex);
  state().descriptors.insert(fd);
}

bool closing(int fd) noexcept {
  const std::lock_guard lock(state().mutex);
  return state().descriptors.erase(fd) != 0;
}

}  // namespace aiacc::fork_guard
