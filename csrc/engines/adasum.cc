#include "csrc/engines/adasum.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/kernels/adasum.h"

namespace aiacc {
namespace {

/// Elements of the whole buffer.
struct Range {
  std::size_t begin;
  std::size_t end;
  std::size_t size() const { return end - begin; }
};

/// One call, of one rank.
class Adasum {
 public:
  Adasum(Engine& engine,
         int lane,
         std::byte* data,
         const std::vector<std::size_t>& counts,
         DataType dtype,
         int rank,
         int size)
      : engine_(engine),
        lane_(lane),
        data_(data),
        counts_(counts),
        dtype_(dtype),
        element_(size_of(dtype)),
        rank_(rank),
        size_(size),
        products_(counts.size() * static_cast<std::size_t>(size)) {}

  void run() {
    const std::size_t total = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
    theirs_.resize((total + 1) / 2 * element_);
    std::vector<Range> kept;
    std::vector<Range> given;
    Range mine{0, total};
    for (int distance = 1; distance < size_; distance *= 2) {
      const std::size_t middle = mine.begin + mine.size() / 2;
      const Range low{mine.begin, middle};
      const Range high{middle, mine.end};
      const bool lower = (rank_ & distance) == 0;
      kept.push_back(lower ? low : high);
      given.push_back(lower ? high : low);
      mine = kept.back();
      exchange(rank_ ^ distance, given.back(), at(theirs_.data(), 0), mine.size());
      combine(mine, distance, lower);
    }
    for (int distance = size_ / 2; distance > 0; distance /= 2) {
      exchange(rank_ ^ distance, kept.back(), at(data_, given.back().begin), given.back().size());
      // With what the partner has worked on, this is what was kept one step earlier.
      kept.pop_back();
      given.pop_back();
    }
  }

 private:
  std::byte* at(std::byte* base, std::size_t index) const { return base + index * element_; }

  /// Sends `outgoing` to `partner` and receives `count` elements of it.
  void exchange(int partner, Range outgoing, std::byte* into, std::size_t count) {
    std::vector<std::size_t> send_bytes(static_cast<std::size_t>(size_), 0);
    std::vector<std::size_t> recv_bytes = send_bytes;
    send_bytes[static_cast<std::size_t>(partner)] = outgoing.size() * element_;
    recv_bytes[static_cast<std::size_t>(partner)] = count * element_;
    engine_.all_to_all(lane_, at(data_, outgoing.begin), into, send_bytes, recv_bytes);
  }

  /// Calls `visit(tensor, part)` for what `mine` holds of each tensor.
  template <class Visit>
  void for_each_tensor(Range mine, Visit visit) const {
    std::size_t start = 0;
    for (std::size_t tensor = 0; tensor < counts_.size(); ++tensor) {
      const std::size_t end = start + counts_[tensor];
      const Range part{std::max(start, mine.begin), std::min(end, mine.end)};
      if (part.begin < part.end) {
        visit(tensor, part);
      }
      start = end;
    }
  }

  /// Replaces `mine` by its adaptive sum with the partner's, in `theirs_`. The pair's vectors are
  /// spread over all ranks that agree in the bits above `distance`.
  void combine(Range mine, int distance, bool lower) {
    const std::size_t tensors = counts_.size();
    PairProducts* own = products_.data() + static_cast<std::size_t>(rank_) * tensors;
    std::fill(own, own + tensors, PairProducts{});
    const auto pair = [&](Range part) {
      std::byte* ours = at(data_, part.begin);
      std::byte* other = at(theirs_.data(), part.begin - mine.begin);
      return lower ? std::pair{ours, other} : std::pair{other, ours};
    };
    for_each_tensor(mine, [&](std::size_t tensor, Range part) {
      const auto [a, b] = pair(part);
      own[tensor] = pair_products(a, b, part.size(), dtype_);
    });
    engine_.all_gather(
        lane_,
        own,
        products_.data(),
        std::vector<std::size_t>(static_cast<std::size_t>(size_), tensors * sizeof(PairProducts)));
    const int first = rank_ & ~(2 * distance - 1);
    for_each_tensor(mine, [&](std::size_t tensor, Range part) {
      PairProducts sum;
      for (int rank = first; rank < first + 2 * distance; ++rank) {
        const PairProducts& more = products_[static_cast<std::size_t>(rank) * tensors + tensor];
        sum.ab += more.ab;
        sum.aa += more.aa;
        sum.bb += more.bb;
      }
      const auto [a, b] = pair(part);
      combine_adasum(at(data_, part.begin), a, b, part.size(), dtype_, sum);
    });
  }

  Engine& engine_;
  const int lane_;
  std::byte* const data_;
  const std::vector<std::size_t>& counts_;
  const DataType dtype_;
  const std::size_t element_;
  const int rank_;
  const int size_;
  std::vector<std::byte> theirs_;
  std::vector<PairProducts> products_;  ///< of every rank, by tensor
};

}  // namespace

void adasum(Engine& engine,
            int lane,
            const void* send,
            void* recv,
            const std::vector<std::size_t>& counts,
            DataType dtype,
            int rank,
            int size) {
  if (size <= 0 || (size & (size - 1)) != 0) {
    throw Error(Code::kInvalidArgument,
                "[engines] Adasum among " + std::to_string(size) +
                    " ranks (expected a power of two); change the number of ranks, or use Average");
  }
  pair_products(nullptr, nullptr, 0, dtype);  // refuses what is no float
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (send != recv && total > 0) {
    std::memcpy(recv, send, total * size_of(dtype));
  }
  Adasum(engine, lane, static_cast<std::byte*>(recv), counts, dtype, rank, size).run();
}

}  // namespace aiacc
