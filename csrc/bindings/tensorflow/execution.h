// What the collective kernels need of TensorFlow, whichever of its interfaces gives it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aiacc::tensorflow {

/// Numbers of TensorFlow's error codes.
enum ErrorCode : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
};

/// Why an op ends without a result.
struct OpError {
  int code;
  std::string message;
};

/// What a node of a graph was made with. Functions throw OpError.
class Attributes {
 public:
  Attributes() = default;
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  virtual ~Attributes() = default;

  /// Name of the node in the graph that runs.
  virtual std::string node_name() const = 0;
  virtual std::int64_t number(const char* name) const = 0;
  virtual std::string text(const char* name) const = 0;
  /// Entries of a list.
  virtual int length(const char* name) const = 0;
};

struct Input {
  int dtype;  ///< TensorFlow's number.
  std::vector<std::int64_t> shape;
  const void* data;
};

struct Iteration {
  std::uint64_t loop;  ///< 0 outside of loops; another one in each iteration of the loops around it
  std::int64_t number;
};

/// One run of a node, until `finish`. Functions throw OpError unless they say otherwise; one thread
/// at a time.
class Execution {
 public:
  Execution() = default;
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  virtual ~Execution() = default;

  /// Its memory is valid until the end, unless `reuse` gives it to an output.
  virtual Input input(int index) = 0;
  /// Memory for an output.
  virtual void* allocate(int index, int dtype, const std::vector<std::int64_t>& shape) = 0;
  /// Memory for output `index`, of dtype and shape of input `index`: that of the input if nobody
  /// else reads it.
  virtual void* reuse(int index, const std::vector<std::int64_t>& shape) = 0;
  /// Makes input `index` also output `index`; its memory, which nobody may write.
  virtual void* pass_on(int index) = 0;
  /// The loop that it is part of, and its iteration there: the same on every rank.
  virtual Iteration iteration() const = 0;
  /// The end: all outputs are there, or there is an error. Called once, the last call. Never
  /// throws.
  virtual void finish(int code, const char* message) noexcept = 0;
};

}  // namespace aiacc::tensorflow
