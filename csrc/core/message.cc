#include "csrc/core/message.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr std::size_t kMaxSlots = std::size_t{1} << 24;
/// Encoded request of an empty name and shape.
constexpr std::size_t kMinRequest = 49;
/// Encoded tensor of an empty shape.
constexpr std::size_t kMinTensor = 5;

/// Fixed part of an encoded round; `words` 64-bit words follow, then `reports` reports.
struct RoundHeader {
  std::uint32_t flags;
  std::uint32_t epoch;
  std::uint32_t words;
  std::uint32_t reports;
};

class Writer {
 public:
  explicit Writer(Bytes& out) : out_(out) {}

  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof value);
  }
  void put_text(const std::string& text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_bytes(text.data(), text.size());
  }
  void put_bytes(const void* data, std::size_t bytes) {
    const auto* first = static_cast<const std::uint8_t*>(data);
    out_.insert(out_.end(), first, first + bytes);
  }

 private:
  Bytes& out_;
};

class Reader {
 public:
  explicit Reader(const Bytes& in) : in_(in) {}

  template <typename T>
  T get() {
    T value{};
    get_bytes(&value, sizeof value);
    return value;
  }
  std::string get_text() {
    const auto bytes = count(kMaxNameBytes, 1);
    std::string text(bytes, '\0');
    get_bytes(text.data(), bytes);
    return text;
  }
  void get_bytes(void* data, std::size_t bytes) {
    if (bytes > in_.size() - at_) {
      malformed("truncated");
    }
    if (bytes > 0) {
      std::memcpy(data, in_.data() + at_, bytes);
    }
    at_ += bytes;
  }
  /// A count of things of at least `each` bytes: bounded by what is left, so it can be trusted.
  std::size_t count(std::size_t limit, std::size_t each) {
    const auto value = get<std::uint32_t>();
    if (value > limit || value > (in_.size() - at_) / each) {
      malformed("a count of " + std::to_string(value));
    }
    return value;
  }
  bool done() const { return at_ == in_.size(); }

  [[noreturn]] static void malformed(const std::string& what) {
    throw Error(Code::kPeerLost,
                "[negotiation] malformed round message (" + what +
                    "); do all ranks run the same aiacc version?");
  }

 private:
  const Bytes& in_;
  std::size_t at_ = 0;
};

void encode_shape(const std::vector<std::int64_t>& shape, Writer& writer) {
  writer.put(static_cast<std::uint32_t>(shape.size()));
  writer.put_bytes(shape.data(), shape.size() * sizeof(std::int64_t));
}

std::vector<std::int64_t> decode_shape(Reader& reader, std::size_t limit) {
  std::vector<std::int64_t> shape(reader.count(limit, sizeof(std::int64_t)));
  reader.get_bytes(shape.data(), shape.size() * sizeof(std::int64_t));
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      Reader::malformed("a negative extent");
    }
  }
  return shape;
}

DataType decode_dtype(Reader& reader) {
  const auto dtype = reader.get<std::uint8_t>();
  if (dtype >= kDataTypes) {
    Reader::malformed("an unknown data type");
  }
  return static_cast<DataType>(dtype);
}

void encode_request(const Request& request, Writer& writer) {
  writer.put_text(request.name);
  writer.put(request.kind);
  writer.put(request.dtype);
  writer.put(request.op);
  writer.put(static_cast<std::uint8_t>(request.cacheable));
  writer.put(request.root);
  writer.put(request.device);
  writer.put(request.process_set);
  writer.put(request.prescale);
  writer.put(request.postscale);
  writer.put(request.wire);
  encode_shape(request.shape, writer);
  writer.put(static_cast<std::uint32_t>(request.more.size()));
  for (const TensorSpec& tensor : request.more) {
    writer.put(tensor.dtype);
    encode_shape(tensor.shape, writer);
  }
  encode_shape(request.numbers, writer);
}

Request decode_request(Reader& reader) {
  Request request;
  request.name = reader.get_text();
  const auto kind = reader.get<std::uint8_t>();
  request.dtype = decode_dtype(reader);
  const auto op = reader.get<std::uint8_t>();
  if (kind >= kOpKinds || op > 5) {
    Reader::malformed("an unknown operation or reduction");
  }
  request.kind = static_cast<OpKind>(kind);
  request.op = static_cast<ReduceOp>(op);
  request.cacheable = reader.get<std::uint8_t>() != 0;
  request.root = reader.get<std::int32_t>();
  request.device = reader.get<std::int32_t>();
  request.process_set = reader.get<std::uint32_t>();
  request.prescale = reader.get<double>();
  request.postscale = reader.get<double>();
  const auto wire = reader.get<std::uint8_t>();
  if (wire >= kWireFormats) {
    Reader::malformed("an unknown wire format");
  }
  request.wire = static_cast<WireFormat>(wire);
  request.shape = decode_shape(reader, kMaxDimensions);
  for (auto left = reader.count(kMaxGroup, kMinTensor); left > 0; --left) {
    TensorSpec tensor;
    tensor.dtype = decode_dtype(reader);
    tensor.shape = decode_shape(reader, kMaxDimensions);
    request.more.push_back(std::move(tensor));
  }
  request.numbers = decode_shape(reader, kMaxSlots);
  for (std::size_t i = 0; has_rows(request.kind) && i < request.tensors(); ++i) {
    if (request.tensor(i).shape.empty()) {
      Reader::malformed("rows of a scalar");
    }
  }
  return request;
}

