#include "csrc/core/negotiation/request_codec.h"

#include <string>
#include <tuple>
#include <utility>

namespace aiacc {
namespace {

/// Encoded tensor of an empty shape.
constexpr std::size_t kMinTensor = 2;

/// All-gather and all-to-all: every rank has rows of its own.
bool has_own_rows(OpKind kind) { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }

bool has_own_numbers(OpKind kind) { return kind == OpKind::kAlltoall; }

void put_numbers(const std::vector<std::int64_t>& numbers, Writer& writer) {
  for (const std::int64_t number : numbers) {
    writer.put_number(static_cast<std::uint64_t>(number));
  }
}

std::int64_t get_extent(Reader& reader) {
  const auto extent = static_cast<std::int64_t>(reader.get_number());
  if (extent < 0) {
    Reader::malformed("a negative extent");
  }
  return extent;
}

void encode_tensor(const TensorSpec& tensor, bool own_rows, Writer& writer) {
  writer.put(tensor.dtype);
  writer.put_number(tensor.shape.size());
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const bool own = own_rows && i == 0;
    writer.put_number(own ? 0 : static_cast<std::uint64_t>(tensor.shape[i]));
  }
}

void decode_tensor(Reader& reader, OpKind kind, TensorSpec& tensor) {
  const auto dtype = reader.get<std::uint8_t>();
  if (dtype >= kDataTypes) {
    Reader::malformed("an unknown data type");
  }
  tensor.dtype = static_cast<DataType>(dtype);
  tensor.shape.resize(reader.count(kMaxDimensions, 1));
  for (std::int64_t& extent : tensor.shape) {
    extent = get_extent(reader);
  }
  if (has_rows(kind) && tensor.shape.empty()) {
    Reader::malformed("rows of a scalar");
  }
}

}  // namespace

bool operator==(const OwnPart& a, const OwnPart& b) {
  return a.device == b.device && a.numbers == b.numbers;
}

bool operator<(const OwnPart& a, const OwnPart& b) {
  return std::tie(a.device, a.numbers) < std::tie(b.device, b.numbers);
}

OwnPart own_part(const Request& request) {
  OwnPart part;
  part.device = request.device;
  if (has_own_rows(request.kind)) {
    for (const TensorSpec& tensor : request.tensors) {
      part.numbers.push_back(tensor.shape.front());
    }
  }
  if (has_own_numbers(request.kind)) {
    part.numbers.insert(part.numbers.end(), request.numbers.begin(), request.numbers.end());
  }
  return part;
}

std::string text_of(const Request& request) {
  const bool own_rows = has_own_rows(request.kind);
  Bytes bytes;
  Writer writer(bytes);
  writer.put_text(request.name);
  writer.put(request.kind);
  writer.put(request.op);
  writer.put(static_cast<std::uint8_t>(request.cacheable));
  writer.put(static_cast<std::uint8_t>(request.on_gpu()));
  writer.put(request.wire);
  writer.put(request.wire_detail);
  writer.put(request.root);
  writer.put(request.process_set);
  writer.put(request.prescale);
  writer.put(request.postscale);
  writer.put_number(request.tensors.size());
  for (const TensorSpec& tensor : request.tensors) {
    encode_tensor(tensor, own_rows, writer);
  }
  if (!has_own_numbers(request.kind)) {
    writer.put_number(request.numbers.size());
    put_numbers(request.numbers, writer);
  }
  return {bytes.begin(), bytes.end()};
}

