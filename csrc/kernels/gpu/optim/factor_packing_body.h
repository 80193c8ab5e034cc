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

/// Elements that a thread has in flight, to hide the latency of memory.
inline constexpr std::uint32_t kFactorUnroll = 8;
/// Rows of a tile that the threads of a block are at together.
inline constexpr std::uint32_t kFactorRows = kFactorThreads / kFactorTile;

struct FactorThread {};

/// Memory of a block: a tile, of which columns are read as rows, without conflicts of banks.
template <class T>
struct FactorShared {
  T tile[kFactorTile][kFactorTile + 1];
};

AIACC_HOST_DEVICE inline std::uint64_t triangle(std::uint64_t dim) { return dim * (dim + 1) / 2; }

/// A piece of a packed triangle: what is on or above the diagonal of a square, or a panel.
struct PackedPiece {
  std::uint64_t begin;
  std::uint64_t width;
  std::uint32_t row;  ///< of its first element in the matrix
  std::uint32_t column;
  bool is_square;

  /// Where the element of a row and column of the matrix is packed.
  AIACC_HOST_DEVICE std::uint64_t place(std::uint32_t i, std::uint32_t j) const {
    const std::uint64_t above = i - row;
    return begin + above * width + (j - column) - (is_square ? triangle(above) : 0);
  }
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
  /// Which matrix of the stack it is in.
  AIACC_HOST_DEVICE std::uint32_t number() const { return number_; }
  /// Where its first element is in the matrix.
  AIACC_HOST_DEVICE std::uint32_t row() const { return row_ * kFactorTile; }
  AIACC_HOST_DEVICE std::uint32_t column() const { return column_ * kFactorTile; }

 private:
  std::uint32_t side_;
  std::uint32_t number_ = 0;
  std::uint32_t row_ = 0;
  std::uint32_t column_ = 0;
};

/// A tile with what it takes to reach its elements, by their row and column in the matrix.
template <class T>
class TileMemory {
 public:
  AIACC_HOST_DEVICE TileMemory(const FactorItem& item, const TileWalk& walk)
      : row(walk.row()),
        column(walk.column()),
        matrix_(static_cast<T*>(item.matrices) + walk.number() * item.matrix_stride),
        packed_(static_cast<T*>(item.packed) + walk.number() * triangle(item.dim)),
        row_stride_(item.row_stride),
        piece_(piece_of(item.dim, row, column)),
        dim_(item.dim) {}

  AIACC_HOST_DEVICE bool has(std::uint32_t i, std::uint32_t j) const { return i <= j && j < dim_; }
  AIACC_HOST_DEVICE T& full(std::uint32_t i, std::uint32_t j) const {
    return matrix_[i * row_stride_ + j];
  }
  AIACC_HOST_DEVICE T& packed(std::uint32_t i, std::uint32_t j) const {
    return packed_[piece_.place(i, j)];
  }

  const std::uint32_t row;
  const std::uint32_t column;

 private:
  T* matrix_;
  T* packed_;
  std::uint64_t row_stride_;
  PackedPiece piece_;
  std::uint32_t dim_;
};

/// Calls visit(number, row) for some rows that a thread is at.
template <std::uint32_t kCount, class Visit>
AIACC_HOST_DEVICE void some_rows(std::uint32_t first, Visit visit) {
  AIACC_UNROLL
  for (std::uint32_t u = 0; u < kCount; ++u) {
    visit(u, first + u * kFactorRows);
  }
}

template <class T>
AIACC_HOST_DEVICE void pack_tile(const TileMemory<T>& tile, std::uint32_t thread) {
  const std::uint32_t j = tile.column + thread % kFactorTile;
  const std::uint32_t first = tile.row + thread / kFactorTile;
  for (std::uint32_t at = 0; at < kFactorTile; at += kFactorRows * kFactorUnroll) {
    T value[kFactorUnroll] = {};
    some_rows<kFactorUnroll>(first + at, [&](std::uint32_t u, std::uint32_t i) {
      if (tile.has(i, j)) {
        value[u] = tile.full(i, j);
      }
    });
    some_rows<kFactorUnroll>(first + at, [&](std::uint32_t u, std::uint32_t i) {
      if (tile.has(i, j)) {
        tile.packed(i, j) = value[u];
      }
    });
  }
}

