#include "csrc/core/negotiation/message.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/core/negotiation/byte_io.h"

namespace aiacc {
namespace {

constexpr std::size_t kMaxSlots = std::size_t{1} << 24;

/// Fixed part of an encoded round; `words` 64-bit words follow, then `rest` bytes for everything
/// else. A round of a running job has none.
struct RoundHeader {
  std::uint32_t flags;
  std::uint32_t epoch;
  std::uint32_t words;
  std::uint32_t rest;

  std::size_t bits_end() const { return sizeof *this + std::size_t{words} * sizeof(std::uint64_t); }
};

/// What the rest of a message says.
struct Rest {
  RoundEntries entries;
  std::optional<Proposal> proposal;
};

RoundHeader header_of(const Bytes& bytes) {
  RoundHeader header{};
  if (bytes.size() < sizeof header) {
    Reader::malformed("truncated");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.words > kMaxSlots / 64 || bytes.size() < header.bits_end() ||
      bytes.size() - header.bits_end() != header.rest) {
    Reader::malformed(std::to_string(header.words) + " words of slots");
  }
  return header;
}

std::string_view rest_of(const Bytes& bytes, const RoundHeader& header) {
  return {reinterpret_cast<const char*>(bytes.data()) + header.bits_end(), header.rest};
}

void encode_proposal(const Proposal& proposal, Writer& writer) {
  const Parameters& parameters = proposal.parameters;
  writer.put_number(static_cast<std::uint32_t>(proposal.rank));
  writer.put(parameters.epoch);
  writer.put(parameters.unit_bytes);
  writer.put(parameters.lanes);
  writer.put(parameters.weights);
  writer.put(parameters.algorithm);
  writer.put(parameters.gpu_unit_bytes);
}

Proposal decode_proposal(Reader& reader) {
  Proposal proposal;
  Parameters& parameters = proposal.parameters;
  proposal.rank = static_cast<int>(reader.get_number(kMostRanks, "rank"));
  parameters.epoch = reader.get<std::uint32_t>();
  parameters.unit_bytes = reader.get<std::uint64_t>();
  parameters.lanes = reader.get<std::uint32_t>();
  parameters.weights = reader.get<LaneWeights>();
  const auto algorithm = reader.get<std::uint8_t>();
  if (algorithm >= kAlgorithms) {
    Reader::malformed("an unknown algorithm");
  }
  parameters.algorithm = static_cast<Algorithm>(algorithm);
  parameters.gpu_unit_bytes = reader.get<std::uint64_t>();
  try {
    check_parameters(parameters);
  } catch (const Error& error) {
    Reader::malformed(error.what());
  }
  return proposal;
}

void encode_rest(const Rest& rest, Writer& writer) {
  writer.put(static_cast<std::uint8_t>(rest.proposal.has_value()));
  if (rest.proposal) {
    encode_proposal(*rest.proposal, writer);
  }
  rest.entries.encode(writer);
}

Rest decode_rest(std::string_view bytes, int size) {
  Reader reader(bytes);
  Rest rest;
  if (reader.get<std::uint8_t>() != 0) {
    rest.proposal = decode_proposal(reader);
  }
  rest.entries = RoundEntries::decode(reader, size);
  reader.finish();
  return rest;
}

void check_senders(const Rest& rest, const RankBlock& from) {
  const auto check = [&](const RankSet& ranks) {
    if (!ranks.within(from)) {
      Reader::malformed("ranks " + std::to_string(ranks.first()) + ".." +
                        std::to_string(ranks.last()) + ", for some of which it cannot speak");
    }
  };
  for (const Senders& senders : rest.entries.senders) {
    for (const Senders::Share& share : senders.shares) {
      check(share.ranks);
    }
  }
  if (rest.proposal) {
    check(RankSet(rest.proposal->rank));
  }
}

EntryKind kind_of(const Entry& entry) { return static_cast<EntryKind>(entry.key.front()); }

EntryKind kind_of(const Request& request) {
  return request.kind == OpKind::kJoin || request.kind == OpKind::kRemoveProcessSet ||
                 request.kind == OpKind::kLeaveProcessSet
             ? EntryKind::kLast
             : EntryKind::kRequest;
}

std::string lane_key(const LaneReport& lane) {
  Bytes bytes;
  Writer writer(bytes);
  writer.put(EntryKind::kLane);
  writer.put(lane.lane);
  writer.put(lane.process_set);
  writer.put(lane.order);
  writer.put(lane.unit);
  writer.put(static_cast<std::uint8_t>(lane.stuck));
  writer.put_number(lane.ahead);
  writer.put_text(lane.tensors);
  return {bytes.begin(), bytes.end()};
}

LaneReport decode_lane(std::string_view key) {
  Reader reader(key.substr(1));
  LaneReport lane;
  lane.lane = reader.get<std::uint32_t>();
  lane.process_set = reader.get<std::uint32_t>();
  lane.order = reader.get<std::uint64_t>();
  lane.unit = reader.get<std::uint64_t>();
  lane.stuck = reader.get<std::uint8_t>() != 0;
  lane.ahead = static_cast<std::uint32_t>(reader.get_number(kMostRanks, "rank"));
  lane.tensors = reader.get_text(kMaxNameBytes);
  reader.finish();
  return lane;
}

/// Whether the text goes with the request, since all ranks need it.
bool comes_whole(OpKind kind) { return kind == OpKind::kJoin || changes_sets(kind); }

std::string request_key(EntryKind kind, const RequestId& id, std::string_view text) {
  Bytes bytes;
  Writer writer(bytes);
  encode_id(id, writer);
  std::string key(1, static_cast<char>(kind));
  return key.append(bytes.begin(), bytes.end()).append(text);
}

void decode_request(const Entry& entry, SharedRequest& shared) {
  Reader reader(entry.key.substr(1));
  shared.id = decode_id(reader);
  const std::string_view text = reader.get_view(reader.left());
  const EntryKind kind = kind_of(entry);
  if (text.empty()) {
    if (kind != EntryKind::kRequest) {
      Reader::malformed("a request without its text");
    }
    return;
  }
  const Request request = request_of(text);
  if (request_key(kind, RequestId(request, text), text) != entry.key ||
      comes_whole(request.kind) == (kind == EntryKind::kText) ||
      (kind != EntryKind::kText && kind != kind_of(request))) {
    Reader::malformed("a request out of place");
  }
  shared.request = std::make_shared<Request>(request);
  shared.told = true;
}

/// What `read` makes of bytes of this rank; if it cannot, that is said with the rank.
template <class Read>
void sent_by(int rank, Read read) {
  try {
    read();
  } catch (const Error& error) {
    throw Error(
        error.code(),
        "[negotiation] rank " + std::to_string(rank) + " cannot be trusted: " + error.what());
  }
}

std::string pending_key(const PendingName& name) {
  Bytes bytes;
  Writer writer(bytes);
  writer.put(EntryKind::kPending);
  writer.put(static_cast<std::uint8_t>(name.is_message));
  name.awaited.encode(writer);
  return std::string(bytes.begin(), bytes.end()).append(name.label);
}

PendingName decode_pending(const Entry& entry, const Senders& senders, int size) {
  Reader reader(entry.key.substr(1));
  PendingName name;
  name.ranks = senders.ranks();
  name.is_message = reader.get<std::uint8_t>() != 0;
  name.awaited = RankSet::decode(reader, size);
  name.label = reader.get_view(reader.left());
  name.waited_ms = entry.position;
  return name;
}

/// Replaces what follows the bits of an encoded message, and its header.
void replace_rest(Bytes& message, RoundHeader header, const Rest& rest) {
  Bytes bytes;
  Writer writer(bytes);
  encode_rest(rest, writer);
  header.rest = static_cast<std::uint32_t>(bytes.size());
  message.resize(header.bits_end());
  message.insert(message.end(), bytes.begin(), bytes.end());
  std::memcpy(message.data(), &header, sizeof header);
}

}  // namespace

SharedRequest::SharedRequest(const Request& whole, int rank, std::uint32_t at)
    : position(at), senders(std::make_shared<Senders>(rank, own_part(whole))) {
  const std::string text = text_of(whole);
  id = RequestId(whole, text);
  key = request_key(kind_of(whole), id, comes_whole(whole.kind) ? text : std::string_view());
}

SharedRequest SharedRequest::spelled_out(int rank) const {
  SharedRequest entry;
  entry.key = request_key(EntryKind::kText, id, text_of(*request));
  entry.senders = std::make_shared<Senders>(rank, OwnPart());
  return entry;
}

void RoundMessage::clear_entries() {
  std::vector<SharedRequest>().swap(requests);  // those of a first step are large
  texts.clear();
  answers = {};
  proposal.reset();
  cut.reset();
}

void RoundMessage::encode(Bytes& out) const {
  out.clear();
  Writer writer(out);
  const RoundHeader header{flags, epoch, static_cast<std::uint32_t>(ready.words()), 0};
  writer.put(header);
  for (std::size_t index = 0; index < ready.words(); ++index) {
    writer.put(ready.word(index));
  }
  if (requests.empty() && texts.empty() && answers.ranks.empty() && !proposal && !cut) {
    return;
  }
  Rest rest;
  rest.proposal = proposal;
  RoundEntries& round = rest.entries;
  if (cut) {
    round.cut = *cut;
  }
  const auto add = [&](std::string_view key, const Senders& senders, std::uint32_t position) {
    round.entries.push_back({key, static_cast<std::uint32_t>(round.senders.size()), position});
    round.senders.push_back(senders);
  };
  for (const std::vector<SharedRequest>* list : {&requests, &texts}) {
    for (const SharedRequest& shared : *list) {
      add(shared.key, *shared.senders, shared.position);
    }
  }
  std::vector<std::string> keys;
  keys.reserve(answers.lanes.size() + answers.names.size() + 1);
  const auto add_answer = [&](std::string key, const RankSet& ranks, std::uint32_t waited_ms = 0) {
    Senders senders;
    senders.shares.push_back({ranks, {}});
    add(keys.emplace_back(std::move(key)), senders, waited_ms);
  };
  if (!answers.ranks.empty()) {
    add_answer(std::string(1, static_cast<char>(EntryKind::kPending)), answers.ranks);
  }
  for (const LaneAnswer& lane : answers.lanes) {
    add_answer(lane_key(lane.report), lane.ranks);
  }
  for (const PendingName& name : answers.names) {
    add_answer(pending_key(name), name.ranks, name.waited_ms);
  }
  round.settle();
  replace_rest(out, header, rest);
}

void RoundMessage::decode(const Bytes& in, int size) {
  const RoundHeader header = header_of(in);
  flags = header.flags;
  epoch = header.epoch;
  ready.assign(header.words, 0);
  for (std::size_t index = 0; index < header.words; ++index) {
    std::memcpy(&ready.word(index),
                in.data() + sizeof header + index * sizeof(std::uint64_t),
                sizeof(std::uint64_t));
  }
  clear_entries();
  if (header.rest == 0) {
    return;
  }
  const Rest rest = decode_rest(rest_of(in, header), size);
  proposal = rest.proposal;
  std::vector<std::shared_ptr<const Senders>> senders;
  senders.reserve(rest.entries.senders.size());
  for (const Senders& one : rest.entries.senders) {
    senders.push_back(std::make_shared<Senders>(one));
  }
  for (const Entry& entry : rest.entries.entries) {
    const std::shared_ptr<const Senders>& from = senders[entry.senders];
    if (kind_of(entry) == EntryKind::kLane) {
      sent_by(from->first(),
              [&] { answers.lanes.push_back({decode_lane(entry.key), from->ranks()}); });
    } else if (kind_of(entry) != EntryKind::kPending) {
      SharedRequest shared;
      sent_by(from->first(), [&] { decode_request(entry, shared); });
      shared.key = entry.key;
      shared.position = entry.position;
      shared.senders = from;
      (kind_of(entry) == EntryKind::kText ? texts : requests).push_back(std::move(shared));
    } else if (entry.key.size() == 1) {
      answers.ranks = from->ranks();
    } else {
      sent_by(from->first(), [&] { answers.names.push_back(decode_pending(entry, *from, size)); });
    }
  }
  if (rest.entries.cut) {
    cut = *rest.entries.cut;
    answers.lanes_complete = cut->front() == static_cast<char>(EntryKind::kPending);
  }
}

void combine_rounds(Bytes& mine, const Bytes& theirs, const RankBlock& from) {
  // Bits in the encoded form: a round of a running job is bits only and costs no allocation.
  RoundHeader a = header_of(mine);
  const RoundHeader b = header_of(theirs);
  if (a.words != b.words || a.epoch != b.epoch) {
    throw Error(Code::kInternal,
                "[negotiation] ranks disagree on their slot tables: " + std::to_string(a.words) +
                    " against " + std::to_string(b.words) + " words, parameter epoch " +
                    std::to_string(a.epoch) + " against " + std::to_string(b.epoch));
  }
  a.flags |= b.flags;
  std::memcpy(mine.data(), &a, sizeof a);
  for (std::size_t at = sizeof a; at < a.bits_end(); at += sizeof(std::uint64_t)) {
    std::uint64_t left = 0;
    std::uint64_t right = 0;
    std::memcpy(&left, mine.data() + at, sizeof left);
    std::memcpy(&right, theirs.data() + at, sizeof right);
    left &= right;
    std::memcpy(mine.data() + at, &left, sizeof left);
  }
  if (b.rest == 0) {
    return;
  }
  const Rest other = decode_rest(rest_of(theirs, b), std::min(from.end(), kMostRanks));
  check_senders(other, from);
  if (a.rest == 0) {
    replace_rest(mine, a, other);
    return;
  }
  const Rest own = decode_rest(rest_of(mine, a), kMostRanks);
  Rest both;
  both.entries = merge(own.entries, other.entries);
  both.proposal = own.proposal && (!other.proposal || own.proposal->rank < other.proposal->rank)
                      ? own.proposal
                      : other.proposal;
  // The views of `both` are into `mine`: into other memory first.
  Bytes out(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(a.bits_end()));
  replace_rest(out, a, both);
  mine.swap(out);
}

}  // namespace aiacc
