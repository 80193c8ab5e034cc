#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/p2p/mailbox.h"
#include "csrc/engines/tcp/channel.h"

namespace aiacc {

/// The connection to another rank for the messages between the two, in both directions.
///
/// A sender *offers*; what has at most kEagerBytes travels with the offer. When the other rank has
/// a receive for it, it answers: *taken*, if it has the payload; *granted*, whereupon the sender
/// sends it; or *refused*, because the receive is for another size. So payloads come only when
/// there is a place for them, whatever the order in which ranks send and receive.
/// A thread of its own connects and reads. Whoever has something to send writes it, as far as the
/// connection takes it at once; the rest is the thread's.
class MessageLink {
 public:
  static constexpr std::size_t kEagerBytes = std::size_t{16} << 10;
  static constexpr std::size_t kMostKeyBytes = 1000;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;

  /// What hears of it, in any thread, without a lock of the link being held.
  class Owner {
   public:
    virtual void offered(const std::string& key, MessageOffer offer) = 0;
    /// The send or receive with this ticket is over: nobody uses its memory any more.
    virtual void ended(std::uint64_t ticket, int source, const Status& status) = 0;
    /// The connection is gone, and something waits for it.
    virtual void lost(const Status& status) noexcept = 0;
    /// Whether a receive that this link knows nothing of waits for its rank.
    virtual bool awaits(int source) = 0;

   protected:
    ~Owner() = default;
  };

  /// Returns at once. `stop` ends what waits when it is set. References outlive this.
  MessageLink(Connector& connector,
              int peer,
              double peer_timeout_s,
              Owner& owner,
              const Cancellation& stop);
  ~MessageLink();
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  // Any thread; never block.
  void send(const std::string& key, const void* data, std::uint64_t bytes, std::uint64_t ticket);
  void grant(std::uint32_t id, const MessageReceive& receive);
  void take(std::uint32_t id);
  void refuse(std::uint32_t id, std::uint64_t expected);
  /// For when `Owner::awaits` has become true. Not ok: nothing comes any more.
  Status look_after();

  /// Waits until nothing is on its way that was granted or written, or the deadline has come.
  void drain(Clock::time_point deadline);
  /// Returns when no thread uses memory of a message any more. After the cancellation, once.
  void join();

 private:
  /// First bytes of everything that is sent.
  struct Header {
    enum Kind : std::uint8_t { kOffer = 1, kGrant = 2, kData = 3, kTaken = 4, kRefuse = 5 };

    std::uint8_t magic = 0xa2;
    std::uint8_t kind = 0;
    std::uint16_t key_bytes = 0;
    std::uint32_t id = 0;
    std::uint64_t bytes = 0;
  };
  static_assert(sizeof(Header) == 16, "part of the wire format");
  struct Send {
    std::string key;
    const void* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t ticket = 0;
  };
  struct Outgoing {
    Header header;
    std::string key;
    const void* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t ticket = 0;  ///< ends when this is written; 0: of none
    std::uint64_t written = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  void run() noexcept;
  void connect();
  void sleep();
  void say_goodbye() noexcept;
  void read();
  bool parse();
  void handle(const Header& header, const std::string& key, const std::uint8_t* payload);
  void begin_data(const Header& header);
  void take_data(std::size_t bytes);
  Send take_send(std::uint32_t id);
  void post(Outgoing&& outgoing);
  void push(Lock& lock, Outgoing&& outgoing);
  void wake_sleeper();
  void write(Lock& lock);
  std::size_t write_some(const Outgoing& outgoing);
  bool waits();
  [[noreturn]] void distrust(const std::string& what) const;

  Connector& connector_;
  const int peer_;
  const double peer_timeout_s_;
  Owner& owner_;
  const Cancellation& stop_;
  Event event_;

  std::mutex mutex_;  ///< protects what follows, down to `idle_`
  std::unique_ptr<Channel> channel_;
  std::deque<Outgoing> outbox_;
  std::map<std::uint32_t, Send> sends_;               ///< offered, not answered
  std::map<std::uint32_t, MessageReceive> incoming_;  ///< granted, not come
  std::uint32_t next_id_ = 0;
  bool writing_ = false;      ///< a thread writes, without the lock
  bool full_ = false;         ///< the connection takes no more for the moment
  bool sleeps_long_ = false;  ///< the thread may sleep without a time limit
  bool over_ = false;         ///< nothing is read or written any more
  Status end_;                ///< why
  std::condition_variable idle_;

  // The thread's.
  std::vector<std::uint8_t> inbox_;
  std::size_t begin_ = 0;  ///< of what has not been looked at
  std::size_t end_of_inbox_ = 0;
  MessageReceive reading_;  ///< whose payload comes now,
  std::uint32_t reading_id_ = 0;
  std::uint64_t data_left_ = 0;  ///< and how much of it is still to come

  std::thread thread_;
};

/// What a send and a receive of different sizes end with.
Status size_mismatch(
    const std::string& key, int source, std::uint64_t sent, int target, std::uint64_t expected);

}  // namespace aiacc
