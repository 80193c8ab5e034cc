#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/block_mover.h"

namespace aiacc {

/// A mover between host memory and slots whose copies run in any order, at any time from start to
/// finish: some at once, some not before they must. What a copy finds or hits too early or too late
/// shows in the results.
class LateMover : public BlockMover {
 public:
  LateMover(const void* input, void* output, unsigned seed)
      : input_(static_cast<const std::byte*>(input)),
        output_(static_cast<std::byte*>(output)),
        random_(seed) {}
  ~LateMover() override { EXPECT_TRUE(pending_.empty()) << "copies were not finished"; }

  /// Called with the number of calls so far, before each but `stop`; may throw.
  std::function<void(int calls)> before = [](int) {};
  /// Memory that copies may use besides the buffers.
  std::pair<const std::byte*, std::size_t> slots{nullptr, 0};

  int calls() const { return calls_; }
  int stops() const { return stops_; }
  std::size_t copied_in() const { return copied_in_; }
  std::size_t copied_out() const { return copied_out_; }

  void start_in(int ticket, std::size_t offset, std::size_t bytes, std::byte* to) override {
    begin_call(to, bytes);
    EXPECT_FALSE(is_pending(ticket, true)) << "ticket used twice";
    copied_in_ += bytes;
    pending_.push_back({ticket, true, to, input_ + offset, bytes});
  }
  void finish_in(int ticket) override {
    begin_call(nullptr, 0);
    finish(ticket, true);
  }
  void start_out(int ticket,
                 std::size_t offset,
                 std::size_t bytes,
                 const std::byte* from) override {
    begin_call(from, bytes);
    copied_out_ += bytes;
    pending_.push_back({ticket, false, output_ + offset, from, bytes});
  }
  void finish_out(int ticket) override {
    begin_call(nullptr, 0);
    finish(ticket, false);
  }
  void stop() noexcept override {
    ++stops_;
    pending_.clear();
  }

 private:
  struct Copy {
    int ticket;
    bool in;
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };

  void begin_call(const std::byte* slot, std::size_t bytes) {
    EXPECT_EQ(0, stops_) << "a call after the end";
    if (slot != nullptr && slots.first != nullptr) {
      EXPECT_TRUE(slot >= slots.first && slot + bytes <= slots.first + slots.second);
    }
    before(calls_++);
    while (!pending_.empty() && random_() % 2 == 0) {
      run(pending_.begin() + static_cast<std::ptrdiff_t>(random_() % pending_.size()));
    }
  }
  bool is_pending(int ticket, bool in) const {
    return std::any_of(pending_.begin(), pending_.end(), [&](const Copy& copy) {
      return copy.ticket == ticket && copy.in == in;
    });
  }
  void finish(int ticket, bool in) {
    for (std::size_t i = pending_.size(); i-- > 0;) {
      if (pending_[i].ticket == ticket && pending_[i].in == in) {
        run(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  void run(std::vector<Copy>::iterator copy) {
    std::memcpy(copy->to, copy->from, copy->bytes);
    pending_.erase(copy);
  }

  const std::byte* const input_;
  std::byte* const output_;
  std::mt19937 random_;
  std::vector<Copy> pending_;
  int calls_ = 0;
  int stops_ = 0;
  std::size_t copied_in_ = 0;
  std::size_t copied_out_ = 0;
};

}  // namespace aiacc
