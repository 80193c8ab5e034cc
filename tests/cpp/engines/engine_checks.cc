#include "tests/cpp/engines/engine_checks.h"

#include <numeric>

#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

/// What rank `from` has for rank `to`: sometimes nothing, otherwise bytes around `scale`.
std::vector<std::uint8_t> piece_between(int from, int to, std::size_t scale) {
  const auto factor = static_cast<std::size_t>(from * 3 + to * 5) % 4;
  const auto bytes = scale * factor + (factor > 0 && scale > 0 ? static_cast<std::size_t>(to) : 0);
  return bytes_for(static_cast<unsigned>(from * 100 + to), bytes);
}

}  // namespace

void check_all_reduce_call(int rank,
                           int size,
                           std::size_t count,
                           DataType dtype,
                           ReduceOp op,
                           const ReduceCall& all_reduce) {
  visit_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    const std::string what = "rank " + std::to_string(rank) + " of " + std::to_string(size) + " " +
                             name_of(dtype) + " " + name_of(op) + " count " + std::to_string(count);
    const std::vector<T> expected = reduced_numbers<T>(count, size, op);
    const std::vector<T> input = rank_numbers<T>(count, rank);
    std::vector<T> out(count);
    Reduction reduction{dtype, op};
    all_reduce(input.data(), out.data(), reduction);
    expect_equal_bits(expected, out, what);
    expect_equal_bits(rank_numbers<T>(count, rank), input, what + " (input)");
    out = input;
    all_reduce(out.data(), out.data(), reduction);
    expect_equal_bits(expected, out, what + " in place");
    reduction.factor = 0.3;
    std::vector<T> scaled(count);
    scale(scaled.data(), expected.data(), count, dtype, reduction.factor);
    all_reduce(input.data(), out.data(), reduction);
    expect_equal_bits(scaled, out, what + " with a factor");
  });
}

void check_all_reduce(
    Engine& engine, int lane, int rank, int size, std::size_t count, DataType dtype, ReduceOp op) {
  check_all_reduce_call(
      rank, size, count, dtype, op, [&](const void* send, void* recv, const Reduction& reduction) {
        engine.all_reduce(lane, send, recv, count, reduction);
      });
}

void check_broadcast(Engine& engine, int lane, int rank, int root, std::size_t bytes) {
  const auto expected = bytes_for(static_cast<unsigned>(root), bytes);
  auto buffer = rank == root ? expected : std::vector<std::uint8_t>(bytes, 0);
  engine.broadcast(lane, buffer.data(), bytes, root);
  expect_equal_bits(
      expected, buffer, "root " + std::to_string(root) + " rank " + std::to_string(rank));
}

void check_all_gather(Engine& engine, int lane, int rank, int size, std::size_t scale) {
  std::vector<std::size_t> bytes_of;
  std::vector<std::uint8_t> expected;
  std::vector<std::uint8_t> own;
  std::size_t own_offset = 0;
  for (int r = 0; r < size; ++r) {
    bytes_of.push_back(r == 1 ? 0 : scale * (static_cast<std::size_t>(r) + 1));
    const auto part = bytes_for(static_cast<unsigned>(r), bytes_of.back());
    if (r == rank) {
      own = part;
      own_offset = expected.size();
    }
    expected.insert(expected.end(), part.begin(), part.end());
  }
  std::vector<std::uint8_t> out(expected.size(), 0xee);
  engine.all_gather(lane, own.data(), out.data(), bytes_of);
  expect_equal_bits(expected, out, "all_gather rank " + std::to_string(rank));

  std::vector<std::uint8_t> in_place(expected.size(), 0xee);
  std::copy(own.begin(), own.end(), in_place.begin() + static_cast<std::ptrdiff_t>(own_offset));
  engine.all_gather(lane, in_place.data() + own_offset, in_place.data(), bytes_of);
  expect_equal_bits(expected, in_place, "all_gather in place, rank " + std::to_string(rank));
}

std::vector<std::size_t> uneven_counts(int size, std::size_t scale) {
  std::vector<std::size_t> counts;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size); ++rank) {
    counts.push_back(rank == 1 || scale == 0 ? 0 : scale * (rank % 3 + 1) + rank);
  }
  return counts;
}

