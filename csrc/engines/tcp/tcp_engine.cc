#include "csrc/engines/tcp/tcp_engine.h"

#include <cstring>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/kernels/scale.h"

namespace aiacc {

TcpEngine::TcpEngine(const EngineContext& context) : size_(context.size), lanes_(context.lanes) {
  if (size_ == 1) {
    return;
  }
  AIACC_CHECK(context.connector != nullptr);
  const int rank = context.rank;
  const int next = (rank + 1) % size_;
  const int previous = (rank + size_ - 1) % size_;
  std::vector<ChannelSpec> specs;
  for (int lane = 0; lane < lanes_; ++lane) {
    const auto number = static_cast<std::uint16_t>(lane);
    specs.push_back({next, ChannelKind::kRing, number, true});
    specs.push_back({previous, ChannelKind::kRing, number, false});
  }
  const std::vector<int> partners = mesh_partners(rank, size_);
  for (const int partner : partners) {
    specs.push_back({partner, ChannelKind::kMesh, 0, rank < partner});
  }
  std::vector<Socket> sockets = context.connector->establish(specs);

  auto socket = sockets.begin();
  for (int lane = 0; lane < lanes_; ++lane) {
    const std::string name = "lane " + std::to_string(lane);
    Channel to_next(std::move(*socket++), next, name);
    Channel from_previous(std::move(*socket++), previous, name);
    rings_.push_back(std::make_unique<Ring>(
        rank, size_, std::move(to_next), std::move(from_previous), cancellation_));
  }
  std::vector<Channel> channels;
  channels.reserve(partners.size());
  for (const int partner : partners) {
    channels.emplace_back(std::move(*socket++), partner, "the express lane");
  }
  mesh_ = std::make_unique<Mesh>(rank, size_, std::move(channels), cancellation_, context.spin_us);
}

template <class Operation>
void TcpEngine::run(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= lanes_);
  cancellation_.check();
  try {
    if (lane == express_lane()) {
      operation(*mesh_);
    } else {
      operation(*rings_[static_cast<std::size_t>(lane)]);
    }
  } catch (...) {
    cancellation_.set(current_exception_status());
    throw;
  }
}

void TcpEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  if (size_ == 1) {
    cancellation_.check();
    return copy_scaled(recv, send, count, reduction.dtype, reduction.factor);
  }
  run(lane, [&](auto& topology) { topology.all_reduce(send, recv, count, reduction); });
}

void TcpEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < size_);
  if (size_ == 1) {
    return cancellation_.check();
  }
  run(lane, [&](auto& topology) { topology.broadcast(buffer, bytes, root); });
}

void TcpEngine::all_gather(int lane,
                           const void* send,
                           void* recv,
                           const std::vector<std::size_t>& bytes_of) {
  AIACC_CHECK(bytes_of.size() == static_cast<std::size_t>(size_));
  if (size_ == 1) {
    cancellation_.check();
    if (send != recv && bytes_of[0] > 0) {
      std::memcpy(recv, send, bytes_of[0]);
    }
    return;
  }
  run(lane, [&](auto& topology) { topology.all_gather(send, recv, bytes_of); });
}

}  // namespace aiacc
