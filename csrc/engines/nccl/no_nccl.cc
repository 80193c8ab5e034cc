#include "csrc/base/error.h"
#include "csrc/engines/nccl/nccl_engine.h"

namespace aiacc {

Viability nccl_viability() {
  return {false,
          "this build has no CUDA support; CPU tensors work with the engines tcp and mpi, CUDA "
          "tensors have to be moved to the CPU first"};
}

std::unique_ptr<Engine> create_nccl_engine(const EngineContext& context) {
  static_cast<void>(context);
  throw Error(Code::kEngine, "[nccl] " + nccl_viability().detail);
}

}  // namespace aiacc
