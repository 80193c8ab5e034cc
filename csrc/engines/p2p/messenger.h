#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/event.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/p2p/mailbox.h"
#include "csrc/engines/p2p/message_link.h"

namespace aiacc {

/// Messages between two ranks: what point-to-point operations of a front-end become.
///
/// A message goes to the receive of the same key; several of one key, from one rank to another, in
/// the order in which they were sent and received. Nothing else is ordered: no message waits for
/// another one, for a collective or for a round. A send is over when the other rank has the
/// message, or its receive gets it for certain: like `MPI_Ssend`, it waits for the receive.
/// A rank connects to another one to send the first message between the two, so ranks that are
/// silent cost nothing, even a receive from any. From the first send or receive on there are two
/// threads, whatever the number of ranks: one moves what has come and what has to go on all
/// connections, the other one makes the connections.
/// Threads: any. Nothing blocks but `drain` and `stop`.
/// Failure: a rank that is gone, while something waits for it, is reported once or more; whoever
/// looks after the ranks then calls `stop`. Sizes that differ fail the send and the receive.
class Messenger final : private MessageLink::Owner, private Connector::OnDemand {
 public:
  struct Events {
    /// The send or receive with this ticket is over: nobody uses its memory any more. `source`: the
    /// rank that has sent the message. Must not block.
    std::function<void(std::uint64_t ticket, int source, const Status& status)> ended;
    std::function<void(const Status& status)> lost;
  };

  /// Without a `connector` the rank is alone, and may send to itself.
  Messenger(Connector* connector, int rank, double peer_timeout_s, Events events);
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  /// Memory belongs to the message until its ticket, which is not 0, has ended, or `stop` returns.
  /// Keys have at most MessageLink::kMostKeyBytes, messages at most kMostBytes.
  void send(
      int to, const std::string& key, const void* data, std::uint64_t bytes, std::uint64_t ticket);
  void receive(const std::string& key, const MessageReceive& receive);

  /// Looks after the connections to ranks that something waits for. In one thread.
  void look();
  /// Lets what is certain to come, come, until the deadline.
  void drain(Clock::time_point deadline);
  /// Drops everything without a word to anybody; when this returns no memory of a message is used
  /// any more. What is sent or received later is dropped as well. `status`: kShutdown if the ranks
  /// end in order.
  void stop(const Status& status) noexcept;

 private:
  void offered(const std::string& key, MessageOffer offer) override;
  void ended(std::uint64_t ticket, int source, const Status& status) override;
  void lost(const Status& status) noexcept override;
  bool awaits(int source) override;

  std::vector<int> wanted() override;
  void connected(int peer, Socket socket, const Status& status) override;

  void start();
  void connect() noexcept;
  void move() noexcept;
  void deliver(const std::string& key, MessageOffer& offer, const MessageReceive& receive);
  MessageLink* link_to(int peer);
  MessageLink* add_link(int peer);
  std::vector<MessageLink*> links();

  Connector* const connector_;
  const int rank_;
  const double peer_timeout_s_;
  const Events events_;
  Cancellation cancellation_;
  Socket epoll_;       ///< with all connections, each as its link, and `cancellation_`
  Event wanted_more_;  ///< for the thread that connects

  std::shared_mutex in_use_;  ///< shared by callers, who may use memory of messages
  std::mutex mutex_;          ///< protects what follows; a link's may be taken with it
  bool stopped_ = false;
  Mailbox mailbox_;
  std::map<int, std::unique_ptr<MessageLink>> links_;
  std::set<int> unconnected_;  ///< peers whose link waits for a connection that nobody opens yet
  std::thread moving_;
  std::thread connecting_;
};

}  // namespace aiacc
