// Ranks that share memory, and what keeps them from it.

#include "csrc/control/shm/memory_sharing.h"

#include <fcntl.h>
#include <sys/mman.h>
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

/// The same of one that does `act(link)`, with its first connection, and has ended then.
template <class Act>
std::vector<Status> outcomes_beside_link(int odd, int size, Act act) {
  return outcomes_beside(odd, size, [&](std::vector<Socket>& sockets, const auto&) {
    MemoryLink link(std::move(sockets[0]), odd == 0 ? 1 : 0);
    act(link);
  });
}

void wait_until_over(std::vector<Socket>&, const std::shared_future<void>& over) { over.wait(); }

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(20); }

Status next_message(MemoryLink& link) {
  const Patience patience(20, -1);
  while (true) {
    if (const auto message = link.receive()) {
      return *message;
    }
    if (!patience.sleep({link.readable()})) {
      throw Error(Code::kTimeout, "[test] no message");
    }
  }
}

MemoryInvitation next_invitation(MemoryLink& link) {
  const Status message = next_message(link);
  MemoryInvitation invitation{};
  EXPECT_EQ(sizeof invitation, message.message().size());
  std::memcpy(&invitation, message.message().data(), sizeof invitation);
  return invitation;
}

Status invite(std::uint64_t bytes, const std::string& name) {
  MemoryInvitation invitation{};
  invitation.bytes = bytes;
  invitation.nonce[0] = 1;  // new memory is full of zeros
  name.copy(invitation.name, sizeof invitation.name);
  return {Code::kOk, std::string(reinterpret_cast<const char*>(&invitation), sizeof invitation)};
}

/// Of two ranks.
std::size_t total_bytes(int size) { return MemoryParts(sharing_of(size, 0)).total_bytes(); }

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
  const MemorySharing sharing = sharing_of(3, 1);
  const MemoryParts parts(sharing);
  auto [memory, descriptor] = SharedMemory::create(parts.total_bytes());
  parts.take(memory, descriptor, 1);
  struct stat status{};
  ASSERT_EQ(0, fstat(descriptor.fd(), &status));
  EXPECT_EQ(parts.total_bytes() / 3, static_cast<std::size_t>(status.st_blocks) * 512);
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
TEST(MemoryLiarTest, ReportsThatAreNoneEndItForAll) {
  const auto headed = [](std::uint32_t code, std::uint32_t bytes) {
    const MemoryLink::Header header{code, bytes};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header);
  };
  for (const std::string& lie : {headed(99, 0), headed(0, 5000), headed(0xffffffff, 0xffffffff)}) {
    const auto seen = outcomes_beside(1, 3, [&](auto& sockets, const auto& over) {
      sockets[0].send_all(lie.data(), lie.size(), "rank 0", soon());
      over.wait();
    });
    expect_error(seen[0], Code::kInternal, {"rank 1 sent a report of code"});
    EXPECT_EQ(seen[0].message(), seen[2].message());
  }
}

TEST(MemoryLiarTest, ARankThatSaysItHasTheMemoryMustHaveWrittenThere) {
  const auto seen = outcomes_beside_link(1, 3, [](MemoryLink& link) {
    next_invitation(link);
    link.send(Status(), soon());
    expect_error(next_message(link), Code::kEngine, {"what rank 1 wrote"});
  });
  expect_error(seen[0], Code::kEngine, {"what rank 1 wrote into the shared memory is not seen"});
  EXPECT_EQ(seen[0].message(), seen[2].message());
}

