#include "csrc/bindings/host_tensor.h"

#include <utility>
#include <vector>

namespace py = pybind11;

namespace aiacc {
namespace {

// What DLPack 1.3 lays down of its structures; see https://dmlc.github.io/dlpack/latest/c_api.html.

struct DlDevice {
  std::int32_t kind;
  std::int32_t number;
};
constexpr std::int32_t kDlHost = 1;

struct DlType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
enum DlCode : std::uint8_t { kDlInt = 0, kDlUInt = 1, kDlFloat = 2, kDlBfloat = 4, kDlBool = 6 };

struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t dimensions;
  DlType type;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DlExchange {
  std::uint32_t major;
  std::uint32_t minor;
  DlExchange* older;
  void* owning[3];
  /// Fills in a description that is valid as long as the object is. Not 0: failed, with an error.
  int (*describe)(void* object, DlTensor* tensor);
  void* current_stream;
};
constexpr std::uint32_t kMajor = 1;

/// Whose tensors are read, and how. Under the GIL.
struct {
  std::vector<PyTypeObject*> types;
  const DlExchange* exchange = nullptr;
  PyObject* has_other_values = nullptr;  // functions, see read_tensors_of
  PyObject* bytes_have_other_values = nullptr;
  PyObject* lacks_memory = nullptr;
} known;

bool is_known(PyObject* object) {
  for (PyTypeObject* type : known.types) {
    if (Py_IS_TYPE(object, type)) {
      return true;
    }
  }
  return false;
}

bool find_dtype(const DlType& type, DataType& dtype) {
  static constexpr std::pair<unsigned, DataType> kDtypes[] = {
      {kDlFloat << 8 | 32, DataType::kFloat32},
      {kDlBfloat << 8 | 16, DataType::kBFloat16},
      {kDlFloat << 8 | 16, DataType::kFloat16},
      {kDlFloat << 8 | 64, DataType::kFloat64},
      {kDlUInt << 8 | 8, DataType::kUInt8},
      {kDlInt << 8 | 8, DataType::kInt8},
      {kDlUInt << 8 | 16, DataType::kUInt16},
      {kDlInt << 8 | 16, DataType::kInt16},
      {kDlUInt << 8 | 32, DataType::kUInt32},
      {kDlInt << 8 | 32, DataType::kInt32},
      {kDlUInt << 8 | 64, DataType::kUInt64},
      {kDlInt << 8 | 64, DataType::kInt64},
      {kDlBool << 8 | 8, DataType::kBool},
  };
  const unsigned wanted = static_cast<unsigned>(type.code) << 8 | type.bits;
  for (const auto& [key, value] : kDtypes) {
    if (key == wanted) {
      dtype = value;
      return type.lanes == 1;
    }
  }
  return false;
}

bool is_contiguous(const DlTensor& tensor) {
  bool contiguous = true;
  std::int64_t expected = 1;
  for (std::int32_t i = tensor.dimensions - 1; i >= 0; --i) {
    const std::int64_t extent = tensor.shape[i];
    if (extent == 0) {
      return true;
    }
    contiguous = contiguous && (extent == 1 || tensor.strides[i] == expected);
    expected *= extent;
  }
  return contiguous;
}

/// Whether the function says so of the tensor, or fails.
bool holds(PyObject* function, PyObject* object) {
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallOneArg(function, object));
  if (!answer) {
    PyErr_Clear();
  }
  return answer.ptr() != Py_False;
}

}  // namespace

bool read_host_tensor(PyObject* object, HostTensor& tensor) {
  if (!is_known(object)) {
    return false;
  }
  DlTensor found;
  if (known.exchange->describe(object, &found) != 0) {
    PyErr_Clear();
    return false;
  }
  if (found.device.kind != kDlHost || !find_dtype(found.type, tensor.dtype) ||
      !is_contiguous(found)) {
    return false;
  }
  const bool bytes = tensor.dtype == DataType::kUInt8 || tensor.dtype == DataType::kInt8;
  if (holds(bytes ? known.bytes_have_other_values : known.has_other_values, object)) {
    return false;
  }
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(found.data) + found.byte_offset;
  if (address < kLowestAddress && holds(known.lacks_memory, object)) {
    return false;
  }
  tensor.address = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  tensor.shape = found.shape;
  tensor.dimensions = found.dimensions;
  return true;
}

void read_tensors_of(const py::tuple& types,
                     const py::object& exchange,
                     const py::object& has_other_values,
                     const py::object& bytes_have_other_values,
                     const py::object& lacks_memory) {
  const DlExchange* found = nullptr;
  if (!exchange.is_none()) {
    found = static_cast<DlExchange*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
    if (found == nullptr) {
      throw py::error_already_set();
    }
  }
  while (found != nullptr && found->major != kMajor) {
    found = found->older;
  }
  known.types.clear();
  if (found == nullptr || found->describe == nullptr) {
    return;
  }
  known.exchange = found;
  known.has_other_values = py::object(has_other_values).release().ptr();
  known.bytes_have_other_values = py::object(bytes_have_other_values).release().ptr();
  known.lacks_memory = py::object(lacks_memory).release().ptr();
  for (const py::handle type : types) {
    known.types.push_back(reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr()));
  }
}

}  // namespace aiacc
