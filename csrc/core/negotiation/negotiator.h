#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/core/negotiation/join_state.h"
#include "csrc/core/negotiation/message.h"
#include "csrc/core/negotiation/process_set_table.h"
#include "csrc/core/negotiation/response_cache.h"

namespace aiacc {

/// The outcome for one tensor: ready, or failed with the same status on every rank.
struct Response {
  Submitted* submitted = nullptr;  ///< by this rank; null: it has joined, see `zeros`
  /// Rows that come from every member of the process set: all-gather (of each tensor of the group
  /// in turn) and all-to-all.
  std::vector<std::int64_t> first_extents;
  /// All-to-all: rows that all ranks send together. Join: the last rank to join. Process sets: the
  /// id of a new one, whether an old one is gone.
  std::int64_t value = 0;
  SharedPlacement devices;               ///< the members' GPUs; null: a tensor in host memory
  Status status;                         ///< not ok: fails on every rank with this
  std::shared_ptr<const Request> zeros;  ///< what this rank, which has joined, answers with zeros
  /// Some member has joined. It has no residuals there, so nothing is to travel coded.
  bool joined = false;
};

struct RoundOutcome {
  std::vector<Response> ready;  ///< in an order that is the same on every rank
  std::uint32_t flags = 0;
  Answers answers;  ///< to the questions of the round before; of no rank: there were none

  /// Empties it; what its vectors hold is kept for the next round.
  void clear() {
    ready.clear();
    answers = {};
    flags = 0;
  }
};

/// Readiness agreement without a master: AIACC-Training's bit vector (ICDCS 2022, decentralised
/// synchronisation) generalised to tensors that were never registered.
///
/// A replicated state machine. The first submission of a name travels as two digests, of the name
/// and of everything else that must be equal. Once every member of its process set has sent them,
/// all ranks take the same decision: fail it, or make it ready and give the name a slot. The
/// request itself follows in the next round, from the lowest rank that has it, where digests are
/// not enough: to say in what requests differ, and what a rank that has joined gives zeros for.
/// Later submissions with the same signature are one bit in that slot; a different signature frees
/// the slot everywhere and starts over. A rank outside a slot's process set always sets the bit, so
/// one AND serves all sets; so does a rank that has joined, for what it can answer with zeros.
/// Equal requests of several ranks are one, here and in the message: the cost of a round and of
/// what waits grows with the tensors, not with ranks x tensors. What is too much for one round
/// (kRoundBudget) comes in the next. A process set that is formed, not added, waits for its own
/// members alone, though all ranks take it into their tables; and it is gone when all members have
/// left it. What waits in it for one that has left fails. Pure: no threads, no clock, no I/O.
/// What is passed to `submit` must stay alive until it comes back.
class Negotiator {
 public:
  /// About the cache see ResponseCache.
  Negotiator(int rank,
             int size,
             std::size_t cache_capacity,
             const Parameters& parameters,
             std::uint64_t cache_patience = ResponseCache::kPatience);

  void submit(Submitted& submitted);

  /// Whether a round must start now, even if nobody waits: an answer, a proposal, a freed slot's
  /// owner, the bits of a rank that has joined.
  bool urgent() const { return asked_ != 0 || proposal_.has_value() || news_; }

  /// Submissions of this rank that are not ready yet.
  std::size_t waiting() const { return submitted_; }

  /// Asks all ranks: kFlagStallQuery, kFlagUnitQuery or both.
  void ask(std::uint32_t questions) { flags_ |= questions; }
  /// The questions that this rank's next share answers.
  std::uint32_t asked() const { return asked_; }
  /// What it answers; the ranks of `names` are set here.
  void answer_with(std::vector<LaneReport> lanes, std::vector<PendingName> names);
  /// For the next epoch; the epoch number in `parameters` is ignored.
  void propose(const Parameters& parameters);
  /// Whether one of this rank waits for the next round.
  bool has_proposal() const { return proposal_.has_value(); }
  const Parameters& parameters() const { return parameters_; }
  const ProcessSetTable& process_sets() const { return sets_; }

  /// This rank's share of the next round. `state`: flags that say what this rank is doing.
  void contribute(Bytes& out, std::uint32_t state = 0);