TEST(MemoryLiarTest, InvitationsOfTheLowestRankAreLookedAt) {
  const std::vector<std::tuple<Status, Code, std::string>> lies = {
      {{Code::kOk, "too short"}, Code::kInternal, "an invitation of 9 bytes"},
      {invite(123, "aiacc-nobody"), Code::kEngine, "rank 0 has 123 bytes for all ranks"},
      {invite(total_bytes(2), "aiacc-nobody"), Code::kEngine, "does not listen on a Unix socket"},
      {invite(total_bytes(2), std::string(48, 'x')), Code::kEngine, "does not listen"},
  };
  for (const auto& [message, code, text] : lies) {
    const auto seen =
        outcomes_beside_link(0, 2, [&, lie = message, expected = code](MemoryLink& link) {
          link.send(lie, soon());
          const Status report = next_message(link);
          EXPECT_EQ(expected, report.code());
          link.send(report, soon());
        });
    expect_error(seen[1], code, {text});
  }
}

/// Rank 0 passes `descriptor` instead of its memory; what rank 1 says to that.
Status report_on(const Socket& descriptor) {
  return outcomes_beside_link(0, 2, [&](MemoryLink& link) {
    UnixListener door;
    link.send(invite(total_bytes(2), door.name()), soon());
    const Patience patience(20, -1);
    EXPECT_TRUE(patience.sleep({{door.fd(), POLLIN, 0}}));
    const Socket caller = door.accept();
    EXPECT_TRUE(send_message(caller, "x", 1, descriptor.fd()));
    link.send(next_message(link), soon());
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
  // It could be that of another job.
  const auto [memory, descriptor] = SharedMemory::create(total_bytes(2));
  expect_error(report_on(descriptor), Code::kEngine, {"what rank 0 wrote into the shared memory"});
}

TEST(MemoryLossTest, ARankThatHasDiedEndsItForAll) {
  const auto seen = outcomes_beside_link(1, 3, [](MemoryLink& link) { next_invitation(link); });
  expect_error(seen[0], Code::kPeerLost, {"rank 1"});
  EXPECT_EQ(seen[0].message(), seen[2].message());
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
               {"rank 0 has not made the memory"});
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

/// Everybody can see the names of Unix sockets. Who has no nonce gets nothing, and keeps no rank
/// from it.
TEST(MemoryStrangersTest, AreTurnedAwayAndDoNotDisturb) {
  for (const int strangers : {1, 200}) {
    std::vector<Socket> crowd;
    const auto seen = outcomes_beside_link(1, 2, [&](MemoryLink& link) {
      const MemoryInvitation invitation = next_invitation(link);
      for (int i = 0; i < strangers; ++i) {
        Socket stranger = connect_unix(invitation.name);
        if (!stranger.valid()) {
          --i;
          continue;
        }
        const MemoryMark wrong{{1, 2, 3}, 1};
        if (i % 3 == 1) {
          send_message(stranger, "who is there?", 14);
        } else if (i % 3 == 2) {
          send_message(stranger, &wrong, sizeof wrong);
        }
        crowd.push_back(std::move(stranger));
      }
      const MemorySharing sharing = sharing_of(2, 1);
      MemoryParts parts(sharing);
      parts.set_nonce(invitation.nonce);
      const MemoryMark mark = parts.mark_of(1);
      const Patience patience(20, -1);
      UnixMessage given;
      // As a rank does that strangers crowd out.
      while (!given.descriptor.valid()) {
        const Socket socket = connect_unix(invitation.name);
        if (!socket.valid() || !send_message(socket, &mark, sizeof mark)) {
          continue;
        }
        MemoryMark echo{};
        EXPECT_TRUE(patience.sleep({{socket.fd(), POLLIN, 0}}));
        given = receive_message(socket, &echo, sizeof echo);
      }
      SharedMemory memory = SharedMemory::map(given.descriptor, parts.total_bytes());
      parts.check(memory, 0);
      parts.take(memory, given.descriptor, 1);
      link.send(Status(), soon());
      EXPECT_TRUE(next_message(link).ok());
    });
    EXPECT_TRUE(seen[0].ok()) << seen[0].message();
    for (const Socket& stranger : crowd) {
      char got[64];
      EXPECT_FALSE(receive_message(stranger, got, sizeof got).descriptor.valid());
    }
  }
}

}  // namespace
}  // namespace aiacc
