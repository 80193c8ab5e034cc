#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/tcp/mesh.h"
#include "csrc/engines/tcp/pairs.h"
#include "csrc/engines/tcp/ring.h"

namespace aiacc {

/// CPU tensors over plain TCP; needs nothing but the ranks' addresses.
///
/// Every bulk lane is a ring with sockets of its own, 2 per rank, so K lanes are K flows between
/// neighbours. The express lane is a mesh of recursive-doubling partners. The first all-to-all
/// connects every two ranks, once for all lanes. The first failure on a lane is latched: all lanes
/// throw it from then on, since their streams are no longer aligned.
class TcpEngine : public Engine {
 public:
  /// Collective. Blocks until all connections are up; throws Error(kTimeout) naming missing ranks.
  explicit TcpEngine(const EngineContext& context);
  /// Among some ranks of the context, ascending, numbered by their index in `ranks`. `number` is
  /// one that no other engine among any of them has had. `interrupt` ends the wait, with its
  /// status.
  TcpEngine(const EngineContext& context,
            const std::vector<int>& ranks,
            std::uint32_t number,
            const Cancellation& interrupt);

  const char* name() const override { return "tcp"; }
  int lanes() const override { return lanes_; }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;
  void start_all_reduce(
      int lane, int ticket, void* data, std::size_t count, const Reduction& reduction) override;
  void finish_all_reduce(int lane, int ticket) override;
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override;
  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override;
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction) override;
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override;
  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override;
  double send_busy_s(int lane) const override;
  LaneWait waits(int lane) const override;
  void abort(const Status& status) noexcept override { cancellation_.set(status); }

 private:
  /// Whom an engine connects: ranks as the connector numbers them, and the number that keeps its
  /// connections apart from those of other engines.
  struct Members {
    std::vector<int> ranks;
    std::uint32_t number;
  };

  /// `context` as if the members of `members` were all there is. `interrupt` ends the wait.
  TcpEngine(const EngineContext& context, Members members, const Cancellation* interrupt);

  /// Calls `operation()`; its failure is that of all lanes.
  template <class Operation>
  void latch(int lane, Operation operation);
  /// Calls `operation(topology)` with the ring of a lane, or the mesh.
  template <class Operation>
  void run(int lane, Operation operation);
  bool has_ring(int lane) const { return size_ > 1 && lane != lanes_; }
  Ring& ring(int lane) { return *rings_[static_cast<std::size_t>(lane)]; }
  Channel channel(Socket socket, int peer, int lane, const std::string& name);
  ChannelSpec spec(int peer, ChannelKind kind, int lane, bool connect) const;
  /// Those of a lane, which the first call connects.
  Pairs& pairs(int lane);

  const EngineContext context_;
  const Members members_;
  const int size_;
  const int lanes_;
  Cancellation cancellation_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::unique_ptr<Mesh> mesh_;                 ///< null at size 1
  std::vector<std::unique_ptr<Pairs>> pairs_;  ///< by lane, made when needed
  std::vector<WaitMark> marks_;                ///< by lane, the express lane's last
};

}  // namespace aiacc
