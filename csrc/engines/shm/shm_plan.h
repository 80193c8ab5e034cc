#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/engines/shm/shm_channel.h"

namespace aiacc {

/// One all-reduce, cut into blocks and pieces in the same way on every rank.
struct ShmChannel::Plan {
  const std::byte* send = nullptr;  ///< this and the next: null where a mover has them
  std::byte* recv = nullptr;
  std::size_t count = 0;
  Reduction reduction;
  bool leaves_node = false;  ///< another node's part is still to come when this node's is reduced
  bool writes_recv = false;  ///< nobody else on the node: results go to `recv` without a slot
  std::size_t element = 0;   ///< bytes
  std::size_t block_elems = 0;  ///< of every block but the last
  std::uint64_t first = 0;      ///< sequence number of the first block
  std::uint64_t end = 0;        ///< of the one after the last
  std::size_t owners = 0;       ///< of pieces: the ranks of the lowest numbers

  struct Range {
    std::size_t offset;   ///< bytes from the start of the buffer
    std::size_t in_slot;  ///< bytes from the start of the slot
    std::size_t elems;
    std::size_t bytes;
  };

  Range whole(std::uint64_t block) const;
  Range piece(std::uint64_t block, std::size_t rank) const;
};

}  // namespace aiacc
