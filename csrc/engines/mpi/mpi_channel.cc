#include "csrc/engines/mpi/mpi_channel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

constexpr std::size_t kCacheLine = 64;

/// What lies between `from` and `from` + `step` of `total`.
int length_between(std::size_t total, std::size_t from, std::size_t step) {
  return static_cast<int>(total > from ? std::min(step, total - from) : 0);
}

}  // namespace

MpiChannel::MpiChannel(MpiCommunicator& communicator,
                       const MpiLane& lane,
                       double spin_us,
                       const Cancellation& cancellation)
    : communicator_(communicator),
      plugin_(communicator.plugin()),
      lane_(lane),
      spin_(duration_of(spin_us * 1e-6)),
      cancellation_(cancellation) {}

MpiChannel::~MpiChannel() {
  for (const Piece& piece : pieces_) {
    if (piece.under_way) {
      communicator_.spoil();
    }
  }
}

std::size_t MpiChannel::piece_bytes() const {
  return lane_.staging_bytes / pieces_.size() / kCacheLine * kCacheLine;
}

void MpiChannel::all_reduce(const void* send,
                            void* recv,
                            std::size_t count,
                            const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t step = piece_bytes() / element;
  const std::size_t pieces = (count + step - 1) / step;
  const std::size_t tickets = pieces_.size();
  for (std::size_t turn = 0; turn < pieces + tickets - 1; ++turn) {
    if (turn < pieces) {
      const std::size_t from = turn * step;
      start_piece(turn % tickets,
                  static_cast<const std::byte*>(send) + from * element,
                  static_cast<std::byte*>(recv) + from * element,
                  std::min(step, count - from),
                  reduction);
    }
    if (turn + 1 >= tickets) {
      finish_piece((turn + 1) % tickets);
    }
  }
}

void MpiChannel::start_all_reduce(int ticket,
                                  void* data,
                                  std::size_t count,
                                  const Reduction& reduction) {
  if (count * size_of(reduction.dtype) <= piece_bytes()) {
    return start_piece(static_cast<std::size_t>(ticket), data, data, count, reduction);
  }
  // It needs the memory of the others.
  for (std::size_t earlier = 0; earlier < pieces_.size(); ++earlier) {
    finish_piece(earlier);
  }
  all_reduce(data, data, count, reduction);
}

void MpiChannel::finish_all_reduce(int ticket) { finish_piece(static_cast<std::size_t>(ticket)); }

void MpiChannel::start_piece(std::size_t ticket,
                             const void* from,
                             void* result,
                             std::size_t count,
                             const Reduction& reduction) {
  Piece& piece = pieces_[ticket];
  AIACC_CHECK(!piece.under_way);
  if (count == 0) {
    return;
  }
  std::memcpy(staged(ticket), from, count * size_of(reduction.dtype));
  piece = {result, count, reduction, true, 0};
  check_mpi(plugin_,
            plugin_.start_all_reduce(lane_.communicator,
                                     staged(ticket),
                                     static_cast<int>(count),
                                     static_cast<int>(reduction.dtype),
                                     static_cast<int>(reduction.op),
                                     &piece.request),
            "MPI_Iallreduce");
}

void MpiChannel::finish_piece(std::size_t ticket) {
  Piece& piece = pieces_[ticket];
  if (piece.under_way) {
    wait(piece.request);
    piece.under_way = false;
    const auto& [dtype, op, factor] = piece.reduction;
    copy_scaled(piece.result, staged(ticket), piece.count, dtype, factor);
  }
}

void MpiChannel::wait(MpiHandle& request) {
  const auto since = Clock::now();
  wait_for_request(plugin_, &request, spin_, [&] {
    cancellation_.check();
    mark_.sleeps(since, -1);
  });
  mark_.moves();
}

MpiHandle& MpiChannel::begin() {
  for (const Piece& piece : pieces_) {
    AIACC_CHECK(!piece.under_way);
  }
  pieces_[0].under_way = true;
  return pieces_[0].request;
}

