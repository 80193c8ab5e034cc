// Ranks of an MPI job that are through with what they do in MPI while others are not. Part of
// mpi_engine_test, which says how to run it.

#include <memory>

#include <gtest/gtest.h>

#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/tcp_plane.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "tests/cpp/engines/engine_checks.h"

namespace aiacc {
namespace {

/// Where the ranks meet without MPI: whoever waits there makes no call of MPI.
class Outside {
 public:
  Outside()
      : identity_(mpi_initialize(0, 30)),
        listener_("127.0.0.1"),
        connector_(
            listener_, mpi_all_gather(listener_.address()), identity_.rank, {1, 2, 3}, 1, 30),
        plane_(connector_, 20, 50) {}

  int rank() const { return identity_.rank; }
  int size() const { return identity_.size; }

  std::unique_ptr<Engine> engine(int lanes) const {
    EngineContext context;
    context.rank = rank();
    context.size = size();
    context.lanes = lanes;
    return create_mpi_engine(context);
  }

  /// Blocks until all ranks are here. Throws if one does not come: it waits inside MPI.
  void meet() {
    Bytes nothing;
    plane_.all_reduce(nothing, [](Bytes&, const Bytes&, const RankBlock&) {});
  }

  /// At the end: nobody hangs up while others are still in `meet`.
  static void leave() { mpi_all_gather(""); }

 private:
  const MpiIdentity identity_;
  Listener listener_;
  Connector connector_;
  TcpPlane plane_;
};

TEST(MpiIdleRankTest, HoldsNoOtherUpInMakingAnEngine) {
  Outside outside;
  for (int lanes = 1; lanes < 5; ++lanes) {
    const auto engine = outside.engine(lanes);
    outside.meet();
  }
  Outside::leave();
}

/// Also on a lane's first operation, for which MPI may have to connect.
TEST(MpiIdleRankTest, HoldsNoOtherUpInAnOperation) {
  Outside outside;
  const int rank = outside.rank();
  const int size = outside.size();
  const auto engine = outside.engine(3);
  for (int lane = 0; lane <= engine->express_lane(); ++lane) {
    for (const std::size_t count : {1, 30011}) {
      check_all_reduce(*engine, lane, rank, size, count, DataType::kFloat32, ReduceOp::kSum);
      outside.meet();
      check_broadcast(*engine, lane, rank, lane % size, count);
      outside.meet();
      check_all_gather(*engine, lane, rank, size, count);
      outside.meet();
    }
  }
  Outside::leave();
}

/// The root is through before any other rank begins.
TEST(MpiIdleRankTest, HoldsNoOtherUpWithAllThatItHasSent) {
  Outside outside;
  const auto engine = outside.engine(1);
  double data = 0;
  const auto broadcast_often = [&] {
    for (int i = 0; i < 20; ++i) {
      engine->broadcast(0, &data, sizeof data, 0);
    }
  };
  if (outside.rank() == 0) {
    broadcast_often();
  }
  outside.meet();
  if (outside.rank() != 0) {
    broadcast_often();
  }
  outside.meet();
  Outside::leave();
}

}  // namespace
}  // namespace aiacc
