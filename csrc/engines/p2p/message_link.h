#pragma once

#include <sys/socket.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/engines/p2p/mailbox.h"
#include "csrc/engines/tcp/channel.h"

namespace aiacc {

/// A connection to another rank for messages between the two, in both directions.
///
/// A sender *offers*; what has at most kEagerBytes travels with the offer. When the other rank has
/// a receive for it, it answers: *taken*, if it has the payload; *granted*, whereupon the sender
/// sends it; or *refused*, because the receive is for another size. So payloads come only when
/// there is a place for them, whatever the order in which ranks send and receive.
/// The owner's thread reads. Whoever has something to send writes it, as far as the connection
/// takes it at once; the thread writes the rest.
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

  /// `epoll`: where the owner's thread waits, and hears of this link by its address. What is sent
  /// before there is a connection waits for it. The owner outlives this.
  MessageLink(int rank, int peer, double peer_timeout_s, Owner& owner, int epoll);
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  // Any thread; never block.
  void send(const std::string& key, const void* data, std::uint64_t bytes, std::uint64_t ticket);
  void grant(std::uint32_t id, const MessageReceive& receive);
  void take(std::uint32_t id) { push({{kMagic, Header::kTaken, 0, id, 0}, {}}); }
  void refuse(std::uint32_t id, std::uint64_t expected) {
    push({{kMagic, Header::kRefuse, 0, id, expected}, {}});
  }
  /// Not ok: nothing comes any more.
  Status end();
  /// Waits until nothing is on its way that was granted or written, or the deadline has come.
  void drain(Clock::time_point deadline);

  /// The first connection counts.
  void connect(Socket socket);
  /// -1 without a connection.
  int fd();
  /// Nothing is read or written any more; ends the connection, as in shutdown(2).
  void fail(const Status& end, int how = SHUT_RDWR) noexcept;

  /// Looks after the connection if somebody waits for the other rank. In one thread.
  void look() noexcept;
  /// Moves some of what can be moved; a part of it, so that other links have their turn. In the
  /// owner's thread.
  void serve(std::uint32_t events) noexcept;

 private:
  static constexpr std::uint8_t kMagic = 0xa2;
  /// First bytes of everything that is sent.
  struct Header {
    enum Kind : std::uint8_t { kOffer = 1, kGrant = 2, kData = 3, kTaken = 4, kRefuse = 5 };

    std::uint8_t magic = kMagic;
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

  void read();
  bool parse();
  void handle(const Header& header, const std::string& key, const std::uint8_t* payload);
  void begin_data(const Header& header);
  void take_data(std::size_t bytes);
  Send take_send(std::uint32_t id);
  void push(Outgoing&& outgoing);
  void write(Lock& lock);
  std::size_t write_some(const Outgoing& outgoing);
  bool watch(int operation) noexcept;
  bool waits();
  [[noreturn]] void distrust(const std::string& what) const;

  const int rank_;
  const int peer_;
  const double peer_timeout_s_;
  Owner& owner_;
  const int epoll_;

  std::mutex mutex_;  ///< protects what follows, down to `idle_`
  std::unique_ptr<Channel> channel_;
  std::deque<Outgoing> outbox_;
  std::map<std::uint32_t, Send> sends_;               ///< offered, not answered
  std::map<std::uint32_t, MessageReceive> incoming_;  ///< granted, not come
  std::uint32_t next_id_ = 0;
  bool writing_ = false;      ///< a thread writes, without the lock
  bool full_ = true;          ///< the thread goes on with writing, when there is room
  bool watches_room_ = true;  ///< the epoll tells when there is
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
};

/// What a send and a receive of different sizes end with.
Status size_mismatch(
    const std::string& key, int source, std::uint64_t sent, int target, std::uint64_t expected);

}  // namespace aiacc
