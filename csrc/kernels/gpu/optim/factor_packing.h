#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/kernels/gpu/optim/tensor_shares.h"

namespace aiacc {

/// What the kernels do with K-FAC's factors, symmetric matrices whose upper triangles travel in the
/// layout of aiacc/kfac/packing.py.
enum class FactorWork : std::uint8_t {
  kPack,     ///< reads upper triangles only
  kUnpack,   ///< writes both triangles
  kAverage,  ///< the same with a running mean, which what is packed enters
};

/// Factors of equal dimension, whose triangles are packed one behind the other. Strides are in
/// elements; elements of a row are neighbours.
struct FactorStack {
  void* matrices = nullptr;
  void* packed = nullptr;
  std::uint64_t dim = 0;
  std::uint64_t number = 0;
  std::uint64_t row_stride = 0;
  std::uint64_t matrix_stride = 0;
  double scale = 1;   ///< kAverage: of what is packed
  double enters = 1;  ///< kAverage: its weight in the mean; 1: the mean is not read
};

inline constexpr std::uint32_t kFactorThreads = kOptimThreads;
/// Rows and columns of a tile, which a block has at a time.
inline constexpr std::uint32_t kFactorTile = 64;

/// A stack as the kernels read it. Its chunks are the tiles of upper triangles, row by row, matrix
/// by matrix.
struct FactorItem {
  void* matrices;
  void* packed;
  std::uint64_t row_stride;
  std::uint64_t matrix_stride;
  double scale;
  double enters;
  std::uint32_t dim;
  std::uint32_t first_chunk;
};

/// The only argument of a kernel: everything travels with the launch, so that a CUDA graph may
/// hold it.
struct FactorBatch {
  static constexpr std::size_t kStacks = 73;
  std::uint32_t items;
  std::uint32_t chunks;
  FactorItem item[kStacks];
};
static_assert(sizeof(FactorBatch) <= 4096, "the limit of every driver");

/// A kernel, and its twin on the host: what `blocks` blocks do, one thread after another, in either
/// order.
struct FactorKernel {
  const char* name;  ///< in the device image
  FactorWork work;
  DataType dtype;
  void (*run)(const FactorBatch& batch, std::uint32_t blocks, bool backwards);
};

/// The list of the kernels, for the device and the host: X(name, work, type).
#define AIACC_FACTOR_KERNELS(X)       \
  X(pack_float32, kPack, float)       \
  X(pack_float64, kPack, double)      \
  X(unpack_float32, kUnpack, float)   \
  X(unpack_float64, kUnpack, double)  \
  X(average_float32, kAverage, float) \
  X(average_float64, kAverage, double)

const std::vector<FactorKernel>& factor_kernels();

/// Index of the kernel. Throws Error(kUnsupported) unless dtype is float32 or float64.
std::size_t choose_factor_kernel(FactorWork work, DataType dtype);

/// Fills in the argument of a launch for `count` stacks, at most its capacity; those without
/// elements are left out. Pure. Throws Error(kInvalidArgument) if an address is no multiple of an
/// element of `dtype`, and beyond 2^31 tiles.
void plan_factors(DataType dtype, const FactorStack* stacks, std::size_t count, FactorBatch& batch);

}  // namespace aiacc