void MpiChannel::end() {
  wait(pieces_[0].request);
  pieces_[0].under_way = false;
}

void MpiChannel::broadcast(void* buffer, std::size_t bytes, int root) {
  const bool is_root = root == communicator_.rank();
  for (std::size_t from = 0; from < bytes; from += lane_.staging_bytes) {
    const std::size_t part = std::min(lane_.staging_bytes, bytes - from);
    std::byte* at = static_cast<std::byte*>(buffer) + from;
    if (is_root) {
      std::memcpy(lane_.staging, at, part);
    }
    MpiHandle& request = begin();
    check_mpi(plugin_,
              plugin_.start_broadcast(
                  lane_.communicator, lane_.staging, static_cast<int>(part), root, &request),
              "MPI_Ibcast");
    end();
    if (!is_root) {
      std::memcpy(at, lane_.staging, part);
    }
  }
}

void MpiChannel::all_gather(const void* send, void* recv, const PerRank& bytes_of) {
  const PerRank starts = offsets_of(bytes_of);
  auto* base = static_cast<std::byte*>(recv);
  const std::size_t step = lane_.staging_bytes / bytes_of.size();
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
  const auto mine = static_cast<std::size_t>(communicator_.rank());
  std::byte* staging = lane_.staging;
  parts_.clear();
  offsets_.clear();
  for (std::size_t rank = 0; rank < bytes_of.size(); ++rank) {
    parts_.push_back(length_between(bytes_of[rank], from, step));
    offsets_.push_back(static_cast<int>(rank * step));
  }
  if (parts_[mine] > 0) {
    std::memcpy(staging + mine * step, send + from, static_cast<std::size_t>(parts_[mine]));
  }
  MpiHandle& request = begin();
  check_mpi(plugin_,
            plugin_.start_all_gather(
                lane_.communicator, staging, parts_.data(), offsets_.data(), &request),
            "MPI_Iallgatherv");
  end();
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
  const auto& [dtype, op, factor] = reduction;
  const std::size_t element = size_of(dtype);
  const PerRank starts = offsets_of(counts);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  const std::size_t half = lane_.staging_bytes / 2 / kCacheLine * kCacheLine;
  const std::size_t step = half / counts.size() / element;
  std::byte* outgoing = lane_.staging;
  std::byte* incoming = outgoing + half;
  const auto mine = static_cast<std::size_t>(communicator_.rank());
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
    MpiHandle& request = begin();
    check_mpi(plugin_,
              plugin_.start_reduce_scatter(lane_.communicator,
                                           outgoing,
                                           incoming,
                                           parts_.data(),
                                           static_cast<int>(dtype),
                                           static_cast<int>(op),
                                           &request),
              "MPI_Ireduce_scatter");
    end();
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
  const PerRank sources = offsets_of(send_bytes);
  const PerRank targets = offsets_of(recv_bytes);
  const std::size_t longest = maximum_of_all(send_bytes);
  const std::size_t half = lane_.staging_bytes / 2;
  const std::size_t step = half / send_bytes.size();
  std::byte* outgoing = lane_.staging;
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
    MpiHandle& request = begin();
    check_mpi(plugin_,
              plugin_.start_all_to_all(lane_.communicator,
                                       outgoing,
                                       parts_.data(),
                                       incoming,
                                       received_parts_.data(),
                                       offsets_.data(),
                                       &request),
              "MPI_Ialltoallv");
    end();
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
  std::memcpy(lane_.staging, &largest, sizeof largest);
  MpiHandle& request = begin();
  check_mpi(plugin_,
            plugin_.start_all_reduce(lane_.communicator,
                                     lane_.staging,
                                     1,
                                     static_cast<int>(DataType::kInt64),
                                     static_cast<int>(ReduceOp::kMax),
                                     &request),
            "MPI_Iallreduce");
  end();
  std::memcpy(&largest, lane_.staging, sizeof largest);
  return static_cast<std::size_t>(largest);
}

}  // namespace aiacc
