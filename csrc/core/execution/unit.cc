#include "csrc/core/execution/unit.h"

#include <algorithm>
#include <cmath>

#include "csrc/base/text.h"
#include "csrc/kernels/divisor.h"

namespace aiacc {
namespace {

PerRank bytes_of(const std::vector<std::int64_t>& rows, std::uint64_t row_bytes) {
  PerRank bytes;
  bytes.reserve(rows.size());
  for (const std::int64_t count : rows) {
    bytes.push_back(row_bytes * static_cast<std::uint64_t>(count));
  }
  return bytes;
}

}  // namespace

void find_memory(const Unit& unit, std::vector<SliceMemory>& memory) {
  const bool coded = is_coded(unit.request().wire);
  memory.clear();
  std::size_t offset = 0;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    const TensorBuffers& buffers = unit.pieces[i].buffers();
    const auto at = [&](void* tensor) {
      return tensor == nullptr ? nullptr : static_cast<std::byte*>(tensor) + slice.offset;
    };
    memory.push_back({at(const_cast<void*>(buffers.input)),
                      at(buffers.output),
                      coded ? at(buffers.residual) : nullptr,
                      offset,
                      slice.bytes});
    offset += slice.bytes;
  }
}

bool feeds_back(const std::vector<SliceMemory>& memory) {
  return std::any_of(memory.begin(), memory.end(), [](const SliceMemory& slice) {
    return slice.residual != nullptr;
  });
}

double average_factor(DataType dtype, int size, double postscale) {
  const double factor = postscale / size;
  return is_floating(dtype) || size == 1 || reciprocal_of(factor) != 0
             ? factor
             : std::nextafter(factor, std::copysign(HUGE_VAL, factor));
}

Reduction reduction_of(const Unit& unit) {
  const Request& request = unit.request();
  if (request.op != ReduceOp::kAverage) {
    return {unit.dtype(), request.op, request.postscale};
  }
  return {unit.dtype(),
          ReduceOp::kSum,
          average_factor(unit.dtype(), unit.communicator->size(), request.postscale)};
}

PerRank scattered_elements(const Unit& unit) {
  const TensorSpec& spec = unit.pieces.front().spec();
  const int size = unit.communicator->size();
  PerRank counts;
  counts.reserve(static_cast<std::size_t>(size));
  for (int member = 0; member < size; ++member) {
    const std::int64_t rows = scattered_rows(spec.shape.front(), size, member);
    counts.push_back(spec.row_elements() * static_cast<std::uint64_t>(rows));
  }
  return counts;
}

PerRank received_bytes(const Unit& unit) {
  const Piece& piece = unit.pieces.front();
  return bytes_of(piece.buffers().first_extents, piece.spec().row_bytes());
}

PerRank sent_bytes(const Unit& unit) {
  return bytes_of(unit.request().numbers, unit.pieces.front().spec().row_bytes());
}

/// Waits for the last mark of every stream only.
void wait_for_inputs(const Unit& unit, CudaStream stream, const Device& device) {
  std::vector<const Mark*> last;
  for (const Piece& piece : unit.pieces) {
    const Mark& written = piece.operation->written;
    if (written == nullptr) {
      continue;  // zeros of a rank that has joined
    }
    const auto known = std::find_if(last.begin(), last.end(), [&](const Mark* mark) {
      return (*mark)->stream == written->stream;
    });
    if (known == last.end()) {
      last.push_back(&written);
    } else if ((**known)->number < written->number) {
      *known = &written;
    }
  }
  for (const Mark* mark : last) {
    device.wait(stream, *mark);
  }
}

UnitId id_of(const Unit& unit) {
  // One that changes process sets may have no communicator.
  return {unit.order, unit.communicator ? unit.communicator->id : 0, unit.plan.seq};
}

std::string name_of(const Unit& unit) {
  constexpr std::size_t kMostBytes = 100;
  const Request& request = unit.request();
  std::string name = "'" + cut_text(label_of(request.process_set, request.name), kMostBytes) + "'";
  if (unit.pieces.size() > 1) {
    name += " and " + std::to_string(unit.pieces.size() - 1) + " more";
  }
  return name;
}

}  // namespace aiacc
