// What agreeing on the tensors of a step costs each rank of a job: bytes, memory, time.
//
//   negotiation_bench RANKS GPUS_PER_HOST CACHE_CAPACITY UNIT_BYTES STEPS < tensors
//
// Each line of `tensors` is a name and the extents of its shape, fp32; GPUS_PER_HOST 0: in host
// memory. All ranks submit all tensors, in the same order. The first step takes one round; later
// ones have a round whenever UNIT_BYTES are waiting and one at the end, as when a slow backward
// pass is flushed, or one alone if that is 0. Only rank 0's negotiator is kept: those of 1,024
// ranks and thousands of tensors would not fit into one machine. The others' shares are those of
// negotiators that have done nothing else in the first step, and in later ones, when all ranks say
// the same, rank 0's; if it has names in it, what identifies the rank is exchanged. Messages are
// folded by recursive doubling, RANKS being a power of two, so all ranks are equally busy; each
// counts with the frame that it travels in. Heap in use and its peak are counted by operator new,
// of the work of rank 0 alone. Prints a line of numbers for each step, in the order of Cost.

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "csrc/control/tcp/frame.h"
#include "csrc/core/negotiation/negotiator.h"

namespace {

std::size_t heap = 0;
std::size_t heap_peak = 0;

}  // namespace

void* operator new(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  heap += malloc_usable_size(block);
  heap_peak = std::max(heap_peak, heap);
  return block;
}
void operator delete(void* block) noexcept {
  if (block != nullptr) {
    heap -= malloc_usable_size(block);
    std::free(block);
  }
}
void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace {

using aiacc::Bytes;
using aiacc::Negotiator;
using aiacc::Submitted;

/// What rank 0 does in a step.
struct Cost {
  std::size_t rounds = 0;
  std::size_t sent = 0;  ///< bytes, with frames
  std::size_t received = 0;
  std::size_t largest = 0;  ///< message
  double seconds = 0;
  std::size_t peak = 0;  ///< heap of this rank

  /// Does work of rank 0: its time and its peak count.
  template <class Work>
  void timed(std::size_t baseline, const Work& work) {
    heap_peak = heap;
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    peak = std::max(peak, heap_peak - std::min(heap_peak, baseline));
  }
};

class Job {
 public:
  Job(int size, int gpus, std::size_t capacity, std::vector<Submitted> tensors)
      : size_(size),
        gpus_(gpus),
        capacity_(capacity),
        tensors_(std::move(tensors)),
        of_others_(tensors_) {
    aiacc::encode_frame({}, frame_);
    set_devices(tensors_, 0);
    baseline_ = heap;
    rank0_ = std::make_unique<Negotiator>(0, size, capacity, aiacc::Parameters{});
  }

  Cost step(std::uint64_t unit_bytes) {
    Cost cost;
    std::uint64_t queued = 0;
    std::size_t tensors = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      rank0_->submit(tensors_[i]);
      queued += tensors_[i].request.tensors[0].bytes();
      ++tensors;
      const bool flushed = !first_ && unit_bytes > 0 && queued >= unit_bytes;
      if (flushed || i + 1 == tensors_.size()) {
        round(cost, tensors);
        queued = tensors = 0;
      }
    }
    first_ = false;
    return cost;
  }

 private:
  void round(Cost& cost, std::size_t tensors) {
    ++cost.rounds;
    Bytes own;
    cost.timed(baseline_, [&] { rank0_->contribute(own); });
    // Stage k: rank 0 holds what ranks 0 to 2^k - 1 say, its partner what the next 2^k do.
    Bytes block = own;
    for (int distance = 1; distance < size_; distance *= 2) {
      const Bytes theirs = said_by(distance, 2 * distance, own);
      cost.sent += block.size() + frame_.size();
      cost.received += theirs.size() + frame_.size();
      cost.largest = std::max(cost.largest, theirs.size());
      cost.timed(baseline_, [&] { aiacc::combine_rounds(block, theirs); });
    }
    std::size_t ready = 0;
    cost.timed(baseline_, [&] { ready = rank0_->apply(block).ready.size(); });
    if (ready != tensors || rank0_->waiting() != 0) {
      std::fprintf(stderr, "%zu of %zu tensors are ready\n", ready, tensors);
      std::exit(1);
    }
  }

  void set_devices(std::vector<Submitted>& tensors, int rank) const {
    for (auto& [request] : tensors) {
      request.device = gpus_ == 0 ? -1 : rank % gpus_;
    }
  }

  /// What the ranks from `first` to `last` - 1 say together.
  Bytes said_by(int first, int last, const Bytes& own) {
    Bytes all = share_of(first, own);
    for (int rank = first + 1; rank < last; ++rank) {
      aiacc::combine_rounds(all, share_of(rank, own));
    }
    return all;
  }

  Bytes share_of(int rank, const Bytes& own) {
    Bytes share;
    if (first_) {
      Negotiator other(rank, size_, capacity_, aiacc::Parameters{});
      set_devices(of_others_, rank);
      for (std::size_t i = 0; i < of_others_.size(); ++i) {
        other.submit(of_others_[i]);
      }
      other.contribute(share);
      return share;
    }
    std::uint32_t words = 0;
    std::memcpy(&words, own.data() + 8, sizeof words);
    if (own.size() == 16 + 8 * std::size_t{words}) {  // no names
      return own;
    }
    aiacc::RoundMessage message;
    message.decode(own);
    for (aiacc::SharedRequest& shared : message.requests) {
      shared.senders = std::make_shared<aiacc::Senders>(rank, shared.senders->shares[0].part);
    }
    message.encode(share);
    return share;
  }

  const int size_;
  const int gpus_;
  const std::size_t capacity_;
  std::vector<Submitted> tensors_;    ///< of rank 0, whose negotiator refers to them
  std::vector<Submitted> of_others_;  ///< of the rank whose share is made
  Bytes frame_;
  std::size_t baseline_ = 0;
  std::unique_ptr<Negotiator> rank0_;
  bool first_ = true;
};

std::vector<Submitted> read_tensors() {
  std::vector<Submitted> tensors;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    aiacc::Request request;
    words >> request.name;
    for (std::int64_t extent = 0; words >> extent;) {
      request.tensors[0].shape.push_back(extent);
    }
    tensors.push_back({std::move(request)});
  }
  return tensors;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "expected five numbers, see %s\n", __FILE__);
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  Job job(static_cast<int>(number(1)), static_cast<int>(number(2)), number(3), read_tensors());
  for (std::uint64_t step = 0; step < number(5); ++step) {
    const Cost cost = job.step(number(4));
    std::cout << cost.rounds << ' ' << cost.sent << ' ' << cost.received << ' ' << cost.largest
              << ' ' << cost.seconds << ' ' << cost.peak << '\n';
  }
}