Request request_of(std::string_view text) {
  Reader reader(text);
  Request request;
  request.name = reader.get_text(kMaxNameBytes);
  const auto kind = reader.get<std::uint8_t>();
  const auto op = reader.get<std::uint8_t>();
  if (kind >= kOpKinds || op > 5) {
    Reader::malformed("an unknown operation or reduction");
  }
  request.kind = static_cast<OpKind>(kind);
  request.op = static_cast<ReduceOp>(op);
  request.cacheable = reader.get<std::uint8_t>() != 0;
  request.device = reader.get<std::uint8_t>() != 0 ? 0 : -1;
  const auto wire = reader.get<std::uint8_t>();
  if (wire >= kWireFormats) {
    Reader::malformed("an unknown wire format");
  }
  request.wire = static_cast<WireFormat>(wire);
  request.wire_detail = reader.get<std::uint32_t>();
  request.root = reader.get<std::int32_t>();
  request.process_set = reader.get<std::uint32_t>();
  request.prescale = reader.get<double>();
  request.postscale = reader.get<double>();
  const std::size_t tensors = reader.count(kMaxGroupTensors, kMinTensor);
  if (tensors == 0) {
    Reader::malformed("a request without tensors");
  }
  request.tensors.resize(tensors);
  for (TensorSpec& tensor : request.tensors) {
    decode_tensor(reader, request.kind, tensor);
  }
  if (!has_own_numbers(request.kind)) {
    request.numbers.resize(reader.count(kMostNumbers, 1));
    for (std::int64_t& number : request.numbers) {
      number = get_extent(reader);
    }
  }
  reader.finish();
  return request;
}

bool fits(const Request& common, const OwnPart& part) {
  const std::size_t rows = has_own_rows(common.kind) ? common.tensors.size() : 0;
  return (has_own_numbers(common.kind) ? part.numbers.size() >= rows
                                       : part.numbers.size() == rows) &&
         (part.device >= 0) == common.on_gpu();
}

Request with_part(Request common, const OwnPart& part) {
  const std::size_t rows = has_own_rows(common.kind) ? common.tensors.size() : 0;
  common.device = part.device;
  for (std::size_t i = 0; i < rows; ++i) {
    common.tensors[i].shape.front() = part.numbers[i];
  }
  if (has_own_numbers(common.kind)) {
    common.numbers.assign(part.numbers.begin() + static_cast<std::ptrdiff_t>(rows),
                          part.numbers.end());
  }
  return common;
}

void encode_part(const OwnPart& part, Writer& writer) {
  writer.put_number(static_cast<std::uint32_t>(part.device + 1));
  put_numbers(part.numbers, writer);
}

OwnPart decode_part(std::string_view bytes) {
  Reader reader(bytes);
  OwnPart part;
  part.device = static_cast<std::int32_t>(reader.get_number(kMostDevices, "GPU")) - 1;
  while (reader.left() > 0) {
    part.numbers.push_back(get_extent(reader));
  }
  return part;
}

std::size_t part_bytes(const OwnPart& part) {
  std::size_t bytes = number_bytes(static_cast<std::uint32_t>(part.device + 1));
  for (const std::int64_t number : part.numbers) {
    bytes += number_bytes(static_cast<std::uint64_t>(number));
  }
  return bytes;
}

RequestId::RequestId(const Request& request, std::string_view text)
    : process_set(request.process_set),
      name(digest_of(request.name)),
      signature(digest_of(text)),
      joinable(aiacc::joinable(request)),
      cacheable(request.cacheable && request.kind != OpKind::kAlltoall) {}

bool operator==(const RequestId& a, const RequestId& b) {
  return a.process_set == b.process_set && a.name == b.name && a.signature == b.signature &&
         a.joinable == b.joinable && a.cacheable == b.cacheable;
}

void encode_id(const RequestId& id, Writer& writer) {
  writer.put(id.process_set);
  writer.put(id.name);
  writer.put(id.signature);
  writer.put(static_cast<std::uint8_t>((id.joinable ? 1 : 0) | (id.cacheable ? 2 : 0)));
}

RequestId decode_id(Reader& reader) {
  RequestId id;
  id.process_set = reader.get<std::uint32_t>();
  id.name = reader.get<Digest>();
  id.signature = reader.get<Digest>();
  const auto flags = reader.get<std::uint8_t>();
  id.joinable = (flags & 1) != 0;
  id.cacheable = (flags & 2) != 0;
  if (flags > 3 || (id.joinable && id.process_set != 0)) {
    Reader::malformed("a request of an unknown kind");
  }
  return id;
}

}  // namespace aiacc
