#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "csrc/core/negotiation/negotiator.h"
#include "csrc/core/submission/tensor_table.h"

namespace aiacc {

/// Operations of nobody, with which a rank that has joined answers those of the others.
///
/// Threads: any.
class ZeroAnswers {
 public:
  /// One that gives zeros and whose result is dropped; null if it is empty. The caller answers
  /// other ranks, so it does not touch memory, which takes long: lanes clear what they are about to
  /// give.
  Operation* add(const Response& response);
  /// It is over.
  void remove(Operation* operation);

 private:
  std::mutex mutex_;
  std::unordered_map<Operation*, std::unique_ptr<Operation>> operations_;
};

}  // namespace aiacc
