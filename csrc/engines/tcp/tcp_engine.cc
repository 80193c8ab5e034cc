#include "csrc/engines/tcp/tcp_engine.h"

#include <cstring>
#include <limits>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"
#include "csrc/kernels/scale.h"

namespace aiacc {

TcpEngine::TcpEngine(const EngineContext& context)
    : TcpEngine(context, {all_ranks(context.size), context.split_id}, nullptr) {}

TcpEngine::TcpEngine(const EngineContext& context,
                     const std::vector<int>& ranks,
                     std::uint32_t number,
                     const Cancellation& interrupt)
    : TcpEngine(context_among(context, ranks), {ranks, number}, &interrupt) {}

TcpEngine::TcpEngine(const EngineContext& context, Members members, const Cancellation* interrupt)
    : context_(context),
      members_(std::move(members)),
      size_(context.size),
      lanes_(context.lanes),
      pairs_(static_cast<std::size_t>(context.lanes) + 1),
      marks_(static_cast<std::size_t>(context.lanes) + 1) {
  if (size_ == 1) {
    return;
  }
  AIACC_CHECK(context.connector != nullptr);
  const int rank = context.rank;
  const int next = (rank + 1) % size_;
  const int previous = (rank + size_ - 1) % size_;
  std::vector<ChannelSpec> specs;
  for (int lane = 0; lane < lanes_; ++lane) {
    specs.push_back(spec(next, ChannelKind::kRing, lane, true));
    specs.push_back(spec(previous, ChannelKind::kRing, lane, false));
  }
  const std::vector<int> partners = mesh_partners(rank, size_);
  for (const int partner : partners) {
    specs.push_back(spec(partner, ChannelKind::kMesh, 0, rank < partner));
  }
  std::vector<Socket> sockets =
      context.connector->establish(specs, interrupt == nullptr ? -1 : interrupt->fd());

  auto socket = sockets.begin();
  for (int lane = 0; lane < lanes_; ++lane) {
    const std::string name = "lane " + std::to_string(lane);
    Channel to_next = channel(std::move(*socket++), next, lane, name);
    Channel from_previous = channel(std::move(*socket++), previous, lane, name);
    rings_.push_back(std::make_unique<Ring>(
        rank, size_, std::move(to_next), std::move(from_previous), cancellation_));
  }
  std::vector<Channel> channels;
  channels.reserve(partners.size());
  for (const int partner : partners) {
    channels.push_back(channel(std::move(*socket++), partner, express_lane(), "the express lane"));
  }
  mesh_ = std::make_unique<Mesh>(rank, size_, std::move(channels), cancellation_, context.spin_us);
}

ChannelSpec TcpEngine::spec(int peer, ChannelKind kind, int lane, bool connect) const {
  return {members_.ranks[static_cast<std::size_t>(peer)],
          kind,
          static_cast<std::uint16_t>(lane),
          connect,
          members_.number};
}

Channel TcpEngine::channel(Socket socket, int peer, int lane, const std::string& name) {
  if (context_.pace_bytes > 0) {
    socket.limit_rate(context_.pace_bytes);
  }
  return {std::move(socket),
          members_.ranks[static_cast<std::size_t>(peer)],
          name,
          context_.peer_timeout_s,
          &marks_[static_cast<std::size_t>(lane)]};
}

Pairs& TcpEngine::pairs(int lane) {
  std::unique_ptr<Pairs>& pairs = pairs_[static_cast<std::size_t>(lane)];
  if (pairs == nullptr) {
    std::vector<ChannelSpec> specs;
    for (int distance = 1; distance < size_; ++distance) {
      const int peer = (context_.rank + distance) % size_;
      specs.push_back(spec(peer, ChannelKind::kPair, lane, context_.rank < peer));
    }
    std::vector<Socket> sockets = context_.connector->establish_in_unit(
        specs, cancellation_.fd(), &marks_[static_cast<std::size_t>(lane)]);
    std::vector<Channel> channels;
    channels.reserve(sockets.size());
    for (int distance = 1; distance < size_; ++distance) {
      channels.push_back(channel(std::move(sockets[static_cast<std::size_t>(distance) - 1]),
                                 (context_.rank + distance) % size_,
                                 lane,
                                 "the connection for all-to-alls"));
    }
    pairs = std::make_unique<Pairs>(
        context_.rank, size_, std::move(channels), cancellation_, context_.spin_us);
  }
  return *pairs;
}

template <class Operation>
void TcpEngine::latch(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= lanes_);
  cancellation_.check();
  try {
    operation();
  } catch (...) {
    cancellation_.set(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
    throw;
  }
}

template <class Operation>
void TcpEngine::run(int lane, Operation operation) {
  latch(lane, [&] {
    if (lane == express_lane()) {
      operation(*mesh_);
    } else {
      operation(ring(lane));
    }
  });
}

void TcpEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  if (size_ == 1) {
    cancellation_.check();
    return copy_scaled(recv, send, count, reduction.dtype, reduction.factor);
  }
  run(lane, [&](auto& topology) { topology.all_reduce(send, recv, count, reduction); });
}

