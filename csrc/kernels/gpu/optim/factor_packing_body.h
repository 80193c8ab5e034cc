#pragma once

// The bodies of the kernels of factor_packing.h, for factor_packing.cu and factor_packing.cc. A
// warp is at neighbours in a row, in the matrix as where it is packed. Rows of a triangle begin
// anywhere, so elements are moved one by one.

#include <cstdint>

#include "csrc/kernels/gpu/grid.h"
#include "csrc/kernels/gpu/optim/factor_packing.h"
#include "csrc/kernels/gpu/optim/tensor_shares.h"

namespace aiacc {
namespace {

// The layout of aiacc/kfac/packing.py.
/// Rows of a square on the diagonal, PANEL there.
inline constexpr std::uint32_t kPackedPanel = 128;
/// Dimension up to which a triangle is not cut, LEAST there.
inline constexpr std::uint32_t kPackedWhole = 2 * kPackedPanel;
static_assert(kPackedPanel % kFactorTile == 0, "a tile is in one piece");

/// Rows of a tile that the threads of a block are at together.
inline constexpr std::uint32_t kFactorRows = kFactorThreads / kFactorTile;
/// Elements of a tile that a thread has, in one column.
inline constexpr std::uint32_t kFactorShare = kFactorTile / kFactorRows;
/// How many of them it has in flight, to hide the latency of memory: what registers hold, next to
/// the addresses in a square.
template <class T, bool kSquare>
inline constexpr std::uint32_t kFactorUnroll =
    kFactorShare / (kSquare ? 4 : 1) / (sizeof(T) > sizeof(float) ? 2 : 1);

struct FactorThread {};

/// Memory of a block: a tile, of which columns are read as rows, without conflicts of banks.
template <class T>
struct FactorShared {
  T tile[kFactorTile][kFactorTile + 1];
};

AIACC_HOST_DEVICE inline std::uint64_t triangle(std::uint64_t dim) { return dim * (dim + 1) / 2; }

/// A piece of a packed triangle: what is on or above the diagonal of a square, or a panel. Row
/// `above` of it begins at begin + above * width, of a square triangle(above) less.
struct PackedPiece {
  std::uint64_t begin;
  std::uint64_t width;
  std::uint32_t row;  ///< of its first element in the matrix
  std::uint32_t column;
  bool is_square;
};

/// The piece that an element of the upper triangle is in.
AIACC_HOST_DEVICE inline PackedPiece piece_of(std::uint64_t dim, std::uint32_t i, std::uint32_t j) {
  if (dim <= kPackedWhole) {
    return {0, dim, 0, 0, true};
  }
  const std::uint64_t number = i / kPackedPanel;
  const std::uint64_t start = number * kPackedPanel;
  const std::uint64_t stop = start + kPackedPanel;
  const auto row = static_cast<std::uint32_t>(start);
  if (j < stop) {
    return {
        number * triangle(kPackedPanel), dim < stop ? dim - start : kPackedPanel, row, row, true};
  }
  const std::uint64_t squares =
      dim / kPackedPanel * triangle(kPackedPanel) + triangle(dim % kPackedPanel);
  const std::uint64_t panels = start * dim - kPackedPanel * kPackedPanel * triangle(number);
  return {squares + panels, dim - stop, row, static_cast<std::uint32_t>(stop), false};
}

/// Goes from tile to tile of a stack, as chunks are numbered.
class TileWalk {
 public:
  AIACC_HOST_DEVICE TileWalk(std::uint32_t dim, std::uint32_t chunk)
      : side_((dim - 1) / kFactorTile + 1) {
    const auto tiles = static_cast<std::uint32_t>(triangle(side_));
    std::uint32_t left = chunk % tiles;
    for (number_ = chunk / tiles; left >= side_ - row_; ++row_) {
      left -= side_ - row_;
    }
    column_ = row_ + left;
  }
  AIACC_HOST_DEVICE void go_on() {
    if (++column_ == side_) {
      if (++row_ == side_) {
        row_ = 0;
        ++number_;
      }
      column_ = row_;
    }
  }
  /// Of the matrix in the stack.
  AIACC_HOST_DEVICE std::uint32_t number() const { return number_; }
  /// Of the first element in the matrix.
  AIACC_HOST_DEVICE std::uint32_t row() const { return row_ * kFactorTile; }
  AIACC_HOST_DEVICE std::uint32_t column() const { return column_ * kFactorTile; }

