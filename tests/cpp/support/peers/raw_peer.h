#pragma once

#include <poll.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/socket.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/control/tcp/frame.h"

namespace aiacc {

/// The other end of a ControlPlane's connection, for tests that misbehave on it.
class RawPeer {
 public:
  explicit RawPeer(Socket socket) : socket_(std::move(socket)), decoder_("the plane") {}

  void send(const Bytes& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      sent += socket_.send_some(bytes.data() + sent, bytes.size() - sent, "the plane");
      if (sent < bytes.size()) {
        wait_for(POLLOUT);
      }
    }
  }
  void send(const Frame& frame) {
    Bytes bytes;
    encode_frame(frame, bytes);
    send(bytes);
  }

  /// The next frame, reading no faster than a piece of at most 64 KiB per `pause`. Throws
  /// Error(kTimeout) after 30 s, Error(kPeerLost) when the plane closed.
  Frame receive(std::chrono::milliseconds pause = {}) {
    Frame frame;
    while (!decoder_.next(frame)) {
      std::this_thread::sleep_for(pause);
      std::uint8_t buffer[64 << 10];
      const std::size_t got = socket_.recv_some(buffer, sizeof buffer, "the plane");
      decoder_.add(buffer, got);
      if (got == 0) {
        wait_for(POLLIN);
      }
    }
    return frame;
  }

  /// Blocks until something has come, and leaves it there.
  void await_bytes() { wait_for(POLLIN); }

  /// Blocks until the plane has closed the connection.
  void await_close() {
    try {
      while (true) {
        receive();
      }
    } catch (const Error& error) {
      if (error.code() != Code::kPeerLost) {
        throw;
      }
    }
  }

  void close() { socket_.close(); }

 private:
  void wait_for(short events) {
    pollfd entry{socket_.fd(), events, 0};
    if (poll(&entry, 1, 30'000) == 0) {
      throw Error(Code::kTimeout, "[test] the plane was silent for 30 s");
    }
  }

  Socket socket_;
  FrameDecoder decoder_;
};

/// The raw ends of the connections that a ControlPlane of this rank would have.
struct RawPeers {
  std::vector<RawPeer> control;
  std::vector<Socket> heartbeats;
};

inline RawPeers raw_peers(Connector& connector, const std::vector<int>& partners) {
  std::vector<ChannelSpec> specs;
  for (const ChannelKind kind : {ChannelKind::kControl, ChannelKind::kHeartbeat}) {
    for (const int partner : partners) {
      specs.push_back({partner, kind, 0, partner < connector.rank()});
    }
  }
  RawPeers peers;
  for (Socket& socket : connector.establish(specs)) {
    if (peers.control.size() < partners.size()) {
      peers.control.emplace_back(std::move(socket));
    } else {
      peers.heartbeats.push_back(std::move(socket));
    }
  }
  return peers;
}

}  // namespace aiacc
