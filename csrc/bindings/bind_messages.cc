#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <pybind11/pybind11.h>

#include "csrc/bindings/bindings.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

std::shared_ptr<Operation> message(
    Coordinator& coordinator, OpKind kind, std::int64_t bytes, int peer, std::string key) {
  std::shared_ptr<Operation> operation = coordinator.acquire();
  operation->request = {};
  operation->request.kind = kind;
  operation->request.tensors.front() = {DataType::kUInt8, {bytes}};
  operation->request.root = peer;
  operation->series = std::move(key);
  return operation;
}

Handle send(std::uintptr_t input, std::int64_t bytes, int to, std::string key) {
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  auto operation = message(coordinator, OpKind::kSend, bytes, to, std::move(key));
  operation->buffers.front().input =
      reinterpret_cast<void*>(input);  // NOLINT(performance-no-int-to-ptr)
  return coordinator.submit(std::move(operation));
}

Handle receive(std::uintptr_t output, std::int64_t bytes, int from, std::string key) {
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  auto operation = message(coordinator, OpKind::kReceive, bytes, from, std::move(key));
  operation->buffers.front().output =
      reinterpret_cast<void*>(output);  // NOLINT(performance-no-int-to-ptr)
  return coordinator.submit(std::move(operation));
}

}  // namespace

void bind_messages(py::module_& module) {
  module.def("send", &send);
  module.def("receive", &receive);
}

}  // namespace aiacc