void TcpEngine::start_all_reduce(
    int lane, int ticket, void* data, std::size_t count, const Reduction& reduction) {
  if (!has_ring(lane)) {
    return Engine::start_all_reduce(lane, ticket, data, count, reduction);
  }
  latch(lane, [&] { ring(lane).start_all_reduce(ticket, data, count, reduction); });
}

void TcpEngine::finish_all_reduce(int lane, int ticket) {
  if (has_ring(lane)) {
    latch(lane, [&] { ring(lane).finish_all_reduce(ticket); });
  }
}

void TcpEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < size_);
  if (size_ == 1) {
    return cancellation_.check();
  }
  run(lane, [&](auto& topology) { topology.broadcast(buffer, bytes, root); });
}

void TcpEngine::all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) {
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

void TcpEngine::reduce_scatter(
    int lane, const void* send, void* recv, const PerRank& counts, const Reduction& reduction) {
  AIACC_CHECK(counts.size() == static_cast<std::size_t>(size_));
  if (size_ == 1) {
    cancellation_.check();
    return copy_scaled(recv, send, counts[0], reduction.dtype, reduction.factor);
  }
  run(lane, [&](auto& topology) { topology.reduce_scatter(send, recv, counts, reduction); });
}

void TcpEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  const auto size = static_cast<std::size_t>(size_);
  AIACC_CHECK(send_bytes.size() == size && recv_bytes.size() == size);
  AIACC_CHECK(send_bytes[static_cast<std::size_t>(context_.rank)] ==
              recv_bytes[static_cast<std::size_t>(context_.rank)]);
  if (size_ == 1) {
    cancellation_.check();
    if (send_bytes[0] > 0) {
      std::memcpy(recv, send, send_bytes[0]);
    }
    return;
  }
  latch(lane, [&] { pairs(lane).all_to_all(send, recv, send_bytes, recv_bytes); });
}

double TcpEngine::send_busy_s(int lane) const {
  AIACC_CHECK(lane >= 0 && lane < lanes_);
  return size_ == 1 ? 0 : rings_[static_cast<std::size_t>(lane)]->send_busy_s();
}

LaneWait TcpEngine::waits(int lane) const {
  AIACC_CHECK(lane >= 0 && lane <= lanes_);
  return marks_[static_cast<std::size_t>(lane)].get();
}

std::unique_ptr<Engine> TcpEngine::split(const std::vector<int>& members, std::uint32_t split_id) {
  AIACC_CHECK(split_id < std::numeric_limits<std::uint32_t>::max());
  cancellation_.check();
  EngineContext context = context_;
  context.rank = index_among(members, context_.rank, size_);
  context.size = static_cast<int>(members.size());
  Members part{translated(members_.ranks, members), split_id + 1};
  try {
    return std::unique_ptr<Engine>(new TcpEngine(context, std::move(part), &cancellation_));
  } catch (...) {
    cancellation_.check();  // an abort is the cause of what it interrupted
    throw;
  }
}

}  // namespace aiacc
