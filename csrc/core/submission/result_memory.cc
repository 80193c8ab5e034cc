#include "csrc/core/submission/result_memory.h"

#include <new>
#include <stdexcept>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/thread.h"

namespace aiacc {
namespace {

[[noreturn]] void refuse(std::size_t bytes, const Request& request) {
  throw Error(Code::kEngine,
              "[core] " + this_process() + " has no memory for the " + std::to_string(bytes) +
                  " bytes of " + operation_text(request.kind, request.process_set, request.name) +
                  "; let every rank give less, or raise the limit of memory (ulimit -v, the "
                  "container's)");
}

}  // namespace

void* make_result(TensorBuffers& buffers, std::size_t bytes, const Operation& operation) {
  try {
    buffers.gathered.resize(bytes);
  } catch (const std::bad_alloc&) {
    refuse(bytes, operation.request);
  } catch (const std::length_error&) {
    refuse(bytes, operation.request);
  }
  return buffers.gathered.data();
}

}  // namespace aiacc
