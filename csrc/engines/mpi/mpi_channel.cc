#include "csrc/engines/mpi/mpi_channel.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "csrc/base/error.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

constexpr std::size_t kCacheLine = 64;

std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& lengths) {
  std::vector<std::size_t> offsets(lengths.size(), 0);
  std::partial_sum(lengths.begin(), lengths.end() - 1, offsets.begin() + 1);
  return offsets;
}

/// What lies between `from` and `from` + `step` of `total`.
int length_between(std::size_t total, std::size_t from, std::size_t step) {
  return static_cast<int>(total > from ? std::min(step, total - from) : 0);
}

}  // namespace

MpiChannel::MpiChannel(MpiCommunicator& communicator,
                       const MpiLane& resources,
                       double spin_us,
                       const Cancellation& cancellation)
    : communicator_(communicator),
      plugin_(communicator.plugin()),
      resources_(resources),
      spin_(std::chrono::nanoseconds(static_cast<std::int64_t>(spin_us * 1e3))),
      cancellation_(cancellation),
      channel_(resources.segments,
               communicator.topology().node_rank,
               resources.slot_bytes,
               spin_us,
               cancellation) {}

MpiChannel::~MpiChannel() {
  if (std::find(outstanding_.begin(), outstanding_.end(), true) != outstanding_.end()) {
    communicator_.spoil();
  }
}

void MpiChannel::all_reduce(const void* send,
                            void* recv,
                            std::size_t count,
                            const Reduction& reduction) {
  channel_.all_reduce(send, recv, count, reduction, one_node() ? nullptr : this);
}

void MpiChannel::broadcast(void* buffer, std::size_t bytes, int root) {
  const auto size = static_cast<std::size_t>(communicator_.topology().size);
  if (one_node()) {
    std::vector<std::size_t> bytes_of(size, 0);
    bytes_of[static_cast<std::size_t>(root)] = bytes;
    channel_.exchange(buffer, bytes_of, std::vector<void*>(size, buffer));
    return;
  }
  std::byte* staging = resources_.staging;
  for (std::size_t from = 0; from < bytes; from += resources_.staging_bytes) {
    const std::size_t part = std::min(resources_.staging_bytes, bytes - from);
    std::byte* at = static_cast<std::byte*>(buffer) + from;
    if (root == communicator_.topology().rank) {
      std::memcpy(staging, at, part);
    }
    MpiHandle& request = begin(0);
    check_mpi(
        plugin_,
        plugin_.start_broadcast(resources_.world, staging, static_cast<int>(part), root, &request),
        "MPI_Ibcast");
    finish(0);
    if (root != communicator_.topology().rank) {
      std::memcpy(at, staging, part);
    }
  }
}

void MpiChannel::all_gather(const void* send, void* recv, const PerRank& bytes_of) {
  const std::vector<std::size_t> starts = offsets_of(bytes_of);
  auto* base = static_cast<std::byte*>(recv);
  if (one_node()) {
    std::vector<void*> destinations;
    destinations.reserve(starts.size());
    for (const std::size_t start : starts) {
      destinations.push_back(base + start);
    }
    channel_.exchange(send, bytes_of, destinations);
    return;
  }
  const std::size_t step = resources_.staging_bytes / bytes_of.size();
  const std::size_t longest = *std::max_element(bytes_of.begin(), bytes_of.end());
  for (std::size_t from = 0; from < longest; from += step) {
    gather_step(static_cast<const std::byte*>(send), base, bytes_of, starts, from, step);
  }
}

/// Gathers what every rank has between `from` and `from` + `step`.
void MpiChannel::gather_step(const std::byte* send,
                             std::byte* recv,
                             const PerRank& bytes_of,
                             const PerRank& starts,
                             std::size_t from,
                             std::size_t step) {
  const auto mine = static_cast<std::size_t>(communicator_.topology().rank);
  std::byte* staging = resources_.staging;
  parts_.clear();
  offsets_.clear();
  for (std::size_t rank = 0; rank < bytes_of.size(); ++rank) {
    parts_.push_back(length_between(bytes_of[rank], from, step));
    offsets_.push_back(static_cast<int>(rank * step));
  }
  if (parts_[mine] > 0) {
    std::memcpy(staging + mine * step, send + from, static_cast<std::size_t>(parts_[mine]));
  }
  MpiHandle& request = begin(0);
  check_mpi(
      plugin_,
      plugin_.start_all_gather(resources_.world, staging, parts_.data(), offsets_.data(), &request),
      "MPI_Iallgatherv");
  finish(0);
  for (std::size_t rank = 0; rank < bytes_of.size(); ++rank) {
    if (parts_[rank] > 0) {
      std::memcpy(recv + starts[rank] + from,
                  staging + rank * step,
                  static_cast<std::size_t>(parts_[rank]));
    }
  }
}

