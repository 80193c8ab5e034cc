#include <atomic>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/control/tcp/tcp_plane.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/peers/raw_peer.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

void ignore(Bytes&, const Bytes&, const RankBlock&) {}

/// Rank `size - 1` misbehaves after one good round; all others must name it.
struct Misdeed {
  const char* name;
  std::function<void(std::vector<RawPeer>&)> commit;
  const char* text;
};

void PrintTo(const Misdeed& misdeed, std::ostream* out) { *out << misdeed.name; }

class TcpPlaneFailureTest : public testing::TestWithParam<std::tuple<int, Misdeed>> {};

void to_all(std::vector<RawPeer>& peers, const Bytes& bytes) {
  for (RawPeer& peer : peers) {
    peer.send(bytes);
  }
}

Bytes frame_bytes(const Frame& frame) {
  Bytes bytes;
  encode_frame(frame, bytes);
  return bytes;
}

std::vector<Misdeed> misdeeds() {
  return {
      {"Closes",
       [](std::vector<RawPeer>& peers) {
         for (RawPeer& peer : peers) {
           peer.close();
         }
       },
       "the connection"},
      {"SendsGarbage",
       [](std::vector<RawPeer>& peers) { to_all(peers, Bytes(100, 0x47)); },
       "not aiacc's protocol"},
      {"SendsAnAbsurdLength",
       [](std::vector<RawPeer>& peers) {
         Bytes bytes = frame_bytes({FrameType::kRound, 0, 0, {}});
         bytes[3] = 0xff;
         to_all(peers, bytes);
       },
       "a message of 4278190080 bytes (expected at most 67108864)"},
      {"StartsAnotherRound",
       [](std::vector<RawPeer>& peers) {
         to_all(peers, frame_bytes({FrameType::kRound, 0, 77, {}}));
       },
       "got round 77"},
      {"IsInAnotherStage",
       [](std::vector<RawPeer>& peers) {
         to_all(peers, frame_bytes({FrameType::kRound, 99, 0, {}}));
       },
       "stage 99"},
      {"IsSilent", [](std::vector<RawPeer>&) {}, "has not answered within"},
      {"SaysWhy",
       [](std::vector<RawPeer>& peers) {
         const Status status(Code::kEngine, "[test] rank of the raw end is broken");
         to_all(peers, frame_bytes({FrameType::kAbort, 0, 0, encode_status(status)}));
       },
       "is broken"},
  };
}

TEST_P(TcpPlaneFailureTest, EverySurvivorLearnsTheSameReason) {
  configure_log(LogLevel::kFatal, -1);
  const auto& [size, misdeed] = GetParam();
  const int culprit = size - 1;
  const std::string name = "rank " + std::to_string(culprit);
  TcpWorld world(size);
  std::atomic<int> connected{0};
  run_as_ranks(size, [&, size = size, &misdeed = misdeed](int rank, RankThreads& rank_threads) {
    if (rank == culprit) {
      const DoublingPlan plan = DoublingPlan::of(rank, size);
      std::vector<int> partners = plan.stages;
      if (plan.proxy >= 0) {
        partners.push_back(plan.proxy);
      }
      std::vector<RawPeer> peers = raw_peers(world.connector(rank), partners);
      misdeed.commit(peers);
      if (std::string(misdeed.name) != "Closes") {
        for (RawPeer& peer : peers) {
          peer.await_close();
        }
      }
      return;
    }
    TcpPlane plane(world.connector(rank), 0.4, 50);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { plane.interrupt(status); });
    await_all(connected, size - 1);  // nobody answers before that
    Bytes message = {0};
    const Status status = status_of([&] { plane.all_reduce(message, ignore); });
    plane.abort(status);  // as the coordinator does
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(misdeed.text), std::string::npos) << status.message();
    if (std::string(misdeed.name) != "SaysWhy") {
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Misdeeds,
                         TcpPlaneFailureTest,
                         testing::Combine(testing::Values(2, 3, 4, 5, 8),
                                          testing::ValuesIn(misdeeds())),
                         [](const auto& test) {
                           return std::get<1>(test.param).name +
                                  std::to_string(std::get<0>(test.param));
                         });

}  // namespace
}  // namespace aiacc
