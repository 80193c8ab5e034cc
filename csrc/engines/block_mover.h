#pragma once

#include <cstddef>

namespace aiacc {

/// Memory that ranks share, as one process sees it.
struct SharedSlots {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// Copies between the buffer of an all-reduce, which an engine cannot reach, and the engine's
/// slots: see Engine::all_reduce_moved. For memory of a GPU.
///
/// Copies have a ticket, 0 .. kTickets - 1, and run at any time between their start and their
/// finish; those of different tickets may overlap. Every copy is finished before its ticket starts
/// another one of the same direction. Called by one thread. All but `stop` throw Error.
class BlockMover {
 public:
  static constexpr int kTickets = 4;

  virtual ~BlockMover() = default;

  /// Starts to copy `bytes` of the input, from `offset` on, to `to`.
  virtual void start_in(int ticket, std::size_t offset, std::size_t bytes, std::byte* to) = 0;
  /// Blocks until they are there. Waits for no other rank.
  virtual void finish_in(int ticket) = 0;
  /// Starts to copy from `from` to the output; several of one ticket may be under way.
  virtual void start_out(int ticket,
                         std::size_t offset,
                         std::size_t bytes,
                         const std::byte* from) = 0;
  /// Blocks until all of them are there. Waits for no other rank.
  virtual void finish_out(int ticket) = 0;
  /// After a failure: blocks until no copy is running any more, nor will.
  virtual void stop() noexcept = 0;
};

}  // namespace aiacc
