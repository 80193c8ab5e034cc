#pragma once

#include <memory>

#include "csrc/engines/engine.h"

namespace aiacc {

/// CUDA tensors over NCCL. CMake chooses the implementation: no_nccl.cc where there is none.
Viability nccl_viability();
std::unique_ptr<Engine> create_nccl_engine(const EngineContext& context);

}  // namespace aiacc
