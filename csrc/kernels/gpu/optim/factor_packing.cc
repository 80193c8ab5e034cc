#include "csrc/kernels/gpu/optim/factor_packing.h"

#include <string>
#include <type_traits>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/factor_packing_body.h"

namespace aiacc {
namespace {

constexpr std::uint64_t kMostTiles = std::uint64_t{1} << 31;

template <FactorWork kWork, class T>
void run_on_host(const FactorBatch& batch, std::uint32_t blocks, bool backwards) {
  HostGrid<FactorThread, FactorShared<T>, kFactorThreads>(blocks, backwards)
      .blocks([&](auto& block) { factor_share<kWork, T>(block, batch, blocks); });
}

void check_address(const void* address, std::size_t element, std::size_t number) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  if (value % element != 0) {
    throw Error(Code::kInvalidArgument,
                "[kernels] stack " + std::to_string(number) + " of factors is at address " +
                    std::to_string(value) + " (expected a multiple of " + std::to_string(element) +
                    "); copy it into memory of its own");
  }
}

}  // namespace

const std::vector<FactorKernel>& factor_kernels() {
  // NOLINTBEGIN(bugprone-macro-parentheses): types
#define AIACC_FACTOR_KERNEL(name, work, T)                             \
  {"aiacc_factors_" #name,                                             \
   FactorWork::work,                                                   \
   std::is_same_v<T, float> ? DataType::kFloat32 : DataType::kFloat64, \
   &run_on_host<FactorWork::work, T>},
  static const std::vector<FactorKernel> kernels = {AIACC_FACTOR_KERNELS(AIACC_FACTOR_KERNEL)};
#undef AIACC_FACTOR_KERNEL
  // NOLINTEND(bugprone-macro-parentheses)
  return kernels;
}

std::size_t choose_factor_kernel(FactorWork work, DataType dtype) {
  const std::vector<FactorKernel>& kernels = factor_kernels();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i].work == work && kernels[i].dtype == dtype) {
      return i;
    }
  }
  throw Error(
      Code::kUnsupported,
      "[kernels] factors of " + std::string(name_of(dtype)) + " (expected float32 or float64)");
}

void plan_factors(DataType dtype,
                  const FactorStack* stacks,
                  std::size_t count,
                  FactorBatch& batch) {
  AIACC_CHECK(count <= FactorBatch::kStacks);
  std::uint64_t chunks = 0;
  batch.items = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const FactorStack& stack = stacks[i];
    if (stack.dim == 0 || stack.number == 0) {
      continue;
    }
    check_address(stack.matrices, size_of(dtype), i);
    check_address(stack.packed, size_of(dtype), i);
    const std::uint64_t side = (stack.dim - 1) / kFactorTile + 1;
    if (side >= 1 << 16 || stack.number > (kMostTiles - chunks) / triangle(side)) {
      throw Error(Code::kInvalidArgument,
                  "[kernels] factors of more than 2^31 tiles of " + std::to_string(kFactorTile) +
                      " x " + std::to_string(kFactorTile) + " elements; use more buckets");
    }
    batch.item[batch.items++] = {stack.matrices,
                                 stack.packed,
                                 stack.row_stride,
                                 stack.matrix_stride,
                                 stack.scale,
                                 stack.enters,
                                 static_cast<std::uint32_t>(stack.dim),
                                 static_cast<std::uint32_t>(chunks)};
    chunks += stack.number * triangle(side);
  }
  batch.chunks = static_cast<std::uint32_t>(chunks);
}

}  // namespace aiacc
