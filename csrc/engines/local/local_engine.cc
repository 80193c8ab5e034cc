#include "csrc/engines/local/local_engine.h"

#include <cstring>
#include <string>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

LocalEngine::LocalEngine(const EngineContext& context) : lanes_(context.lanes) {
  if (context.size != 1) {
    throw Error(Code::kInvalidArgument,
                "[local] the local engine serves one rank, but the job has " +
                    std::to_string(context.size) + "; set AIACC_ENGINE=auto, or to tcp or mpi");
  }
}

void LocalEngine::check(int lane) const {
  AIACC_CHECK(lane >= 0 && lane <= lanes_);
  cancellation_.check();
}

void LocalEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  check(lane);
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  copy_scaled(recv, send, count, reduction.dtype, reduction.factor);
}

void LocalEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  static_cast<void>(buffer);
  static_cast<void>(bytes);
  check(lane);
  AIACC_CHECK(root == 0);
}

void LocalEngine::all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) {
  check(lane);
  AIACC_CHECK(bytes_of.size() == 1);
  copy(recv, send, bytes_of[0]);
}

void LocalEngine::reduce_scatter(
    int lane, const void* send, void* recv, const PerRank& counts, const Reduction& reduction) {
  AIACC_CHECK(counts.size() == 1);
  all_reduce(lane, send, recv, counts[0], reduction);
}

void LocalEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  AIACC_CHECK(recv_bytes == send_bytes);
  all_gather(lane, send, recv, recv_bytes);
}

std::unique_ptr<Engine> LocalEngine::split(const std::vector<int>& members, std::uint32_t) {
  cancellation_.check();
  EngineContext context;
  context.rank = index_among(members, 0, 1);
  context.lanes = lanes_;
  return std::make_unique<LocalEngine>(context);
}

}  // namespace aiacc