  /// Takes the combined message of a round that `contribute` was made for. The outcome is kept
  /// until the next call.
  const RoundOutcome& apply(const Bytes& combined);

 private:
  /// Names are unique within a process set.
  using Key = ResponseCache::Key;
  /// What travels of this rank, with its key in the message.
  struct Offer {
    Submitted* submitted;
    Key name;
    std::string key;
  };
  /// Requests that have arrived for one name: those that differ, each with its senders, who are
  /// members and occur once.
  struct Waiting {
    std::vector<SharedRequest> requests;
    RankSet arrived;
    /// Members of the process set that they form. Where ranks have told different ones, these are
    /// all of them, so that each gets to know. Empty: they form none.
    std::vector<int> formed;
    std::size_t asked = 0;  ///< so many of the requests, by their lowest rank, are to be told
  };
  /// Why this rank's request fails.
  using Reason = std::function<Status(const Request&)>;

  void offer_requests();
  void check_requests(const RoundMessage& message) const;
  void check_own_requests(const RoundMessage& message) const;
  void take_back(const std::optional<std::string>& cut);
  void apply_bits(const BitVector& ready, RoundOutcome& outcome);
  void take_requests(std::vector<SharedRequest>& requests, RoundOutcome& outcome);
  void take_request(SharedRequest&& shared, RoundOutcome& outcome);
  void take_text(const SharedRequest& text);
  void take_join(int rank);
  void take_leave(std::uint32_t id, const RankSet& ranks);
  void settle_all(RoundOutcome& outcome);
  /// Who has to ask before it is decided on.
  const std::vector<int>& members_of(const Key& key, const Waiting& waiting) const {
    return waiting.formed.empty() ? *sets_.members(key.first) : waiting.formed;
  }
  void settle(const Key& key, RoundOutcome& outcome);
  bool knows_enough(Waiting& waiting, bool some_absent);
  void conclude(const Key& key, const Waiting& waiting, RoundOutcome& outcome);
  void finish_join(RoundOutcome& outcome);
  void check_parts(const Waiting& waiting, bool some_absent) const;
  void decide_on_sets(const Request& request, Response& response, RoundOutcome& outcome);
  void remove_set(std::uint32_t id, RoundOutcome& outcome);
  void fail(const Key& key, const Reason& reason, RoundOutcome& outcome);
  bool has_slot(const Request& request, ResponseCache::Slot slot) const;
  void give_slot(const SharedRequest& shared, const SharedPlacement& devices);
  void free_slot(ResponseCache::Slot slot);
  void vacate(ResponseCache::Slot slot);
  void requeue(ResponseCache::Slot slot);
  bool never_again(const RequestId& id) const;
  Submitted* take_own(const Key& key);

  int rank_;
  Parameters parameters_;
  ResponseCache cache_;
  ProcessSetTable sets_;
  JoinState joined_;
  std::size_t submitted_ = 0;
  std::uint32_t flags_ = 0;
  std::uint32_t asked_ = 0;
  Answers answers_;
  bool news_ = false;
  std::optional<Parameters> proposal_;

  std::vector<Submitted*> fresh_;             ///< to be sent as requests
  std::vector<Offer> offered_;                ///< in the message of the running round
  std::map<Key, Offer> sent_;                 ///< sent, waiting for the other ranks
  std::vector<SharedRequest> owed_;           ///< texts that this rank is to tell
  Submitted* join_ = nullptr;                 ///< this rank's join
  BitVector bits_;                            ///< slots submitted here
  BitVector foreign_;                         ///< slots of process sets that this rank is not in
  BitVector joinable_;                        ///< slots that a joined rank answers with zeros
  std::vector<Submitted*> by_slot_;           ///< the submission behind each bit
  std::vector<ResponseCache::Slot> evicted_;  ///< scratch

  std::map<Key, Waiting> waiting_;            ///< replicated
  std::map<std::uint32_t, RankSet> leaving_;  ///< by process set, who has left it; replicated
  std::vector<Key> touched_;                  ///< names that came in the round being applied
  bool absence_came_ = false;                 ///< a join or a leave, in the round being applied
  SharedPlacement placement_;                 ///< of the last decision: most are equal
  RoundMessage message_;                      ///< scratch, kept for its memory
  RoundOutcome outcome_;                      ///< the same
};

}  // namespace aiacc