 private:
  std::uint32_t side_;
  std::uint32_t number_ = 0;
  std::uint32_t row_ = 0;
  std::uint32_t column_ = 0;
};

/// A tile with what it takes to reach its elements.
template <class T>
struct TileMemory {
  AIACC_HOST_DEVICE TileMemory(const FactorItem& item, const TileWalk& walk)
      : row(walk.row()),
        column(walk.column()),
        matrix(static_cast<T*>(item.matrices) + walk.number() * item.matrix_stride),
        packed(static_cast<T*>(item.packed) + walk.number() * triangle(item.dim)),
        row_stride(item.row_stride),
        piece(piece_of(item.dim, row, column)),
        dim(item.dim) {}

  const std::uint32_t row;
  const std::uint32_t column;
  T* const matrix;
  T* const packed;
  const std::uint64_t row_stride;
  const PackedPiece piece;
  const std::uint32_t dim;

  /// Whether all of it is above the diagonal of the matrix.
  AIACC_HOST_DEVICE bool whole() const { return row < column && column + kFactorTile <= dim; }
};

/// The elements of a thread in a tile of a square or a panel: number u is u * kFactorRows rows
/// below the first. Where they are follows by additions; for what there is none of, it may be
/// anything.
template <bool kSquare>
class FactorColumn {
 public:
  template <class T>
  AIACC_HOST_DEVICE FactorColumn(const TileMemory<T>& tile,
                                 std::uint32_t thread,
                                 std::uint32_t first) {
    const std::uint32_t i = tile.row + first * kFactorRows + thread / kFactorTile;
    const std::uint32_t j = tile.column + thread % kFactorTile;
    const std::uint64_t above = i - tile.piece.row;
    full_ = i * tile.row_stride + j;
    full_step_ = kFactorRows * tile.row_stride;
    packed_ = tile.piece.begin + above * tile.piece.width + (j - tile.piece.column) -
              (kSquare ? triangle(above) : 0);
    packed_step_ = kFactorRows * (tile.piece.width - (kSquare ? above : 0));
    // A panel is right of the diagonal.
    const auto room = static_cast<std::int32_t>(kSquare ? j - i : kFactorTile);
    room_ = j < tile.dim ? room : -1;
  }

  /// Whether the element is in the upper triangle.
  AIACC_HOST_DEVICE bool has(std::uint32_t u) const {
    return kSquare ? static_cast<std::int32_t>(u * kFactorRows) <= room_ : room_ >= 0;
  }
  /// Where it is in the matrix.
  AIACC_HOST_DEVICE std::uint64_t full(std::uint32_t u) const { return full_ + u * full_step_; }
  /// Where it is packed.
  AIACC_HOST_DEVICE std::uint64_t packed(std::uint32_t u) const {
    return packed_ + u * packed_step_ - (kSquare ? triangle(u * kFactorRows) : 0);
  }

 private:
  std::uint64_t full_;
  std::uint64_t full_step_;
  std::uint64_t packed_;
  std::uint64_t packed_step_;
  std::int32_t room_;  ///< to the last row that has an element; negative: there is none
};

template <bool kSquare, class T>
AIACC_HOST_DEVICE void pack_column(const TileMemory<T>& tile, std::uint32_t thread) {
  constexpr std::uint32_t kCount = kFactorUnroll<T, kSquare>;
  for (std::uint32_t first = 0; first < kFactorShare; first += kCount) {
    const FactorColumn<kSquare> column(tile, thread, first);
    T value[kCount] = {};
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) {
      if (column.has(u)) {
        value[u] = tile.matrix[column.full(u)];
      }
    }
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) {
      if (column.has(u)) {
        tile.packed[column.packed(u)] = value[u];
      }
    }
  }
}

/// As torch's lerp.
template <class T>
AIACC_HOST_DEVICE T average_of(T mean, T value, T enters) {
  const T change = value - mean;
  return enters < T{0.5} ? mean + product(enters, change) : value - product(T{1} - enters, change);
}

