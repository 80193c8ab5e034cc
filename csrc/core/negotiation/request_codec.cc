#include "csrc/core/negotiation/request_codec.h"

#include <tuple>
#include <utility>

namespace aiacc {
namespace {

/// Kind, reduction, wire format with its numbers, two flags, root, process set, two scales.
constexpr std::size_t kFixedBytes = 33;
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

std::size_t bytes_of(const std::vector<std::int64_t>& numbers) {
  std::size_t bytes = 0;
  for (const std::int64_t number : numbers) {
    bytes += number_bytes(static_cast<std::uint64_t>(number));
  }
  return bytes;
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
  for (std::size_t i = 0; has_own_rows(request.kind) && i < request.tensors(); ++i) {
    part.numbers.push_back(request.tensor(i).shape.front());
  }
  if (has_own_numbers(request.kind)) {
    part.numbers.insert(part.numbers.end(), request.numbers.begin(), request.numbers.end());
  }
  return part;
}

void encode_common(const Request& request, Writer& writer) {
  const bool own_rows = has_own_rows(request.kind);
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
  encode_tensor(request, own_rows, writer);
  writer.put_number(request.more.size());
  for (const TensorSpec& tensor : request.more) {
    encode_tensor(tensor, own_rows, writer);
  }
  if (!has_own_numbers(request.kind)) {
    writer.put_number(request.numbers.size());
    put_numbers(request.numbers, writer);
  }
}

Request decode_common(std::string_view bytes) {
  Reader reader(bytes);
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
  decode_tensor(reader, request.kind, request);
  request.more.resize(reader.count(kMaxGroupTensors, kMinTensor));
  for (TensorSpec& tensor : request.more) {
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

void check_part(const Request& common, const OwnPart& part) {
  const std::size_t rows = has_own_rows(common.kind) ? common.tensors() : 0;
  const bool fits =
      has_own_numbers(common.kind) ? part.numbers.size() >= rows : part.numbers.size() == rows;
  if (!fits || (part.device >= 0) != common.on_gpu()) {
    Reader::malformed("a rank's part of another operation");
  }
}

Request with_part(Request common, const OwnPart& part) {
  const std::size_t rows = has_own_rows(common.kind) ? common.tensors() : 0;
  common.device = part.device;
  for (std::size_t i = 0; i < rows; ++i) {
    TensorSpec& tensor = i == 0 ? common : common.more[i - 1];
    tensor.shape.front() = part.numbers[i];
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
  return number_bytes(static_cast<std::uint32_t>(part.device + 1)) + bytes_of(part.numbers);
}

std::size_t common_bytes(const Request& request) {
  const bool own_rows = has_own_rows(request.kind);
  std::size_t bytes = kFixedBytes + number_bytes(request.name.size()) + request.name.size() +
                      number_bytes(request.more.size());
  for (std::size_t i = 0; i < request.tensors(); ++i) {
    const std::vector<std::int64_t>& shape = request.tensor(i).shape;
    bytes += 1 + number_bytes(shape.size()) + bytes_of(shape);
    if (own_rows && !shape.empty()) {
      bytes -= number_bytes(static_cast<std::uint64_t>(shape.front())) - 1;
    }
  }
  return bytes + (has_own_numbers(request.kind)
                      ? 0
                      : number_bytes(request.numbers.size()) + bytes_of(request.numbers));
}

std::size_t own_part_bytes(const Request& request) {
  std::size_t bytes = number_bytes(static_cast<std::uint32_t>(request.device + 1));
  for (std::size_t i = 0; has_own_rows(request.kind) && i < request.tensors(); ++i) {
    bytes += number_bytes(static_cast<std::uint64_t>(request.tensor(i).shape.front()));
  }
  return bytes + (has_own_numbers(request.kind) ? bytes_of(request.numbers) : 0);
}

}  // namespace aiacc
