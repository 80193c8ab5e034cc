#include "csrc/control/tcp/greetings.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "csrc/base/descriptors.h"
#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace aiacc {
namespace {

/// A flood of strangers is not to fill the log.
constexpr int kMostReports = 16;

/// More than the kernel has waiting, so that one turn makes room for ranks behind strangers.
constexpr int kMostAtOnce = 8192;

}  // namespace

std::string explain(std::uint8_t answer) {
  switch (answer) {
    case kWrongVersion:
      return "it runs another aiacc version; install the same one everywhere";
    case kWrongToken:
      return "job token mismatch; two jobs share an address, or AIACC_TOKEN differs";
    case kWrongEpoch:
      return "it is in another init/shutdown cycle; call init the same number of times everywhere";
    case kWrongRank:
      return "it has another rank than its address says; check AIACC_RANK and AIACC_ADDR";
    case kDuplicate:
      return "this rank is already connected; two processes have the same rank";
    case kNoDescriptors:
      return "it has as many files and sockets open as it may; raise its limit (ulimit -n)";
    default:
      return "it does not speak aiacc's protocol";
  }
}

void Greetings::watch(std::vector<pollfd>& entries) const {
  entries.push_back({listener_.fd(), POLLIN, 0});
  for (const Greeting& greeting : greetings_) {
    entries.push_back({greeting.socket.fd(), POLLIN, 0});
  }
}

void Greetings::serve(const Verify& verify) {
  // Those that are here first: who has said its hello by now is not the one to give way.
  for (auto next = greetings_.begin(); next != greetings_.end();) {
    next = advance(*next, verify) ? greetings_.erase(next) : std::next(next);
  }
  if (greetings_.empty()) {
    most_ = kMost;
  }
  // Not for as long as more of them come: the caller has a deadline.
  for (int i = 0; i < kMostAtOnce; ++i) {
    Socket socket = accept();
    if (!socket.valid()) {
      break;
    }
    Greeting fresh{std::move(socket), Clock::now() + patience_};
    if (advance(fresh, verify)) {
      continue;
    }
    if (is_nearly_last(fresh.socket.fd())) {
      most_ = std::max<std::size_t>(greetings_.size(), 1);
    }
    while (greetings_.size() >= most_) {
      give_way();
    }
    greetings_.push_back(std::move(fresh));
  }
}

Socket Greetings::accept() {
  while (true) {
    try {
      return listener_.accept();
    } catch (const Error&) {
      if (greetings_.empty()) {
        for (std::size_t i = 0; i < kMost && listener_.turn_away(kNoDescriptors); ++i) {
        }
        throw;
      }
      give_way();
    }
  }
}

void Greetings::give_way() {
  report("of " + std::to_string(greetings_.size()) +
         " connections that did not say yet who they are the oldest was closed");
  greetings_.pop_front();
}

void Greetings::clear() {
  greetings_.clear();
  most_ = kMost;
}

/// Reads what is there; true when this greeting is over, one way or the other.
bool Greetings::advance(Greeting& greeting, const Verify& verify) {
  try {
    greeting.got += greeting.socket.recv_some(greeting.bytes.data() + greeting.got,
                                              greeting.bytes.size() - greeting.got,
                                              "a connecting process");
    Hello hello{};
    std::memcpy(&hello, greeting.bytes.data(), sizeof hello);
    if (greeting.got >= sizeof hello.magic && hello.magic != Hello::kMagic) {
      report("a stranger connected and was turned away");
      return true;
    }
    if (greeting.got < greeting.bytes.size()) {
      if (Clock::now() < greeting.deadline) {
        return false;
      }
      report("a connection did not say who it is and was closed");
      return true;
    }
    const std::string refusal = verify(hello, std::move(greeting.socket));
    if (!refusal.empty()) {
      report(refusal);
    }
  } catch (const Error& error) {
    if (greeting.got > 0) {  // else somebody looked whether this address answers
      report(std::string("a connection ended in its hello: ") + error.what());
    }
  }
  return true;
}

void Greetings::report(const std::string& what) {
  if (reported_ <= kMostReports) {
    AIACC_LOG(kWarning) << "[control] at " << listener_.address() << ": "
                        << (reported_ < kMostReports
                                ? what
                                : "more connections of strangers, which are no longer reported");
    ++reported_;
  }
}

}  // namespace aiacc
