#include "csrc/engines/engine.h"

#include <string>

namespace aiacc {
namespace {

[[noreturn]] void refuse(const Engine& engine, const char* what) {
  throw Error(Code::kEngine,
              std::string("[") + engine.name() + "] this engine has no " + what +
                  "; choose another with AIACC_ENGINE");
}

}  // namespace

void Engine::reduce_scatter(
    int, const void*, void*, const std::vector<std::size_t>&, const Reduction&) {
  refuse(*this, "reduce_scatter");
}

void Engine::all_to_all(int,
                        const void*,
                        void*,
                        const std::vector<std::size_t>&,
                        const std::vector<std::size_t>&) {
  refuse(*this, "all_to_all");
}

std::unique_ptr<Engine> Engine::split(const std::vector<int>&, std::uint32_t) {
  refuse(*this, "split");
}

}  // namespace aiacc
