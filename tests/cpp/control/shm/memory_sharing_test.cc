// Ranks that share memory, and what keeps them from it.

#include "csrc/control/shm/memory_sharing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/control/shm/unix_socket.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/members.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/forbidden_calls.h"
#include "tests/cpp/support/peers/raw_peer.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

constexpr std::size_t kBytes = 10000;

MemorySharing sharing_of(int size, int rank, double timeout_s = 20) {
  MemorySharing sharing;
  sharing.ranks = all_ranks(size);
  sharing.split_id = 5;
  sharing.bytes = kBytes;
  sharing.timeout_s = timeout_s;
  sharing.prepare = [rank](std::byte* part) { std::memset(part, rank + 1, kBytes); };
  return sharing;
}

/// What the others meet with while rank `odd` has connected as one does that shares memory, and
/// then does `act(its connections, over)`; `over` is ready when all others have ended.
template <class Act>
std::vector<Status> outcomes_beside(
    int odd, int size, Act act, double timeout_s = 20, int interrupt = -1) {
  TcpWorld world(size);
  std::vector<Status> seen(static_cast<std::size_t>(size));
  std::promise<void> ended;
  const std::shared_future<void> over = ended.get_future();
  std::atomic<int> waiting{size - 1};
  run_as_ranks(size, [&](int rank) {
    if (rank == odd) {
      std::vector<ChannelSpec> specs;
      for (int other = rank == 0 ? 1 : 0; other < (rank == 0 ? size : 1); ++other) {
        specs.push_back({other, ChannelKind::kMemory, 0, rank != 0, 5});
      }
      std::vector<Socket> sockets = world.connector(rank).establish(specs);
      act(sockets, over);
      return;
    }
    MemorySharing sharing = sharing_of(size, rank, timeout_s);
    sharing.interrupt = interrupt;
    seen[static_cast<std::size_t>(rank)] =
        status_of([&] { share_memory(&world.connector(rank), sharing); });
    if (--waiting == 0) {
      ended.set_value();
    }
  });
  return seen;
}

/// The same of one that does `act(peer)`, with its first connection, and has ended then.
template <class Act>
std::vector<Status> outcomes_beside_peer(int odd, int size, Act act) {
  return outcomes_beside(odd, size, [&](std::vector<Socket>& sockets, const auto&) {
    RawPeer peer(std::move(sockets[0]));
    act(peer);
  });
}

void wait_until_over(std::vector<Socket>&, const std::shared_future<void>& over) { over.wait(); }

std::size_t total_bytes(int size) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (kBytes + page - 1) / page * page * static_cast<std::size_t>(size);
}

const Frame kWell{FrameType::kRound, 0, 0, {}};

/// The code and the text of a frame.
Status status_in(const Frame& frame) {
  return frame.type == FrameType::kAbort ? decode_status(frame.payload) : Status();
}

Frame frame_of(const MemoryRequest& request) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&request);
  return {FrameType::kRound, 0, 0, Bytes(bytes, bytes + sizeof request)};
}

MemoryRequest request_for(std::uint64_t bytes, const std::string& name) {
  MemoryRequest request{};
  request.bytes = bytes;
  name.copy(request.name, sizeof request.name);
  return request;
}

MemoryRequest next_request(RawPeer& peer) {
  const Frame frame = peer.receive();
  MemoryRequest request{};
  EXPECT_EQ(sizeof request, frame.payload.size());
  std::memcpy(&request, frame.payload.data(), sizeof request);
  return request;
}

/// As the lowest rank does it.
void pass(const MemoryRequest& request, const Socket& descriptor) {
  UnixSocket socket;
  while (socket.send(request.name, request.secret, sizeof request.secret, descriptor.fd()) != 0) {
    std::this_thread::yield();
  }
}

class MemorySharingTest : public testing::TestWithParam<int> {};

