#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/core/join_state.h"
#include "csrc/core/message.h"
#include "csrc/core/process_sets.h"
#include "csrc/core/response_cache.h"

namespace aiacc {

/// A tensor on which all ranks have agreed, or agreed to disagree.
struct Agreement {
  std::uint64_t ticket = 0;  ///< what this rank gave to `submit`; 0: it has joined, see `zeros`
  /// Rows that come from every member of the process set: all-gather (of each tensor of the group in
  /// turn) and all-to-all.
  std::vector<std::int64_t> first_extents;
  /// All-to-all: rows that all ranks send together. Join: the last rank to join. Process sets: the
  /// id of a new one, whether an old one was removed.
  std::int64_t value = 0;
  SharedPlacement devices;               ///< the members' GPUs; null: a tensor in host memory
  Status status;                         ///< not ok: fails on every rank with this
  std::shared_ptr<const Request> zeros;  ///< what this rank, which has joined, answers with zeros
};

struct RoundOutcome {
  std::vector<Agreement> ready;  ///< in an order that is the same on every rank
  std::uint32_t flags = 0;
  std::vector<Report> answers;  ///< every rank's pending names, after a stall query
  bool parameters_changed = false;
  /// Every rank said that it is stuck, and something was agreed on all the same.
  bool look_again = false;

  /// Empties it; what its vectors hold is kept for the next round.
  void clear() {
    ready.clear();
    answers.clear();
    flags = 0;
    parameters_changed = false;
    look_again = false;
  }
};

/// Readiness agreement without a master: AIACC-Training's bit vector (ICDCS 2022, decentralised
/// synchronisation) generalised to tensors that were never registered.
///
/// A replicated state machine. The first submission of a name travels as a request; once every
/// member of its process set has sent one, all ranks take the same decision: fail it, or make it
/// ready and give the name a slot. Later submissions with the same signature are one bit in that
/// slot; a different signature frees the slot everywhere and starts over. A rank outside a slot's
/// process set always sets the bit, so one AND serves all sets; so does a rank that has joined, for
/// what it can answer with zeros.
/// Pure: no threads, no clock, no I/O. Requests passed to `submit` must stay alive until their
/// ticket comes back.
class Negotiator {
 public:
  Negotiator(int rank, int size, std::size_t cache_capacity, const Parameters& parameters);

  /// `ticket` is not 0.
  void submit(const Request& request, std::uint64_t ticket);

  /// Something that must travel now, whoever waits: an answer, a proposal, a freed slot's owner, the
  /// bits of a rank that has joined.
  bool urgent() const { return answer_due_ || proposal_.has_value() || news_; }

  /// Submissions of this rank that are not ready yet.
  std::size_t waiting() const { return submitted_; }

  void ask_for_stalls() { flags_ |= kFlagStallQuery; }
  /// Makes the next round urgent.
  void look_again() { news_ = true; }
  /// For the next epoch; the epoch number in `parameters` is ignored.
  void propose(const Parameters& parameters);
  /// Whether one of this rank waits for the next round.
  bool has_proposal() const { return proposal_.has_value(); }
  const Parameters& parameters() const { return parameters_; }
  const ProcessSetTable& process_sets() const { return sets_; }

  /// This rank's share of the next round. `stuck`: whatever this rank may still submit, it needs
  /// something with an automatic name first that is not ready. When all ranks are stuck, that fails.
  /// `busy`: units of earlier rounds are under way here.
  void contribute(Bytes& out, bool stuck = false, bool busy = false);

  /// Takes the combined message of a round that `contribute` was made for. The outcome is kept until
  /// the next call.
  const RoundOutcome& apply(const Bytes& combined);

 private:
  /// Names are unique within a process set.
  using Key = std::pair<std::uint32_t, std::string>;
  /// A submission of this rank that is not ready yet.
  struct Local {
    const Request* request = nullptr;
    std::uint64_t ticket = 0;
  };
  /// Requests that have arrived for one name.
  struct Waiting {
    std::vector<std::optional<Request>> by_member;
    std::size_t count = 0;
  };

  void apply_bits(const BitVector& ready, RoundOutcome& outcome);
  void take_request(int rank, Request&& request, RoundOutcome& outcome);
  void take_join(int rank);
  void settle_all(RoundOutcome& outcome);
  void settle(const Key& key, RoundOutcome& outcome);
  void conclude(const Key& key, const Waiting& waiting, RoundOutcome& outcome);
  void finish_join(RoundOutcome& outcome);
  void decide_on_sets(const Request& request, Agreement& agreement, RoundOutcome& outcome);
  void remove_set(std::uint32_t id, RoundOutcome& outcome);
  void fail(const Key& key, const Status& status, RoundOutcome& outcome);
  void fail_automatic_names(RoundOutcome& outcome);
  bool has_slot(const Request& request, ResponseCache::Slot slot) const;
  void give_slot(const Request& request, const SharedPlacement& devices);
  void free_slot(ResponseCache::Slot slot);
  void requeue(ResponseCache::Slot slot);
  bool blocked_by_join(const Request& request) const;
  std::optional<std::uint64_t> take_ticket(const Key& key);
  std::vector<std::string> pending_names() const;

  int rank_;
  Parameters parameters_;
  ResponseCache cache_;
  ProcessSetTable sets_;
  JoinState joined_;
  std::size_t submitted_ = 0;
  std::uint32_t flags_ = 0;
  bool answer_due_ = false;
  bool news_ = false;
  std::optional<Parameters> proposal_;

  std::vector<Local> fresh_;    ///< to be sent as requests
  std::map<Key, Local> sent_;   ///< sent, waiting for the other ranks
  std::optional<Local> join_;   ///< this rank's join
  BitVector bits_;              ///< slots submitted here
  BitVector foreign_;           ///< slots of process sets that this rank is not in
  BitVector joinable_;          ///< slots that a joined rank answers with zeros
  std::vector<Local> by_slot_;  ///< the submission behind each bit

  std::map<Key, Waiting> waiting_;  ///< replicated
  std::vector<Key> touched_;        ///< names that came in the round being applied
  bool join_came_ = false;          ///< in the round being applied
  std::size_t decisions_ = 0;       ///< in the round being applied; replicated
  RoundMessage message_;            ///< scratch, kept for its memory
  RoundOutcome outcome_;            ///< the same
};

}  // namespace aiacc
