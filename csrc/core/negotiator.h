#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/core/message.h"
#include "csrc/core/response_cache.h"

namespace aiacc {

/// A tensor on which all ranks have agreed, or agreed to disagree.
struct Agreement {
  std::uint64_t ticket = 0;                 ///< what this rank gave to `submit`
  std::vector<std::int64_t> first_extents;  ///< all-gather: dimension 0 of every rank
  Status status;                            ///< not ok: fails on every rank with this
};

struct RoundOutcome {
  std::vector<Agreement> ready;  ///< in an order that is the same on every rank
  std::uint32_t flags = 0;
  std::vector<Report> answers;  ///< every rank's pending names, after a stall query
  bool parameters_changed = false;
};

/// Readiness agreement without a master: AIACC-Training's bit vector (ICDCS 2022, decentralised
/// synchronisation) generalised to tensors that were never registered.
///
/// A replicated state machine. The first submission of a name travels as a request; once every
/// rank has sent one, all ranks take the same decision: fail it, or make it ready and give the
/// name a slot. Later submissions with the same signature are one bit in that slot; a different
/// signature frees the slot everywhere and starts over.
/// Pure: no threads, no clock, no I/O. Requests passed to `submit` must stay alive until their
/// ticket comes back.
class Negotiator {
 public:
  Negotiator(int rank, int size, std::size_t cache_capacity, const Parameters& parameters);

  void submit(const Request& request, std::uint64_t ticket);

  /// Something that must travel now, whoever waits: an answer, a proposal, a freed slot's owner.
  bool urgent() const { return answer_due_ || proposal_.has_value() || requeued_; }

  /// Submissions of this rank that are not ready yet.
  std::size_t waiting() const { return submitted_; }

  void ask_for_stalls() { flags_ |= kFlagStallQuery; }
  /// For the next epoch; the epoch number in `parameters` is ignored.
  void propose(const Parameters& parameters);
  const Parameters& parameters() const { return parameters_; }

  /// This rank's share of the next round.
  void contribute(Bytes& out);

  /// Takes the combined message of a round that `contribute` was made for.
  RoundOutcome apply(const Bytes& combined);

 private:
  /// A submission of this rank that is not ready yet.
  struct Local {
    const Request* request = nullptr;
    std::uint64_t ticket = 0;
  };
  /// Requests that have arrived for one name.
  struct Waiting {
    std::vector<std::optional<Request>> by_rank;
    int count = 0;
  };

  void apply_bits(const BitVector& ready, RoundOutcome& outcome);
  void apply_request(int rank, Request&& request, RoundOutcome& outcome);
  void conclude(const std::string& name, Waiting&& waiting, RoundOutcome& outcome);
  void free_slot(ResponseCache::Slot slot);
  void requeue(ResponseCache::Slot slot);
  std::vector<std::string> pending_names() const;

  int rank_;
  int size_;
  Parameters parameters_;
  ResponseCache cache_;
  std::size_t submitted_ = 0;
  std::uint32_t flags_ = 0;
  bool answer_due_ = false;
  bool requeued_ = false;
  std::optional<Parameters> proposal_;

  std::vector<Local> fresh_;                     ///< to be sent as requests
  std::unordered_map<std::string, Local> sent_;  ///< sent, waiting for the other ranks
  BitVector bits_;                               ///< slots submitted here
  std::vector<Local> by_slot_;                   ///< the submission behind each bit
  std::map<std::string, Waiting> waiting_;       ///< replicated
  RoundMessage message_;                         ///< scratch, kept for its memory
};

}  // namespace aiacc