void check_reduce_scatter(
    Engine& engine, int lane, int rank, const PerRank& counts, DataType dtype, ReduceOp op) {
  visit_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    const auto size = static_cast<int>(counts.size());
    const auto own = counts.begin() + rank;
    const auto from = std::accumulate(counts.begin(), own, std::ptrdiff_t{0});
    const std::size_t count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const std::string what = "reduce_scatter rank " + std::to_string(rank) + " of " +
                             std::to_string(size) + " " + name_of(dtype) + " " + name_of(op) +
                             " count " + std::to_string(count);
    const std::vector<T> all = reduced_numbers<T>(count, size, op);
    const std::vector<T> expected(all.begin() + from,
                                  all.begin() + from + static_cast<std::ptrdiff_t>(*own));
    const std::vector<T> input = rank_numbers<T>(count, rank);
    std::vector<T> out(*own);
    Reduction reduction{dtype, op};
    engine.reduce_scatter(lane, input.data(), out.data(), counts, reduction);
    expect_equal_bits(expected, out, what);
    expect_equal_bits(rank_numbers<T>(count, rank), input, what + " (input)");
    reduction.factor = 0.3;
    std::vector<T> scaled(*own);
    scale(scaled.data(), expected.data(), *own, dtype, reduction.factor);
    engine.reduce_scatter(lane, input.data(), out.data(), counts, reduction);
    expect_equal_bits(scaled, out, what + " with a factor");
  });
}

void check_all_to_all(Engine& engine, int lane, int rank, int size, std::size_t scale) {
  std::vector<std::uint8_t> input;
  std::vector<std::uint8_t> expected;
  std::vector<std::size_t> send_bytes;
  std::vector<std::size_t> recv_bytes;
  for (int peer = 0; peer < size; ++peer) {
    const auto sent = piece_between(rank, peer, scale);
    const auto received = piece_between(peer, rank, scale);
    input.insert(input.end(), sent.begin(), sent.end());
    expected.insert(expected.end(), received.begin(), received.end());
    send_bytes.push_back(sent.size());
    recv_bytes.push_back(received.size());
  }
  const std::vector<std::uint8_t> original = input;
  std::vector<std::uint8_t> out(expected.size(), 0xee);
  engine.all_to_all(lane, input.data(), out.data(), send_bytes, recv_bytes);
  const std::string what = "all_to_all rank " + std::to_string(rank) + " of " +
                           std::to_string(size) + " scale " + std::to_string(scale);
  expect_equal_bits(expected, out, what);
  expect_equal_bits(original, input, what + " (input)");
}

void check_pieces(Engine& engine,
                  int lane,
                  int rank,
                  int size,
                  const PerRank& counts,
                  const Reduction& reduction) {
  visit_dtype(reduction.dtype, [&](auto element) {
    using T = decltype(element);
    std::vector<std::vector<T>> pieces;
    for (std::size_t started = 0, finished = 0; finished < counts.size();) {
      if (started < counts.size() && started - finished < Engine::kTickets) {
        pieces.push_back(rank_numbers<T>(counts[started], rank));
        engine.start_all_reduce(lane,
                                static_cast<int>(started % Engine::kTickets),
                                pieces.back().data(),
                                counts[started],
                                reduction);
        ++started;
        continue;
      }
      engine.finish_all_reduce(lane, static_cast<int>(finished % Engine::kTickets));
      std::vector<T> expected = reduced_numbers<T>(counts[finished], size, reduction.op);
      scale(expected.data(), expected.data(), expected.size(), reduction.dtype, reduction.factor);
      expect_equal_bits(expected,
                        pieces[finished],
                        "piece " + std::to_string(finished) + " on rank " + std::to_string(rank));
      ++finished;
    }
  });
}

void check_every_operation(Engine& engine, int lane, int rank, int size, bool exchanges) {
  check_all_reduce(engine, lane, rank, size, 3001, DataType::kFloat32, ReduceOp::kSum);
  check_pieces(engine, lane, rank, size, {701, 0, 3001}, {DataType::kFloat32, ReduceOp::kSum, 0.5});
  check_broadcast(engine, lane, rank, size - 1, 5001);
  check_all_gather(engine, lane, rank, size, 701);
  check_reduce_scatter(
      engine, lane, rank, uneven_counts(size, 501), DataType::kBFloat16, ReduceOp::kSum);
  if (exchanges) {
    check_all_to_all(engine, lane, rank, size, 301);
  }
}

}  // namespace aiacc