void MpiChannel::reduce_scatter(const void* send,
                                void* recv,
                                const PerRank& counts,
                                const Reduction& reduction) {
  if (one_node()) {
    channel_.reduce_scatter(send, recv, counts, reduction);
    return;
  }
  const auto& [dtype, op, factor] = reduction;
  const std::size_t element = size_of(dtype);
  const std::vector<std::size_t> starts = offsets_of(counts);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  const std::size_t half = resources_.staging_bytes / 2 / kCacheLine * kCacheLine;
  const std::size_t step = half / counts.size() / element;
  std::byte* outgoing = resources_.staging;
  std::byte* incoming = outgoing + half;
  const auto mine = static_cast<std::size_t>(communicator_.topology().rank);
  for (std::size_t from = 0; from < longest; from += step) {
    parts_.clear();
    std::byte* at = outgoing;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      parts_.push_back(length_between(counts[rank], from, step));
      const std::size_t bytes = static_cast<std::size_t>(parts_.back()) * element;
      if (bytes > 0) {
        std::memcpy(
            at, static_cast<const std::byte*>(send) + (starts[rank] + from) * element, bytes);
      }
      at += bytes;
    }
    MpiHandle& request = begin(0);
    check_mpi(plugin_,
              plugin_.start_reduce_scatter(resources_.world,
                                           outgoing,
                                           incoming,
                                           parts_.data(),
                                           static_cast<int>(dtype),
                                           static_cast<int>(op),
                                           &request),
              "MPI_Ireduce_scatter");
    finish(0);
    copy_scaled(static_cast<std::byte*>(recv) + from * element,
                incoming,
                static_cast<std::size_t>(parts_[mine]),
                dtype,
                factor);
  }
}

void MpiChannel::all_to_all(const void* send,
                            void* recv,
                            const PerRank& send_bytes,
                            const PerRank& recv_bytes) {
  if (one_node()) {
    channel_.all_to_all(send, recv, send_bytes, recv_bytes);
    return;
  }
  const std::vector<std::size_t> sources = offsets_of(send_bytes);
  const std::vector<std::size_t> targets = offsets_of(recv_bytes);
  const std::size_t longest = maximum_of_all(send_bytes);
  const std::size_t half = resources_.staging_bytes / 2;
  const std::size_t step = half / send_bytes.size();
  std::byte* outgoing = resources_.staging;
  std::byte* incoming = outgoing + half;
  for (std::size_t from = 0; from < longest; from += step) {
    parts_.clear();
    received_parts_.clear();
    offsets_.clear();
    for (std::size_t peer = 0; peer < send_bytes.size(); ++peer) {
      parts_.push_back(length_between(send_bytes[peer], from, step));
      received_parts_.push_back(length_between(recv_bytes[peer], from, step));
      offsets_.push_back(static_cast<int>(peer * step));
      if (parts_.back() > 0) {
        std::memcpy(outgoing + peer * step,
                    static_cast<const std::byte*>(send) + sources[peer] + from,
                    static_cast<std::size_t>(parts_.back()));
      }
    }
    MpiHandle& request = begin(0);
    check_mpi(plugin_,
              plugin_.start_all_to_all(resources_.world,
                                       outgoing,
                                       parts_.data(),
                                       incoming,
                                       received_parts_.data(),
                                       offsets_.data(),
                                       &request),
              "MPI_Ialltoallv");
    finish(0);
    for (std::size_t peer = 0; peer < recv_bytes.size(); ++peer) {
      if (received_parts_[peer] > 0) {
        std::memcpy(static_cast<std::byte*>(recv) + targets[peer] + from,
                    incoming + peer * step,
                    static_cast<std::size_t>(received_parts_[peer]));
      }
    }
  }
}

/// The largest value that any rank has.
std::size_t MpiChannel::maximum_of_all(const std::vector<std::size_t>& values) {
  auto largest = static_cast<std::int64_t>(*std::max_element(values.begin(), values.end()));
  std::memcpy(resources_.staging, &largest, sizeof largest);
  MpiHandle& request = begin(0);
  check_mpi(plugin_,
            plugin_.start_all_reduce(resources_.world,
                                     resources_.staging,
                                     1,
                                     static_cast<int>(DataType::kInt64),
                                     static_cast<int>(ReduceOp::kMax),
                                     &request),
            "MPI_Iallreduce");
  finish(0);
  std::memcpy(&largest, resources_.staging, sizeof largest);
  return static_cast<std::size_t>(largest);
}

void MpiChannel::start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) {
  if (count > 0) {
    MpiHandle& request = begin(ticket);
    check_mpi(plugin_,
              plugin_.start_all_reduce(resources_.cross,
                                       data,
                                       static_cast<int>(count),
                                       static_cast<int>(dtype),
                                       static_cast<int>(op),
                                       &request),
              "MPI_Iallreduce");
  }
}

void MpiChannel::finish(int ticket) {
  const auto index = static_cast<std::size_t>(ticket);
  if (outstanding_[index]) {
    const auto since = WaitMark::Clock::now();
    wait_for_request(plugin_, &requests_[index], spin_, [&] {
      cancellation_.check();
      mark_.sleeps(since, -1);
    });
    mark_.moves();
    outstanding_[index] = false;
  }
}

MpiHandle& MpiChannel::begin(int ticket) {
  outstanding_[static_cast<std::size_t>(ticket)] = true;
  return requests_[static_cast<std::size_t>(ticket)];
}

}  // namespace aiacc
