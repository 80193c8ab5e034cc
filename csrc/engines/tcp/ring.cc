#include "csrc/engines/tcp/ring.h"

#include <algorithm>
#include <cstring>

namespace aiacc {
namespace {

// The most that a block of a reduce-scatter has, over all parts together.
constexpr std::size_t kBlockBytes = std::size_t{8} * 1024 * 1024;

}  // namespace

std::pair<std::size_t, std::size_t> chunk_of(std::size_t count,
                                             std::size_t element_bytes,
                                             int chunks,
                                             int index) {
  const std::size_t line = 64 / element_bytes;
  const std::size_t lines = (count + line - 1) / line;
  const auto n = static_cast<std::size_t>(chunks);
  const auto bound = [&](std::size_t i) {
    return std::min(count, (lines / n * i + std::min(i, lines % n)) * line);
  };
  const auto i = static_cast<std::size_t>(index);
  return {bound(i), bound(i + 1) - bound(i)};
}

Ring::Ring(int rank, int size, Channel next, Channel previous, const Cancellation& cancellation)
    : rank_(rank), size_(size), stream_(std::move(next), std::move(previous), cancellation) {}

RingSchedule& Ring::begin(OpHeader::Kind kind, std::size_t bytes) {
  RingSchedule& schedule = stream_.prepare();
  schedule.header = OpHeader{};
  schedule.header.kind = kind;
  schedule.header.sequence = sequence_++;
  schedule.header.bytes = bytes;
  return schedule;
}

RingSchedule& Ring::begin(OpHeader::Kind kind, std::size_t count, const Reduction& reduction) {
  RingSchedule& schedule = begin(kind, count * size_of(reduction.dtype));
  schedule.header.dtype = static_cast<std::uint8_t>(reduction.dtype);
  schedule.header.detail = static_cast<std::uint8_t>(reduction.op);
  schedule.reduction = reduction;
  return schedule;
}

void Ring::all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  plan_all_reduce(send, recv, count, reduction);
  stream_.run();
}

void Ring::start_all_reduce(int ticket, void* data, std::size_t count, const Reduction& reduction) {
  plan_all_reduce(data, data, count, reduction);
  stream_.start(ticket);
}

void Ring::plan_all_reduce(const void* send,
                           void* recv,
                           std::size_t count,
                           const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  RingSchedule& schedule = begin(OpHeader::kAllReduce, count, reduction);
  const auto* source = static_cast<const char*>(send);
  auto* target = static_cast<char*>(recv);
  // 2 (size - 1) steps; the chunk received in one step is the chunk sent in the next.
  for (int step = 0; step < 2 * (size_ - 1); ++step) {
    const auto [first, length] = chunk_of(count, element, size_, wrap(rank_ - step));
    const char* from = step == 0 ? source : target;
    schedule.out.push_back({from + first * element, length * element});
    const auto [next_first, next_length] = chunk_of(count, element, size_, wrap(rank_ - step - 1));
    const bool reduces = step < size_ - 1;
    schedule.in.push_back({target + next_first * element,
                           reduces ? source + next_first * element : nullptr,
                           next_length * element,
                           step == size_ - 2});
  }
  schedule.ready = schedule.out.front().bytes;
}

void Ring::broadcast(void* buffer, std::size_t bytes, int root) {
  RingSchedule& schedule = begin(OpHeader::kBroadcast, bytes);
  schedule.receives = rank_ != root;
  schedule.sends = wrap(rank_ + 1) != root;
  auto* data = static_cast<char*>(buffer);
  if (schedule.receives) {
    schedule.in.push_back({data, nullptr, bytes, false});
  } else {
    schedule.ready = bytes;
  }
  if (schedule.sends) {
    schedule.out.push_back({data, bytes});
  }
  stream_.run();
}

void Ring::all_gather(const void* send, void* recv, const PerRank& bytes_of) {
  const PerRank offsets = offsets_of(bytes_of);
  RingSchedule& schedule = begin(OpHeader::kAllGather, offsets.back() + bytes_of.back());
  auto* target = static_cast<char*>(recv);
  for (int step = 0; step < size_ - 1; ++step) {
    const auto mine = static_cast<std::size_t>(wrap(rank_ - step));
    const auto theirs = static_cast<std::size_t>(wrap(rank_ - step - 1));
    const char* from = step == 0 ? static_cast<const char*>(send) : target + offsets[mine];
    schedule.out.push_back({from, bytes_of[mine]});
    schedule.in.push_back({target + offsets[theirs], nullptr, bytes_of[theirs], false});
  }
  schedule.ready = schedule.out.front().bytes;
  char* own = target + offsets[static_cast<std::size_t>(rank_)];
  if (own != send && schedule.ready > 0) {
    std::memcpy(own, send, schedule.ready);
  }
  stream_.run();
}

void Ring::reduce_scatter(const void* send,
                          void* recv,
                          const PerRank& counts,
                          const Reduction& reduction) {
  const std::size_t element = size_of(reduction.dtype);
  const auto ranks = static_cast<std::size_t>(size_);
  const PerRank offsets = offsets_of(counts);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  const std::size_t block = std::max<std::size_t>(1, kBlockBytes / element / ranks);
  const auto* source = static_cast<const char*>(send);
  auto* target = static_cast<char*>(recv);
  std::size_t done = 0;
  do {
    const auto length_of = [&](int rank) {
      const std::size_t count = counts[static_cast<std::size_t>(wrap(rank))];
      return count > done ? std::min(count - done, block) * element : 0;
    };
    const auto source_of = [&](int rank) {
      return source + (offsets[static_cast<std::size_t>(wrap(rank))] + done) * element;
    };
    RingSchedule& schedule =
        begin(OpHeader::kReduceScatter, offsets.back() + counts.back(), reduction);
    std::size_t passing = 0;
    for (int part = rank_ - 2; part > rank_ - size_; --part) {
      passing += length_of(part);
    }
    partial_.resize(std::max(partial_.size(), passing));
    char* into = partial_.data();
    // size - 1 steps; what was received in one is sent in the next, the own part comes last.
    schedule.out.push_back({source_of(rank_ - 1), length_of(rank_ - 1)});
    schedule.ready = schedule.out.front().bytes;
    for (int part = rank_ - 2; part > rank_ - size_; --part) {
      schedule.in.push_back({into, source_of(part), length_of(part), false});
      schedule.out.push_back({into, length_of(part)});
      into += length_of(part);
    }
    const std::size_t own = length_of(rank_);
    schedule.in.push_back({target + done * element, source_of(rank_), own, true});
    stream_.run();
    done += block;
  } while (done < longest);
}

}  // namespace aiacc
