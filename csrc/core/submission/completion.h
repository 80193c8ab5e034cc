#pragma once

#include <cstddef>

namespace aiacc {

struct Operation;

/// What a front-end gives along that does not only wait for a handle. Owned by its operation.
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

  /// The operation is over, well or badly; it lives until this returns. Once, in the thread that
  /// found out, which may be the progress thread and then holds its mutex: must not block.
  virtual void done(Operation& operation) noexcept = 0;

 private:
  const bool told_;
};

}  // namespace aiacc
