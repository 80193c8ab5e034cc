#include <cstring>
#include <utility>

#include "csrc/kernels/float8.h"
#include "csrc/kernels/reduce.h"
#include "tests/cpp/support/fakes/fake_nccl.h"

// The part of the fake that knows what the collectives do.

namespace aiacc {
namespace {

/// By the number of the type; 8-bit floats are computed in float32.
DataType computed_in(NcclDataType dtype) {
  static constexpr DataType kTypes[] = {DataType::kInt8,
                                        DataType::kUInt8,
                                        DataType::kInt32,
                                        DataType::kUInt32,
                                        DataType::kInt64,
                                        DataType::kUInt64,
                                        DataType::kFloat16,
                                        DataType::kFloat32,
                                        DataType::kFloat64,
                                        DataType::kBFloat16,
                                        DataType::kFloat32,
                                        DataType::kFloat32};
  return kTypes[dtype];
}

bool is_float8(NcclDataType dtype) { return dtype == kNcclFloat8e4m3 || dtype == kNcclFloat8e5m2; }

/// Bytes of one element; 0 for a number that names none.
std::size_t nccl_size_of(NcclDataType dtype) {
  return dtype < 0 || dtype > kNcclFloat8e5m2 ? 0
         : is_float8(dtype)                   ? 1
                                              : size_of(computed_in(dtype));
}

std::vector<std::byte> load(const void* from, std::size_t count, NcclDataType dtype) {
  const std::size_t size = size_of(computed_in(dtype));
  std::vector<std::byte> values(count * size);
  if (!is_float8(dtype)) {
    std::memcpy(values.data(), from, values.size());
    return values;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t bits = static_cast<const std::uint8_t*>(from)[i];
    const float value =
        dtype == kNcclFloat8e4m3 ? widen_float8(Float8E4M3{bits}) : widen_float8(Float8E5M2{bits});
    std::memcpy(values.data() + i * size, &value, size);
  }
  return values;
}

void store(void* to, const std::vector<std::byte>& values, NcclDataType dtype) {
  if (!is_float8(dtype)) {
    std::memcpy(to, values.data(), values.size());
    return;
  }
  for (std::size_t i = 0; i < values.size() / sizeof(float); ++i) {
    float value = 0;
    std::memcpy(&value, values.data() + i * sizeof value, sizeof value);
    static_cast<std::uint8_t*>(to)[i] = dtype == kNcclFloat8e4m3
                                            ? narrow_float8<Float8E4M3>(value).bits
                                            : narrow_float8<Float8E5M2>(value).bits;
  }
}

ReduceOp reduce_op(NcclRedOp op) {
  switch (op) {
    case kNcclProd:
      return ReduceOp::kProduct;
    case kNcclMax:
      return ReduceOp::kMax;
    case kNcclMin:
      return ReduceOp::kMin;
    default:
      return ReduceOp::kSum;
  }
}

std::byte* bytes_at(const void* memory, std::size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(memory)) + offset;
}

}  // namespace

/// Elements offset .. offset + count of all ranks' inputs, reduced.
void FakeNccl::reduce_all(const Meeting& meeting,
                          std::size_t offset,
                          std::size_t count,
                          void* out) {
  const Call& first = *meeting.calls.front();
  const DataType type = computed_in(first.dtype);
  std::vector<std::byte> sum;
  for (const auto& call : meeting.calls) {
    std::vector<std::byte> values =
        load(bytes_at(call->send, offset * nccl_size_of(call->dtype)), count, call->dtype);
    if (sum.empty()) {
      sum = std::move(values);
    } else {
      reduce(sum.data(), values.data(), count, type, reduce_op(first.op));
    }
  }
  store(out, sum, first.dtype);
}

/// Message i from one rank to another is what that one receives i-th from it.
void FakeNccl::exchange(const Meeting& meeting) {
  for (std::size_t from = 0; from < meeting.calls.size(); ++from) {
    for (std::size_t to = 0; to < meeting.calls.size(); ++to) {
      std::vector<const Call::Message*> sent;
      for (const Call::Message& message : meeting.calls[from]->sends) {
        if (message.peer == static_cast<int>(to)) {
          sent.push_back(&message);
        }
      }
      std::size_t next = 0;
      for (const Call::Message& message : meeting.calls[to]->receives) {
        if (message.peer == static_cast<int>(from) && next < sent.size()) {
          std::memmove(message.buffer, sent[next]->buffer, message.bytes);
          ++next;
        }
      }
    }
  }
}

