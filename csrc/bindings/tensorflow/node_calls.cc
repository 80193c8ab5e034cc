#include "csrc/bindings/tensorflow/node_calls.h"

#include <cstddef>
#include <cstdlib>
#include <string>

namespace aiacc::tensorflow {
namespace {

const std::string kScope = "aiacc_call.";
constexpr const char* kCall = "PartitionedCall";  // also StatefulPartitionedCall_1, for example

/// A scope of node_names.py.
struct Scope {
  int loops;
  int number;
  std::string name;
};

/// False for other parts of a node's name.
bool read_scope(const std::string& part, Scope& scope) {
  if (part.rfind(kScope, 0) != 0) {
    return false;
  }
  const std::size_t number = part.find('.', kScope.size());
  const std::size_t name = number == std::string::npos ? number : part.find('.', number + 1);
  if (name == std::string::npos) {
    return false;
  }
  scope.loops = std::atoi(part.c_str() + kScope.size());
  scope.number = std::atoi(part.c_str() + number + 1);
  scope.name = part.substr(name + 1);
  return true;
}

void add_named(const Scope& scope, NodeCalls& calls) {
  calls.automatic += '@' + scope.name;
  if (scope.number != 0) {  // as Python does: first that of the inner call
    calls.given = '.' + std::to_string(scope.number) + calls.given;
  }
  if (calls.loops != kUnknownLoops) {
    calls.loops += scope.loops;
  }
}

}  // namespace

NodeCalls calls_of(const std::string& node) {
  NodeCalls calls;
  Scope scope{};
  bool in_scope = false;
  std::size_t after = 0;  // the last call that was found
  for (std::size_t begin = 0, end = node.find('/'); end != std::string::npos;
       begin = end + 1, end = node.find('/', begin)) {
    const std::string part = node.substr(begin, end - begin);
    if (read_scope(part, scope)) {
      in_scope = true;
    } else if (part.find(kCall) != std::string::npos) {
      if (in_scope) {
        add_named(scope, calls);
      } else {
        calls.automatic += '@' + node.substr(after, end - after);
        calls.loops = kUnknownLoops;
      }
      in_scope = false;
      after = end + 1;
    }
  }
  return calls;
}

}  // namespace aiacc::tensorflow
