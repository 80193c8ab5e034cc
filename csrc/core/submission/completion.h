#pragma once

#include <cstddef>

namespace aiacc {

struct Operation;

/// Callbacks of a front-end that does not just wait for a handle. Owned by its operation.
class Completion {
 public:
  /// `told`: whether `done` is called, and the handle belongs to the table; else whoever submitted
  /// waits for the handle.
  explicit Completion(bool told) : told_(told) {}
  virtual ~Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  bool told() const { return told_; }

  /// Host memory for what tensor `index` of an all-gather or all-to-all gives, whose size the ranks
  /// have agreed on. Null: the core takes memory of its own. Once for each tensor at most, in the
  /// thread that is about to move its bytes; not for an operation without bytes.
  virtual void* allocate(Operation& operation, std::size_t index) noexcept = 0;

  /// Called once when the operation ends, well or badly, by the thread that completes it; the
  /// operation lives until this returns. That may be the loop thread, which then holds its
  /// mutex: must not block.
  virtual void done(Operation& operation) noexcept = 0;

 private:
  const bool told_;
};

}  // namespace aiacc