/// Called with the lock held, by the stream that came last.
void FakeNccl::perform(World& world, Meeting& meeting) {
  const Call& first = *meeting.calls.front();
  for (const auto& call : meeting.calls) {
    if (call->what != first.what) {
      complain(kNcclInvalidUsage,
               "ranks meet with \"" + first.what + "\" and \"" + call->what + "\"");
      for (Comm* member : world.members) {
        member->error = kNcclInternalError;
      }
      return;
    }
  }
  const std::string kind = first.what.substr(0, first.what.find(' '));
  const std::size_t size = nccl_size_of(first.dtype);
  if (kind == "messages") {
    exchange(meeting);
    return;
  }
  // Results are made before any is written: inputs may be outputs.
  std::vector<std::vector<std::byte>> results;
  for (std::size_t rank = 0; rank < meeting.calls.size(); ++rank) {
    if (kind == "all_reduce" || kind == "reduce_scatter") {
      results.emplace_back(first.count * size);
      const std::size_t offset = kind == "all_reduce" ? 0 : rank * first.count;
      reduce_all(meeting, offset, first.count, results.back().data());
    } else if (kind == "reduce") {
      results.emplace_back(static_cast<int>(rank) == first.root ? first.count * size : 0);
      if (!results.back().empty()) {
        reduce_all(meeting, 0, first.count, results.back().data());
      }
    } else if (kind == "broadcast") {
      const void* source = meeting.calls[static_cast<std::size_t>(first.root)]->send;
      results.emplace_back(bytes_at(source, 0), bytes_at(source, first.count * size));
    } else {
      results.emplace_back();
      for (const auto& call : meeting.calls) {
        results.back().insert(results.back().end(),
                              bytes_at(call->send, 0),
                              bytes_at(call->send, first.count * size));
      }
    }
  }
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (!results[rank].empty()) {
      std::memcpy(meeting.calls[rank]->recv, results[rank].data(), results[rank].size());
    }
  }
}

NcclResult FakeNccl::issue_reduction(NcclComm handle,
                                     CudaStream stream,
                                     const std::string& kind,
                                     Call call) {
  if (nccl_size_of(call.dtype) == 0) {
    const std::lock_guard lock(mutex_);
    return complain(kNcclInvalidArgument, kind + " of a type that the fake does not have");
  }
  call.what = kind + " of " + std::to_string(call.count) + " elements of type " +
              std::to_string(call.dtype) + ", operation " + std::to_string(call.op);
  return issue(handle, stream, std::move(call));
}

void FakeNccl::fill_collectives() {
  api_.all_reduce =
      [](auto send, auto recv, auto count, auto dtype, auto op, auto comm, auto stream) {
        return self().issue_reduction(
            comm, stream, "all_reduce", {"", send, recv, count, dtype, op});
      };
  api_.all_reduce_config = [](auto send,
                              auto recv,
                              auto count,
                              auto dtype,
                              auto op,
                              auto comm,
                              auto stream,
                              auto config) {
    const char* algorithms = config->algorithms != nullptr ? config->algorithms : "any";
    {
      const std::lock_guard lock(self().mutex_);
      ++self().preferred_[algorithms];
    }
    return self().issue_reduction(comm,
                                  stream,
                                  std::string("all_reduce by ") + algorithms,
                                  {"", send, recv, count, dtype, op});
  };
  api_.reduce_scatter =
      [](auto send, auto recv, auto count, auto dtype, auto op, auto comm, auto stream) {
        return self().issue_reduction(
            comm, stream, "reduce_scatter", {"", send, recv, count, dtype, op});
      };
  api_.reduce =
      [](auto send, auto recv, auto count, auto dtype, auto op, auto root, auto comm, auto stream) {
        return self().issue_reduction(comm,
                                      stream,
                                      "reduce to " + std::to_string(root),
                                      {"", send, recv, count, dtype, op, root});
      };
  api_.broadcast =
      [](auto send, auto recv, auto count, auto dtype, auto root, auto comm, auto stream) {
        const std::string what = "broadcast of " + std::to_string(count * nccl_size_of(dtype)) +
                                 " bytes from " + std::to_string(root);
        return self().issue(comm, stream, {what, send, recv, count, dtype, kNcclSum, root});
      };
  api_.all_gather = [](auto send, auto recv, auto count, auto dtype, auto comm, auto stream) {
    const std::string what =
        "all_gather of " + std::to_string(count * nccl_size_of(dtype)) + " bytes";
    return self().issue(comm, stream, {what, send, recv, count, dtype});
  };
  api_.send = [](auto buffer, auto count, auto dtype, auto peer, auto comm, auto stream) {
    Call call;
    call.what = "messages";
    call.sends = {{const_cast<void*>(buffer), count * nccl_size_of(dtype), peer}};
    return self().issue(comm, stream, std::move(call));
  };
  api_.receive = [](auto buffer, auto count, auto dtype, auto peer, auto comm, auto stream) {
    Call call;
    call.what = "messages";
    call.receives = {{buffer, count * nccl_size_of(dtype), peer}};
    return self().issue(comm, stream, std::move(call));
  };
}

}  // namespace aiacc
