#include "csrc/core/dispatch/zero_answers.h"

#include <utility>

#include "csrc/core/dispatch/planner_input.h"
#include "csrc/core/submission/result_memory.h"

namespace aiacc {

Operation* ZeroAnswers::add(const Response& response) {
  const Request& request = *response.zeros;
  auto operation = std::make_unique<Operation>();
  operation->request = request;
  operation->zeros = !request.on_gpu();
  take_response(*operation, response);
  operation->more.resize(request.more.size());
  for (std::size_t i = 0; i < request.tensors(); ++i) {
    TensorBuffers& buffers = operation->tensor(i);
    if (request.on_gpu()) {
      continue;  // no memory means zeros there
    }
    buffers.output = make_result(buffers, request.tensor(i).bytes(), *operation);
    buffers.input = buffers.output;
  }
  if (is_empty(*operation)) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  Operation* raw = operation.get();
  operations_.emplace(raw, std::move(operation));
  return raw;
}

void ZeroAnswers::remove(Operation* operation) {
  const std::lock_guard lock(mutex_);
  operations_.erase(operation);
}

}  // namespace aiacc
