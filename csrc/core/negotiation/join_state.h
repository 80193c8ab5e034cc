#pragma once

#include <cstddef>
#include <vector>

namespace aiacc {

/// Which ranks have joined: they have no more work of their own and wait for the others.
///
/// Replicated: every rank applies the same calls in the same order. Pure; one thread at a time.
class JoinState {
 public:
  explicit JoinState(int size) : joined_(static_cast<std::size_t>(size), false) {}

  void join(int rank) {
    count_ += joined_[static_cast<std::size_t>(rank)] ? 0 : 1;
    joined_[static_cast<std::size_t>(rank)] = true;
    last_ = rank;
  }
  bool has(int rank) const { return joined_[static_cast<std::size_t>(rank)]; }
  bool any() const { return count_ > 0; }
  bool all() const { return count_ == joined_.size(); }
  /// The rank that joined last; of several in one round the highest.
  int last() const { return last_; }
  void clear() {
    joined_.assign(joined_.size(), false);
    count_ = 0;
  }

 private:
  std::vector<bool> joined_;
  std::size_t count_ = 0;
  int last_ = -1;
};

}  // namespace aiacc
