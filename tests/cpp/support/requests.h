#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/message.h"

namespace aiacc {

/// A float32 all-reduce (sum) of `name`, to be changed as a test needs it.
inline Request make_request(std::string name, std::vector<std::int64_t> shape = {4}) {
  Request request;
  request.name = std::move(name);
  request.tensors[0].shape = std::move(shape);
  return request;
}

inline Request make_request(std::string name, OpKind kind, std::vector<std::int64_t> shape) {
  Request request = make_request(std::move(name), std::move(shape));
  request.kind = kind;
  return request;
}

/// What tells other ranks what `rank` has requested.
inline SharedRequest text_from(int rank, const Request& request) {
  SharedRequest shared(request, rank, 0);
  shared.request = std::make_shared<Request>(request);
  SharedRequest text = shared.spelled_out(rank);
  text.request = shared.request;
  return text;
}

/// A message as it travels.
inline Bytes encoded(const RoundMessage& message) {
  Bytes bytes;
  message.encode(bytes);
  return bytes;
}
inline RoundMessage decoded(const Bytes& bytes) {
  RoundMessage message;
  message.decode(bytes);
  return message;
}

}  // namespace aiacc
