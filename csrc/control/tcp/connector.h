#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/base/socket.h"
#include "csrc/base/wait_mark.h"
#include "csrc/control/tcp/greetings.h"

namespace aiacc {

/// The purpose of a connection. Part of the wire format. Who accepts a probe closes it after its
/// hello: it only checks that the peer is alive.
enum class ChannelKind : std::uint8_t {
  kControl = 1,
  kRing = 2,
  kMesh = 3,
  kPair = 4,
  kProbe = 5,
  kIds = 6,
  kMemory = 7,
  kMessages = 8,
  kHeartbeat = 9
};

/// One wanted connection: `connect` is true on exactly one of its two ends.
struct ChannelSpec {
  int peer = 0;
  ChannelKind kind = ChannelKind::kControl;
  std::uint16_t lane = 0;
  bool connect = false;
  std::uint32_t split_id = 0;  ///< keeps engines among some of the ranks apart; 0 for all ranks
};

/// Opens authenticated connections between the ranks of one job and epoch.
///
/// Every rank calls `establish` with specs that fit together. A connection opens with a hello
/// (magic, version, token, epoch, ranks, split_id, kind, lane) that the accepting side verifies and
/// answers; strangers, stale epochs and wrong tokens are refused and do not disturb the job.
/// Threads: any, several at a time, as long as no two ask for the same connection; whoever waits
/// accepts for all of them.
class Connector {
 public:
  Connector(Listener& listener,
            std::vector<std::string> addresses,
            int rank,
            JobToken token,
            std::uint32_t epoch,
            double connect_timeout_s);

  /// Sockets in the order of `specs`, options set. Blocks until all are there; at the deadline
  /// throws Error(kTimeout) that names the missing ranks, Error(kPeerLost) soon after one of them
  /// has closed its listener, and Error(kShutdown) when `interrupt`, a descriptor unless it is -1,
  /// becomes readable.
  std::vector<Socket> establish(const std::vector<ChannelSpec>& specs, int interrupt = -1);

  /// The same in a running unit, where other ranks may be busy with another one for however long:
  /// whoever interrupts judges them. The deadline is only for an address that nothing answers at.
  /// `mark`, unless it is null, shows the wait.
  std::vector<Socket> establish_in_unit(const std::vector<ChannelSpec>& specs,
                                        int interrupt,
                                        WaitMark* mark = nullptr);

  /// What connections that come and go as ranks need them are for; called in one thread.
  class OnDemand {
   public:
    /// Ranks to connect to, at least those that no call has told before.
    virtual std::vector<int> wanted() = 0;
    /// The connection to a rank, wanted or not, once; or why there is none to one that was wanted.
    virtual void connected(int peer, Socket socket, const Status& status) = 0;

   protected:
    ~OnDemand() = default;
  };

  /// Opens and accepts connections of a kind which nobody else establishes, without a deadline for
  /// ranks that are busy. `more` is set when others are wanted. Ends with Error(kShutdown) when
  /// `interrupt` becomes readable.
  [[noreturn]] void establish_on_demand(ChannelKind kind,
                                        Event& more,
                                        OnDemand& owner,
                                        int interrupt);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(addresses_.size()); }

 private:
  using Key = std::tuple<int, ChannelKind, std::uint16_t, std::uint32_t>;
  class Call;

  Clock::time_point deadline() const { return Clock::now() + duration_of(connect_timeout_s_); }
  void wake_calls();
  std::string verify(const Hello& hello, Socket socket);

  const std::vector<std::string> addresses_;
  const int rank_;
  const JobToken token_;
  const std::uint32_t epoch_;
  const double connect_timeout_s_;

  std::mutex mutex_;          ///< protects what follows, save that the first call has `greetings_`
  std::vector<Call*> calls_;  ///< of `establish` that are under way; the first accepts for all
  Greetings greetings_;
  std::map<Key, Socket> waiting_;  ///< accepted and verified before they were asked for
  std::set<Key> on_demand_;        ///< that this rank has opened, or does so
  std::map<int, Socket> probes_;   ///< of ranks that are awaited, by rank
};

}  // namespace aiacc