void encode_report(const Report& report, Writer& writer) {
  writer.put(report.rank);
  writer.put(static_cast<std::uint8_t>(report.has_pending));
  writer.put(static_cast<std::uint32_t>(report.requests.size()));
  for (const Request& request : report.requests) {
    encode_request(request, writer);
  }
  writer.put(static_cast<std::uint32_t>(report.pending.size()));
  for (const std::string& name : report.pending) {
    writer.put_text(name);
  }
  writer.put(static_cast<std::uint32_t>(report.proposals.size()));
  for (const Parameters& proposal : report.proposals) {
    writer.put(proposal.epoch);
    writer.put(proposal.unit_bytes);
    writer.put(proposal.lanes);
    writer.put(proposal.weights);
    writer.put(proposal.algorithm);
  }
}

Report decode_report(Reader& reader) {
  Report report;
  report.rank = reader.get<std::int32_t>();
  report.has_pending = reader.get<std::uint8_t>() != 0;
  for (auto left = reader.count(kMaxSlots, kMinRequest); left > 0; --left) {
    report.requests.push_back(decode_request(reader));
  }
  for (auto left = reader.count(kMaxSlots, 4); left > 0; --left) {
    report.pending.push_back(reader.get_text());
  }
  for (auto left = reader.count(1, 17 + sizeof(LaneWeights)); left > 0; --left) {
    Parameters proposal;
    proposal.epoch = reader.get<std::uint32_t>();
    proposal.unit_bytes = reader.get<std::uint64_t>();
    proposal.lanes = reader.get<std::uint32_t>();
    proposal.weights = reader.get<LaneWeights>();
    const auto algorithm = reader.get<std::uint8_t>();
    if (algorithm >= kAlgorithms) {
      Reader::malformed("an unknown algorithm");
    }
    proposal.algorithm = static_cast<Algorithm>(algorithm);
    try {
      check_parameters(proposal);
    } catch (const Error& error) {
      Reader::malformed(error.what());
    }
    report.proposals.push_back(proposal);
  }
  return report;
}

}  // namespace

void RoundMessage::encode(Bytes& out) const {
  out.clear();
  Writer writer(out);
  writer.put(RoundHeader{flags,
                         epoch,
                         static_cast<std::uint32_t>(ready.words()),
                         static_cast<std::uint32_t>(reports.size())});
  for (std::size_t index = 0; index < ready.words(); ++index) {
    writer.put(ready.word(index));
  }
  for (const Report& report : reports) {
    encode_report(report, writer);
  }
}

void RoundMessage::decode(const Bytes& in) {
  Reader reader(in);
  const auto header = reader.get<RoundHeader>();
  if (header.words > kMaxSlots / 64 || header.words * sizeof(std::uint64_t) > in.size()) {
    Reader::malformed(std::to_string(header.words) + " words of slots");
  }
  flags = header.flags;
  epoch = header.epoch;
  ready.assign(header.words, 0);
  for (std::size_t index = 0; index < header.words; ++index) {
    ready.word(index) = reader.get<std::uint64_t>();
  }
  reports.clear();
  for (std::uint32_t left = header.reports; left > 0; --left) {
    reports.push_back(decode_report(reader));
  }
  if (!reader.done()) {
    Reader::malformed("trailing bytes");
  }
}

void combine_rounds(Bytes& mine, const Bytes& theirs) {
  // Works on the encoded form: a round of a running job is bits only and costs no allocation.
  RoundHeader a{};
  RoundHeader b{};
  if (mine.size() < sizeof a || theirs.size() < sizeof b) {
    Reader::malformed("truncated");
  }
  std::memcpy(&a, mine.data(), sizeof a);
  std::memcpy(&b, theirs.data(), sizeof b);
  const std::size_t bits = std::size_t{a.words} * sizeof(std::uint64_t);
  if (a.words != b.words || a.epoch != b.epoch || theirs.size() < sizeof b + bits ||
      mine.size() < sizeof a + bits) {
    throw Error(Code::kInternal,
                "[negotiation] ranks disagree on their slot tables: " + std::to_string(a.words) +
                    " against " + std::to_string(b.words) + " words, parameter epoch " +
                    std::to_string(a.epoch) + " against " + std::to_string(b.epoch));
  }
  a.flags |= b.flags;
  a.reports += b.reports;
  std::memcpy(mine.data(), &a, sizeof a);
  for (std::size_t at = sizeof a; at < sizeof a + bits; at += sizeof(std::uint64_t)) {
    std::uint64_t left = 0;
    std::uint64_t right = 0;
    std::memcpy(&left, mine.data() + at, sizeof left);
    std::memcpy(&right, theirs.data() + at, sizeof right);
    left &= right;
    std::memcpy(mine.data() + at, &left, sizeof left);
  }
  mine.insert(
      mine.end(), theirs.begin() + static_cast<std::ptrdiff_t>(sizeof b + bits), theirs.end());
}

}  // namespace aiacc
