// What agreeing on a step's tensors costs, counted: messages and bytes of the bit-vector
// negotiation by recursive doubling. Runs the negotiators of all ranks in one thread, without
// sockets or clock: they are pure, so the counts are exact and do not depend on the machine. Who
// talks to whom is as in csrc/control/tcp/tcp_plane.h, and every message counts with the frame that
// it travels in.
//
//   negotiation_bench UNIT_BYTES RANKS... < tensors
//
// Each line of `tensors` is a name and the extents of its shape, in the order of submission (fp32).
// Prints a JSON array with two objects for each of RANKS, for steps of two kinds: all tensors in
// one round, and a round whenever UNIT_BYTES are waiting and one at the end, as when a slow
// backward pass is flushed. The first step of the job is of the second kind.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/micro/read_tensors.h"
#include "csrc/control/tcp/frame.h"
#include "csrc/core/negotiation/negotiator.h"

namespace {

using aiacc::Bytes;
using aiacc::Negotiator;
using aiacc::Request;

/// What passed one rank, or all of them.
struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t messages = 0;  ///< sent
};

std::size_t frame_bytes() {
  Bytes bytes;
  aiacc::encode_frame({}, bytes);
  return bytes.size();
}

/// The ranks of a job.
class Job {
 public:
  explicit Job(int size) : traffic_(static_cast<std::size_t>(size)), frame_(frame_bytes()) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Negotiator>(rank, size, 4096, aiacc::Parameters{}));
    }
    while (2 * power_ <= ranks_.size()) {
      power_ *= 2;
    }
  }

  /// All ranks submit the same tensors, with a round per `unit_bytes`, or one if that is 0; returns
  /// what each rank sent and received since the last call.
  std::vector<Traffic> step(const std::vector<Request>& tensors, std::uint64_t unit_bytes) {
    std::fill(traffic_.begin(), traffic_.end(), Traffic{});
    rounds_ = 0;
    std::uint64_t queued = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (const auto& rank : ranks_) {
        rank->submit(tensors[i], i + 1);
      }
      queued += tensors[i].bytes();
      if (i + 1 == tensors.size() || (unit_bytes > 0 && queued >= unit_bytes)) {
        round();
        queued = 0;
      }
    }
    for (const auto& rank : ranks_) {
      if (rank->waiting() != 0) {
        std::fprintf(stderr, "%zu tensors are not ready\n", rank->waiting());
        std::exit(1);
      }
    }
    return traffic_;
  }

  std::uint64_t rounds() const { return rounds_; }

 private:
  void pass(std::size_t from, std::size_t to, std::size_t payload) {
    const std::size_t bytes = payload + frame_;
    traffic_[from].sent += bytes;
    ++traffic_[from].messages;
    traffic_[to].received += bytes;
  }

  void round() {
    ++rounds_;
    std::vector<Bytes> blocks(ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank]->contribute(blocks[rank]);
    }
    for (std::size_t extra = power_; extra < ranks_.size(); ++extra) {
      pass(extra, extra - power_, blocks[extra].size());
      aiacc::combine_rounds(blocks[extra - power_], blocks[extra]);
    }
    blocks.resize(power_);
    // After stage k all ranks that differ in the lowest k + 1 bits hold the same: one block.
    for (std::size_t distance = 1; distance < power_; distance *= 2) {
      std::vector<Bytes> merged;
      for (std::size_t rank = 0; rank < power_; ++rank) {
        pass(rank, rank ^ distance, blocks[rank / distance].size());
      }
      for (std::size_t block = 0; block < blocks.size(); block += 2) {
        merged.push_back(std::move(blocks[block]));
        aiacc::combine_rounds(merged.back(), blocks[block + 1]);
      }
      blocks = std::move(merged);
    }
    for (std::size_t extra = power_; extra < ranks_.size(); ++extra) {
      pass(extra - power_, extra, blocks[0].size());
    }
    for (const auto& rank : ranks_) {
      rank->apply(blocks[0]);
    }
  }

  std::vector<std::unique_ptr<Negotiator>> ranks_;
  std::vector<Traffic> traffic_;
  std::size_t power_ = 1;  ///< largest power of two of ranks
  const std::size_t frame_;
  std::uint64_t rounds_ = 0;
};

/// Bytes of the encoded request, as it travels.
std::size_t request_bytes(const Request& request) {
  Bytes bytes;
  aiacc::Writer writer(bytes);
  aiacc::encode_common(request, writer);
  return bytes.size();
}

void print(const char* key, const std::vector<Traffic>& ranks) {
  Traffic all;
  std::uint64_t busiest = 0;
  for (const Traffic& rank : ranks) {
    all.sent += rank.sent;
    all.messages += rank.messages;
    busiest = std::max(busiest, rank.sent + rank.received);
  }
  std::printf("\"%s\": {\"messages\": %llu, \"bytes\": %llu, \"busiest_rank_bytes\": %llu}",
              key,
              static_cast<unsigned long long>(all.messages),
              static_cast<unsigned long long>(all.sent),
              static_cast<unsigned long long>(busiest));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: negotiation_bench UNIT_BYTES RANKS... < tensors\n");
    return 2;
  }
  const std::uint64_t unit_bytes = std::strtoull(argv[1], nullptr, 10);
  const std::vector<Request> tensors = aiacc::read_tensors(std::cin);
  std::size_t described = 0;
  for (const Request& tensor : tensors) {
    described += request_bytes(tensor);
  }
  const char* separator = "[";
  for (int i = 2; i < argc; ++i) {
    const int size = std::atoi(argv[i]);
    Job job(size);
    const std::vector<Traffic> first = job.step(tensors, unit_bytes);
    for (const std::uint64_t waiting : {std::uint64_t{0}, unit_bytes}) {
      const std::vector<Traffic> later = job.step(tensors, waiting);
      std::printf(
          "%s{\"ranks\": %d, \"tensors\": %zu, \"rounds\": %llu, \"frame_bytes\": %zu, "
          "\"request_bytes\": %zu, ",
          std::exchange(separator, ",\n "),
          size,
          tensors.size(),
          static_cast<unsigned long long>(job.rounds()),
          frame_bytes(),
          described);
      print("first_step", first);
      std::printf(", ");
      print("step", later);
      std::printf("}");
      std::fflush(stdout);
    }
  }
  std::printf("]\n");
}