/// Writes the upper triangle, and leaves it for the lower one.
template <bool kAverages, bool kSquare, class T>
AIACC_HOST_DEVICE void unpack_column(const TileMemory<T>& tile,
                                     const FactorItem& item,
                                     FactorShared<T>& shared,
                                     std::uint32_t thread) {
  constexpr std::uint32_t kCount = kFactorUnroll<T, kSquare>;
  const bool reads = kAverages && item.enters != 1;
  T* left = &shared.tile[thread / kFactorTile][thread % kFactorTile];
  for (std::uint32_t first = 0; first < kFactorShare; first += kCount) {
    const FactorColumn<kSquare> column(tile, thread, first);
    T value[kCount] = {};
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) {
      if (column.has(u)) {
        value[u] = tile.packed[column.packed(u)];
      }
    }
    if constexpr (kAverages) {
      T mean[kCount] = {};
      if (reads) {
        AIACC_UNROLL
        for (std::uint32_t u = 0; u < kCount; ++u) {
          if (column.has(u)) {
            mean[u] = tile.matrix[column.full(u)];
          }
        }
      }
      AIACC_UNROLL
      for (std::uint32_t u = 0; u < kCount; ++u) {
        value[u] = product(value[u], static_cast<T>(item.scale));
        value[u] = reads ? average_of(mean[u], value[u], static_cast<T>(item.enters)) : value[u];
      }
    }
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) {
      if (column.has(u)) {
        tile.matrix[column.full(u)] = value[u];
        left[(first + u) * kFactorRows * (kFactorTile + 1)] = value[u];
      }
    }
  }
}

/// Writes the lower triangle. kWhole: no element of the tile is below the diagonal or outside.
template <bool kWhole, class T>
AIACC_HOST_DEVICE void mirror_row(const TileMemory<T>& tile,
                                  const FactorShared<T>& shared,
                                  std::uint32_t thread) {
  const std::uint32_t column = thread % kFactorTile;
  const std::uint32_t row = thread / kFactorTile;
  const std::uint32_t i = tile.row + column;
  const std::uint32_t j = tile.column + row;
  const std::uint64_t full = j * tile.row_stride + i;
  const std::uint64_t step = kFactorRows * tile.row_stride;
  const auto above = static_cast<std::int32_t>(i - j);
  const auto room = static_cast<std::int32_t>(tile.dim - j);
  AIACC_UNROLL
  for (std::uint32_t u = 0; u < kFactorShare; ++u) {
    const auto down = static_cast<std::int32_t>(u * kFactorRows);
    if (kWhole || (above < down && down < room)) {
      tile.matrix[full + u * step] = shared.tile[column][row + u * kFactorRows];
    }
  }
}

/// Calls visit(tile, item) for the tiles of block `block` of `blocks`.
template <class T, class Visit>
AIACC_HOST_DEVICE void each_tile(const FactorBatch& batch,
                                 std::uint32_t block,
                                 std::uint32_t blocks,
                                 Visit visit) {
  each_item(
      batch, block, blocks, [&](std::uint32_t number, std::uint32_t first, std::uint32_t last) {
        const FactorItem& item = batch.item[number];
        TileWalk walk(item.dim, first);
        for (std::uint32_t chunk = first; chunk < last; ++chunk, walk.go_on()) {
          visit(TileMemory<T>(item, walk), item);
        }
      });
}

/// What block `block` of `blocks` does.
template <FactorWork kWork, class T, class Block>
AIACC_HOST_DEVICE void factor_share(Block& block, const FactorBatch& batch, std::uint32_t blocks) {
  if constexpr (kWork == FactorWork::kPack) {
    // Threads have nothing to do with one another, so none waits.
    block.each([&](std::uint32_t thread, FactorThread&) {
      each_tile<T>(
          batch, block.number(), blocks, [&](const TileMemory<T>& tile, const FactorItem&) {
            tile.piece.is_square ? pack_column<true>(tile, thread)
                                 : pack_column<false>(tile, thread);
          });
    });
  } else {
    constexpr bool kAverages = kWork == FactorWork::kAverage;
    each_tile<T>(
        batch, block.number(), blocks, [&](const TileMemory<T>& tile, const FactorItem& item) {
          block.each([&](std::uint32_t thread, FactorThread&) {
            tile.piece.is_square
                ? unpack_column<kAverages, true>(tile, item, block.shared(), thread)
                : unpack_column<kAverages, false>(tile, item, block.shared(), thread);
          });
          block.each([&](std::uint32_t thread, FactorThread&) {
            tile.whole() ? mirror_row<true>(tile, block.shared(), thread)
                         : mirror_row<false>(tile, block.shared(), thread);
          });
        });
  }
}

}  // namespace
}  // namespace aiacc
