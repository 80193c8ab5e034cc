#pragma once

#include <memory>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"

namespace aiacc {

/// The world of one rank: every operation is a copy, or nothing when it is in place.
class LocalEngine : public Engine {
 public:
  explicit LocalEngine(const EngineContext& context);

  const char* name() const override { return "local"; }
  int lanes() const override { return lanes_; }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;
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
  void abort(const Status& status) noexcept override { cancellation_.set(status); }

 private:
  void check(int lane) const;

  int lanes_;
  Cancellation cancellation_;
};

}  // namespace aiacc