/// As torch's lerp.
template <class T>
AIACC_HOST_DEVICE T average_of(T mean, T value, T enters) {
  const T change = value - mean;
  return enters < T{0.5} ? mean + product(enters, change) : value - product(T{1} - enters, change);
}

/// Writes the upper triangle, and leaves it for the lower one.
template <bool kAverages, class T>
AIACC_HOST_DEVICE void unpack_tile(const TileMemory<T>& tile,
                                   const FactorItem& item,
                                   FactorShared<T>& shared,
                                   std::uint32_t thread) {
  const std::uint32_t j = tile.column + thread % kFactorTile;
  const std::uint32_t first = tile.row + thread / kFactorTile;
  constexpr std::uint32_t kCount = kAverages ? kFactorUnroll / 2 : kFactorUnroll;
  const bool reads = kAverages && item.enters != 1;
  for (std::uint32_t at = 0; at < kFactorTile; at += kFactorRows * kCount) {
    T value[kCount] = {};
    T mean[kCount] = {};
    some_rows<kCount>(first + at, [&](std::uint32_t u, std::uint32_t i) {
      if (tile.has(i, j)) {
        value[u] = tile.packed(i, j);
        if (reads) {
          mean[u] = tile.full(i, j);
        }
      }
    });
    some_rows<kCount>(first + at, [&](std::uint32_t u, std::uint32_t i) {
      if constexpr (kAverages) {
        value[u] = product(value[u], static_cast<T>(item.scale));
        if (reads) {
          value[u] = average_of(mean[u], value[u], static_cast<T>(item.enters));
        }
      }
      if (tile.has(i, j)) {
        tile.full(i, j) = value[u];
        shared.tile[i - tile.row][j - tile.column] = value[u];
      }
    });
  }
}

/// Writes the lower triangle.
template <class T>
AIACC_HOST_DEVICE void mirror_tile(const TileMemory<T>& tile,
                                   const FactorShared<T>& shared,
                                   std::uint32_t thread) {
  const std::uint32_t column = thread % kFactorTile;
  const std::uint32_t i = tile.row + column;
  for (std::uint32_t row = thread / kFactorTile; row < kFactorTile; row += kFactorRows) {
    const std::uint32_t j = tile.column + row;
    if (i < j && tile.has(i, j)) {
      tile.full(j, i) = shared.tile[column][row];
    }
  }
}

/// What block `block` of `blocks` does.
template <FactorWork kWork, class T, class Block>
AIACC_HOST_DEVICE void factor_share(Block& block, const FactorBatch& batch, std::uint32_t blocks) {
  each_item(batch,
            block.number(),
            blocks,
            [&](std::uint32_t number_of_item, std::uint32_t first, std::uint32_t last) {
              const FactorItem& item = batch.item[number_of_item];
              TileWalk walk(item.dim, first);
              for (std::uint32_t chunk = first; chunk < last; ++chunk, walk.go_on()) {
                const TileMemory<T> tile(item, walk);
                if constexpr (kWork == FactorWork::kPack) {
                  block.each([&](std::uint32_t thread, FactorThread&) { pack_tile(tile, thread); });
                } else {
                  block.each([&](std::uint32_t thread, FactorThread&) {
                    unpack_tile<kWork == FactorWork::kAverage>(tile, item, block.shared(), thread);
                  });
                  block.each([&](std::uint32_t thread, FactorThread&) {
                    mirror_tile(tile, block.shared(), thread);
                  });
                }
              }
            });
}

}  // namespace
}  // namespace aiacc
