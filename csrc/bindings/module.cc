#include "csrc/bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of aiacc; see _core.pyi.";
  aiacc::bind_errors(module);
  aiacc::bind_runtime(module);
  aiacc::bind_submission(module);
  aiacc::bind_in_place(module);
  aiacc::bind_process_sets(module);
  aiacc::bind_messages(module);
  aiacc::bind_results(module);
  aiacc::bind_engines(module);
  aiacc::bind_factors(module);
  aiacc::bind_optimizers(module);
  aiacc::bind_config(module);
}
