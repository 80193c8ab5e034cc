// What agreeing on the tensors of a large job costs the busiest rank: bytes, memory, time.
//
//   large_job_bench RANKS GPUS_PER_HOST CACHE_CAPACITY STEPS < tensors
//   large_job_bench RANKS LANES
//
// Each line of `tensors` is a name and the extents of its shape, fp32; GPUS_PER_HOST 0: in host
// memory. All ranks submit all tensors, in the same order, and a round decides on them. Only rank
// 0's negotiator is kept: the others would not fit into one machine. Their shares are those of
// negotiators that have done nothing else in the first step, and in later ones, when all ranks say
// the same, rank 0's; if it has names in it, what identifies the rank is exchanged. Messages are
// folded by recursive doubling, RANKS being a power of two, so all ranks are equally busy. What is
// measured is the work of rank 0 alone: heap in use and its peak by a counting operator new, time
// by the clock. Prints a JSON array with an object for each step.
//
// With LANES alone: the round in which all ranks say what their lanes are at, while each waits in a
// ring for the rank before it.

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bench/micro/read_tensors.h"
#include "csrc/control/tcp/frame.h"
#include "csrc/core/negotiation/negotiator.h"

namespace {

std::size_t heap = 0;
std::size_t heap_peak = 0;

void count(void* block) {
  heap += malloc_usable_size(block);
  heap_peak = std::max(heap_peak, heap);
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  count(block);
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
using aiacc::Request;
using SteadyClock = std::chrono::steady_clock;

double since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

/// What rank 0 does in a round.
struct Cost {
  std::uint64_t bytes = 0;    ///< sent and received, with frames
  std::uint64_t largest = 0;  ///< message
  double contribute_s = 0;
  double combine_s = 0;
  double apply_s = 0;
  std::size_t peak = 0;  ///< heap of this rank in the round
  std::size_t kept = 0;  ///< heap of this rank after it
};

class Job {
 public:
  Job(int size, int gpus, std::size_t capacity, std::vector<Request> tensors)
      : size_(size),
        gpus_(gpus),
        capacity_(capacity),
        tensors_(std::move(tensors)),
        of_others_(tensors_) {
    baseline_ = heap;
    rank0_ = std::make_unique<Negotiator>(0, size, capacity, aiacc::Parameters{});
    set_devices(tensors_, 0);
  }

  Cost step() {
    Cost cost;
    submit(*rank0_, tensors_);
    Bytes own;
    auto start = SteadyClock::now();
    rank0_->contribute(own);
    cost.contribute_s = since(start);
    // Stage k: rank 0 holds what ranks 0 to 2^k - 1 say, its partner what the next 2^k do.
    const std::size_t frame = frame_bytes();
    for (int distance = 1; distance < size_; distance *= 2) {
      Bytes theirs = block(own, distance, 2 * distance);
      cost.bytes += own_of_block(own).size() + theirs.size() + 2 * frame;
      start_heap();
      start = SteadyClock::now();
      aiacc::combine_rounds(block_, theirs);
      cost.combine_s += since(start);
      cost.peak = std::max(cost.peak, heap_peak);
      cost.largest = std::max<std::uint64_t>(cost.largest, theirs.size());
    }
    cost.peak -= std::min(cost.peak, baseline_);
    start_heap();
    start = SteadyClock::now();
    const std::size_t ready = rank0_->apply(block_.empty() ? own : block_).ready.size();
    cost.apply_s = since(start);
    cost.peak = std::max(cost.peak, heap_peak - baseline_);
    Bytes().swap(block_);
    Bytes().swap(own);
    cost.kept = heap - baseline_;
    first_ = false;
    if (ready != tensors_.size() || rank0_->waiting() != 0) {
      std::fprintf(stderr, "%zu of %zu tensors are ready\n", ready, tensors_.size());
      std::exit(1);
    }
    return cost;
  }

 private:
  static void start_heap() { heap_peak = heap; }

  static std::size_t frame_bytes() {
    Bytes bytes;
    aiacc::encode_frame({}, bytes);
    return bytes.size();
  }

  void set_devices(std::vector<Request>& tensors, int rank) const {
    for (Request& request : tensors) {
      request.device = gpus_ == 0 ? -1 : rank % gpus_;
    }
  }
  static void submit(Negotiator& negotiator, const std::vector<Request>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      negotiator.submit(tensors[i], i + 1);
    }
  }

  const Bytes& own_of_block(const Bytes& own) {
    if (block_.empty()) {
      block_ = own;
    }
    return block_;
  }

  /// What the ranks from `first` to `last` - 1 say together.
  Bytes block(const Bytes& own, int first, int last) {
    Bytes all;
    for (int rank = first; rank < last; ++rank) {
      Bytes share = share_of(rank, own);
      if (all.empty()) {
        all.swap(share);
      } else {
        aiacc::combine_rounds(all, share);
      }
    }
    return all;
  }

  Bytes share_of(int rank, const Bytes& own) {
    Bytes share;
    if (first_) {
      Negotiator other(rank, size_, capacity_, aiacc::Parameters{});
      set_devices(of_others_, rank);
      submit(other, of_others_);
      other.contribute(share);
    } else {
      share = own;
      exchange_rank(share, rank);
    }
    return share;
  }

  static void exchange_rank(Bytes& share, int rank) {
    std::uint32_t words = 0;
    std::memcpy(&words, share.data() + 8, sizeof words);
    const std::size_t bits_end = 16 + 8 * std::size_t{words};
    if (share.size() == bits_end) {
      return;
    }
#ifdef AIACC_REPORTS  // of each rank, in the message of earlier versions
    std::memcpy(share.data() + bits_end, &rank, sizeof rank);
#else
    aiacc::RoundMessage message;
    message.decode(share);
    for (aiacc::SharedRequest& shared : message.requests) {
      shared.senders = std::make_shared<aiacc::Senders>(rank, shared.senders->shares[0].part);
    }
    message.encode(share);
#endif
  }

  const int size_;
  const int gpus_;
  const std::size_t capacity_;
  std::vector<Request> tensors_;    ///< of rank 0, whose negotiator refers to them
  std::vector<Request> of_others_;  ///< of the rank whose share is made
  std::size_t baseline_ = 0;
  std::unique_ptr<Negotiator> rank0_;
  Bytes block_;
  bool first_ = true;
};

/// What `rank` says of its lanes.
Bytes reports_of(int rank, int size, int lanes) {
  aiacc::RoundMessage message;
  message.answers.ranks = aiacc::RankSet(rank);
  for (int lane = 0; lane < lanes; ++lane) {
    aiacc::LaneReport report;
    report.lane = static_cast<std::uint32_t>(lane);
    report.order = report.unit = 1'000'000 + static_cast<std::uint64_t>(lane);
    report.stuck = true;
    report.ahead = static_cast<std::uint32_t>(size - 1);
    report.tensors = "'model.layers.17.mlp.weight', 'model.layers.17.norm.weight' and 3 more";
    message.answers.lanes.push_back({report, aiacc::RankSet(rank)});
  }
  Bytes bytes;
  message.encode(bytes);
  return bytes;
}

/// As Job::step, for a round of reports.
void report_lanes(int size, int lanes) {
  Bytes block = reports_of(0, size, lanes);
  std::uint64_t bytes = 0;
  for (int distance = 1; distance < size; distance *= 2) {
    Bytes theirs = reports_of(distance, size, lanes);
    for (int rank = distance + 1; rank < 2 * distance; ++rank) {
      aiacc::combine_rounds(theirs, reports_of(rank, size, lanes));
    }
    bytes += block.size() + theirs.size();
    aiacc::combine_rounds(block, theirs);
  }
  aiacc::RoundMessage message;
  message.decode(block);
  std::printf("{\"busiest_rank_bytes\": %llu, \"reports\": %zu, \"complete\": %s}\n",
              static_cast<unsigned long long>(bytes),
              message.answers.lanes.size(),
              message.answers.lanes_complete ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    report_lanes(std::atoi(argv[1]), std::atoi(argv[2]));
    return 0;
  }
  if (argc != 5) {
    std::fprintf(stderr,
                 "usage: large_job_bench RANKS GPUS_PER_HOST CACHE_CAPACITY STEPS < tensors\n"
                 "       large_job_bench RANKS LANES\n");
    return 2;
  }
  Job job(std::atoi(argv[1]),
          std::atoi(argv[2]),
          static_cast<std::size_t>(std::atoi(argv[3])),
          aiacc::read_tensors(std::cin));
  const int steps = std::atoi(argv[4]);
  for (int step = 0; step < steps; ++step) {
    const Cost cost = job.step();
    std::printf(
        "%s{\"busiest_rank_bytes\": %llu, \"largest_message_bytes\": %llu, \"contribute_s\": %.6f, "
        "\"combine_s\": %.6f, \"apply_s\": %.6f, \"peak_heap_bytes\": %zu, \"kept_heap_bytes\": "
        "%zu}",
        step == 0 ? "[" : ",\n ",
        static_cast<unsigned long long>(cost.bytes),
        static_cast<unsigned long long>(cost.largest),
        cost.contribute_s,
        cost.combine_s,
        cost.apply_s,
        cost.peak,
        cost.kept);
    std::fflush(stdout);
  }
  std::printf("]\n");
}
