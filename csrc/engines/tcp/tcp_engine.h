#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/tcp/mesh.h"
#include "csrc/engines/tcp/ring.h"

namespace aiacc {

/// CPU tensors over plain TCP; needs nothing but the ranks' addresses.
///
/// Every bulk lane is a ring with sockets of its own, 2 per rank, so K lanes are K flows between
/// neighbours. The express lane is a mesh of recursive-doubling partners. The first failure on a
/// lane is latched: all lanes throw it from then on, since their streams are no longer aligned.
class TcpEngine : public Engine {
 public:
  /// Collective. Blocks until all connections are up; throws Error(kTimeout) naming missing ranks.
  explicit TcpEngine(const EngineContext& context);

  const char* name() const override { return "tcp"; }
  int lanes() const override { return lanes_; }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override;
  void all_gather(int lane,
                  const void* send,
                  void* recv,
                  const std::vector<std::size_t>& bytes_of) override;
  void abort(const Status& status) noexcept override { cancellation_.set(status); }

 private:
  template <class Operation>
  void run(int lane, Operation operation);

  int size_;
  int lanes_;
  Cancellation cancellation_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::unique_ptr<Mesh> mesh_;  ///< null at size 1
};

}  // namespace aiacc
