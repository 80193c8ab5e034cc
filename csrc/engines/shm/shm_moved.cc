// The all-reduce of a ShmChannel whose buffers are out of its reach: a mover copies whole blocks
// into the own slot, where they are reduced, and results out of the slots of all ranks.

#include "csrc/engines/shm/shm_channel.h"
#include "csrc/engines/shm/shm_plan.h"
#include "csrc/kernels/reduce.h"

namespace aiacc {
namespace {

int ticket_of(std::uint64_t block) {
  static_assert(ShmChannel::kSlots <= BlockMover::kTickets);
  return static_cast<int>(block % ShmChannel::kSlots);
}

}  // namespace

void ShmChannel::all_reduce_moved(std::size_t count,
                                  const Reduction& reduction,
                                  BlockMover& mover) {
  AIACC_CHECK(size() > 1 && count * size_of(reduction.dtype) > kSmallBytes);
  cancellation_.check();
  const Plan plan = cut(count, reduction, false, 0);
  try {
    move_blocks(plan, mover);
  } catch (...) {
    mover.stop();
    throw;
  }
  blocks_ = plan.end;
}

/// Each turn of the loop works on four consecutive blocks, the oldest first; the newest is started
/// last, in the slot of the one that was finished in the turn before. A copy runs while the CPU
/// does other things: one in from the end of a turn to `finish_in` of the next, one out from the
/// start of a turn to `finish_out`.
///
/// Four slots are enough, and nothing waits in a circle. Call the steps of turn t (t,1) to (t,5),
/// in the order below, and order the steps of all ranks by turn, then by step. Of other ranks,
/// (t,1) waits for (t-1,2), (t,2) for (t-1,3), and (t,5) for (t-1,4): always for something earlier.
/// The other two wait for no rank. Ranks in `all_reduce` announce the same things about the same
/// blocks. There, turn t publishes block t, reduces t-1 and gathers t-2: of ranks here it waits for
/// (t-1,4), (t,3) and (t,2), and what ranks here wait for in turn t is done there in turn t-2. So
/// call turn t of those (t,6), and that is earlier, too.
void ShmChannel::move_blocks(const Plan& plan, BlockMover& mover) {
  for (std::uint64_t turn = plan.first; turn < plan.end + 3; ++turn) {
    const auto has = [&](std::uint64_t behind) {
      return turn >= plan.first + behind && turn - behind < plan.end;
    };
    if (has(3)) {
      start_out(plan, turn - 3, mover);
    }
    if (has(2)) {
      reduce_in_slot(plan, turn - 2);
      progress_.announce(ShmProgress::kReduced, turn - 1);
    }
    if (has(1)) {
      mover.finish_in(ticket_of(turn - 1));
      progress_.announce(ShmProgress::kPublished, turn);
    }
    if (has(3)) {
      mover.finish_out(ticket_of(turn - 3));
      progress_.announce(ShmProgress::kConsumed, turn - 2);
    }
    if (has(0)) {
      start_block(turn);
      const Plan::Range block = plan.whole(turn);
      mover.start_in(ticket_of(turn), block.offset, block.bytes, slot(rank_, turn));
    }
  }
}

/// The same operations in the same order as in `reduce_piece`, so the same bits.
void ShmChannel::reduce_in_slot(const Plan& plan, std::uint64_t block) {
  const Plan::Range piece = plan.piece(block, static_cast<std::size_t>(rank_));
  std::byte* shown = slot(rank_, block) + piece.in_slot;
  const DataType dtype = plan.reduction.dtype;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank_ + step) % size();
    progress_.wait_for(peer, ShmProgress::kPublished, block + 1);
    const std::byte* right = slot(peer, block) + piece.in_slot;
    if (step == size() - 1) {
      reduce_scaled(shown, shown, right, piece.elems, plan.reduction);
    } else {
      reduce_into(shown, shown, right, piece.elems, dtype, plan.reduction.op);
    }
  }
}

/// Each piece as soon as its owner has it.
void ShmChannel::start_out(const Plan& plan, std::uint64_t block, BlockMover& mover) {
  for (int step = 0; step < size(); ++step) {
    const int owner = (rank_ + step) % size();
    if (owner != rank_) {
      progress_.wait_for(owner, ShmProgress::kReduced, block + 1);
    }
    const Plan::Range piece = plan.piece(block, static_cast<std::size_t>(owner));
    if (piece.bytes > 0) {
      mover.start_out(
          ticket_of(block), piece.offset, piece.bytes, slot(owner, block) + piece.in_slot);
    }
  }
}

}  // namespace aiacc