TEST_P(MemorySharingTest, EveryRankSeesWhatAllHavePrepared) {
  const int size = GetParam();
  TcpWorld world(size);
  run_as_ranks(size, [&](int rank) {
    const HostMemory host = share_memory(&world.connector(rank), sharing_of(size, rank));
    ASSERT_EQ(static_cast<std::size_t>(size), host.parts.size());
    for (int other = 0; other < size; ++other) {
      const std::byte* part = host.parts[static_cast<std::size_t>(other)];
      EXPECT_EQ(0U, reinterpret_cast<std::uintptr_t>(part) % 4096);
      for (const std::size_t at : {std::size_t{0}, kBytes - 1}) {
        EXPECT_EQ(static_cast<std::byte>(other + 1), part[at]) << rank << " looks at " << other;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, MemorySharingTest, testing::Values(1, 2, 3, 8));

TEST(MemorySharingTest, OneRankNeedsNoConnector) {
  EXPECT_EQ(std::byte{1}, share_memory(nullptr, sharing_of(1, 0)).parts.at(0)[0]);
}

/// So it lies on the NUMA node of its rank.
TEST(MemorySharingTest, ARankTakesItsOwnPartAndNoOther) {
  const auto seen = outcomes_beside_peer(0, 2, [](RawPeer& peer) {
    const auto [memory, descriptor] = SharedMemory::create(total_bytes(2));
    pass(next_request(peer), descriptor);
    EXPECT_TRUE(status_in(peer.receive()).ok());
    struct stat status{};
    ASSERT_EQ(0, fstat(descriptor.fd(), &status));
    EXPECT_EQ(total_bytes(1), static_cast<std::size_t>(status.st_blocks) * 512);
    peer.send(kWell);
  });
  EXPECT_TRUE(seen[1].ok()) << seen[1].message();
}

/// Taking it would end a process.
TEST(MemorySharingTest, MoreThanTheMachineHasIsAnErrorOnAllRanks) {
  TcpWorld world(2);
  run_as_ranks(2, [&](int rank) {
    MemorySharing sharing = sharing_of(2, rank);
    sharing.bytes = std::size_t{1} << 50;
    sharing.prepare = [](std::byte*) { ADD_FAILURE() << "there is memory"; };
    expect_error(status_of([&] { share_memory(&world.connector(rank), sharing); }),
                 Code::kEngine,
                 {"MiB are left ("});
  });
}

/// Only some of the job, twice at the same time.
TEST(MemorySharingTest, PartsOfAJobDoNotMeetEachOther) {
  TcpWorld world(4);
  run_as_ranks(4, [&](int rank) {
    MemorySharing sharing = sharing_of(4, rank);
    sharing.ranks = rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    const HostMemory host = share_memory(&world.connector(rank), sharing);
    EXPECT_EQ(static_cast<std::byte>(rank % 2 + 1), host.parts.at(0)[0]);
    EXPECT_EQ(static_cast<std::byte>(rank % 2 + 3), host.parts.at(1)[0]);
  });
}

class LackTest : public testing::TestWithParam<int> {};

/// Of what one rank has no memory for, all learn, and nothing stays open or mapped.
TEST_P(LackTest, OfOneRankFailsOnAllWithItsReason) {
  const int poor = GetParam();
  const std::size_t before = process_descriptors();
  bool sandboxed = true;
  std::vector<Status> seen(3);
  {
    TcpWorld world(3);
    run_as_ranks(3, [&](int rank) {
      if (rank == poor) {
        sandboxed = forbid_calls({{SYS_fallocate, ENOSPC}});
      }
      seen[static_cast<std::size_t>(rank)] =
          status_of([&] { share_memory(&world.connector(rank), sharing_of(3, rank)); });
    });
  }
  if (!sandboxed) {
    GTEST_SKIP() << "no sandbox here";
  }
  for (const Status& status : seen) {
    expect_error(status, Code::kEngine, {"no 1 MiB of shared memory are left for a rank"});
    EXPECT_EQ(seen[0].message(), status.message());
  }
  EXPECT_TRUE(poor == 0 ||
              seen[0].message().find("rank " + std::to_string(poor)) != std::string::npos)
      << seen[0].message();
  EXPECT_EQ(before, process_descriptors());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(std::string::npos, line.find("aiacc (deleted)")) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LackTest, testing::Values(0, 1, 2));

/// Ranks 0 and 2 are honest.
TEST(MemoryLiarTest, WhatARankAsksForIsLookedAt) {
  const std::string nobody = "aiacc-nobody";
  const std::vector<std::tuple<Frame, Code, std::string>> lies = {
      {kWell, Code::kInternal, "rank 1 sent a request of 0 bytes"},
      {frame_of(request_for(123, nobody)), Code::kEngine, "rank 1 wants 123 bytes for all ranks"},
      {frame_of(request_for(total_bytes(3), nobody)), Code::kEngine, "no Unix socket of rank 1"},
      {frame_of(request_for(total_bytes(3), std::string(48, 'x'))),
       Code::kEngine,
       "no Unix socket"},
      {{FrameType::kAbort, 0, 0, {99, 'x'}}, Code::kPeerLost, "rank 1"},
      {{FrameType::kRound, 7, 7, {}}, Code::kInternal, "rank 1"},
  };
  for (const auto& [lie, code, text] : lies) {
    const auto seen = outcomes_beside_peer(1, 3, [&, &lie = lie](RawPeer& peer) {
      peer.send(lie);
      EXPECT_FALSE(status_in(peer.receive()).ok());
    });
    expect_error(seen[0], code, {text});
    EXPECT_EQ(seen[0].message(), seen[2].message());
  }
}

TEST(MemoryLiarTest, GarbageEndsItForAll) {
  const auto seen = outcomes_beside_peer(1, 3, [](RawPeer& peer) { peer.send(Bytes(100, 0x47)); });
  expect_error(seen[0], Code::kPeerLost, {"rank 1 sent", "not aiacc's protocol"});
  EXPECT_EQ(seen[0].message(), seen[2].message());
}

/// Rank 0 passes `descriptor` instead of its memory; what rank 1 says to that.
Status report_on(const Socket& descriptor) {
  return outcomes_beside_peer(0, 2, [&](RawPeer& peer) {
    pass(next_request(peer), descriptor);
    peer.send(peer.receive());
  })[1];
}

TEST(MemoryLiarTest, WhatIsPassedIsLookedAt) {
  int ends[2];
  ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
  const Socket pipe(ends[0]);
  const Socket other_end(ends[1]);
  expect_error(report_on(pipe), Code::kEngine, {"another rank gave 0 bytes"});
  const Socket open_ended(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(0, ftruncate(open_ended.fd(), static_cast<off_t>(total_bytes(2))));
  expect_error(report_on(open_ended), Code::kEngine, {"of a size that may change"});
}

TEST(MemoryLossTest, ARankThatHasDiedEndsItForAll) {
  const UnixSocket inbox;
  for (const bool asks : {false, true}) {
    const auto seen = outcomes_beside_peer(1, 3, [&](RawPeer& peer) {
      if (asks) {
        peer.send(frame_of(request_for(total_bytes(3), inbox.name())));
      }
    });
    expect_error(seen[0], Code::kPeerLost, {"rank 1"});
    EXPECT_EQ(seen[0].message(), seen[2].message());
  }
  const auto without_lowest = outcomes_beside(0, 3, [](auto&, const auto&) {});
  expect_error(without_lowest[1], Code::kPeerLost, {"rank 0"});
  expect_error(without_lowest[2], Code::kPeerLost, {"rank 0"});
}

TEST(MemoryLossTest, ARankThatSaysNothingIsNamedOnAll) {
  const auto seen = outcomes_beside(1, 3, wait_until_over, 0.3);
  expect_error(seen[0], Code::kTimeout, {"for rank(s) 1 to map the memory of their host"});
  EXPECT_EQ(seen[0].message(), seen[2].message());
}

/// Others may take as long to connect to the lowest rank as it waits for what comes after that.
TEST(MemoryLossTest, TheLowestRankHasTimeToBegin) {
  constexpr double kTimeout = 1;
  const auto wait = [](auto& sockets, const auto&) {
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * kTimeout));
    sockets.clear();  // rank 1 still waits, so it learns that this one is gone
  };
  expect_error(outcomes_beside(0, 2, wait, kTimeout)[1], Code::kPeerLost, {"rank 0"});
}

TEST(MemoryLossTest, TheLowestRankThatSaysNothingIsNamed) {
  expect_error(outcomes_beside(0, 2, wait_until_over, 0.2)[1],
               Code::kTimeout,
               {"rank 0 has not given its memory"});
}

/// The others do not come; another thread ends the wait.
TEST(MemoryLossTest, AnInterruptEndsTheWait) {
  for (const int odd : {0, 1}) {
    Cancellation cancellation;
    const auto interrupt = [&](auto&, const auto& over) {
      cancellation.set({Code::kShutdown, "stop"});
      over.wait();
    };
    const auto seen = outcomes_beside(odd, 2, interrupt, 20, cancellation.fd());
    EXPECT_EQ(Code::kShutdown, seen[static_cast<std::size_t>(1 - odd)].code());
  }
}

/// Everybody can see the names of Unix sockets. What has no secret is no memory, and keeps no rank
/// from it.
TEST(MemoryStrangersTest, AreNotHeardAndDoNotDisturb) {
  const auto seen = outcomes_beside_peer(0, 2, [](RawPeer& peer) {
    const MemoryRequest request = next_request(peer);
    const auto [memory, descriptor] = SharedMemory::create(total_bytes(2));
    const auto [other, stranger] = SharedMemory::create(total_bytes(2));
    UnixSocket socket;
    for (int i = 0; i < 200; ++i) {
      socket.send(request.name, "who is there?", i % 14, i % 2 == 0 ? stranger.fd() : -1);
    }
    socket.send(request.name, request.secret, sizeof request.secret);
    pass(request, descriptor);
    EXPECT_TRUE(status_in(peer.receive()).ok());
    EXPECT_EQ(std::byte{2}, memory.data()[total_bytes(1)]);
    peer.send(kWell);
  });
  EXPECT_TRUE(seen[1].ok()) << seen[1].message();
}

}  // namespace
}  // namespace aiacc
