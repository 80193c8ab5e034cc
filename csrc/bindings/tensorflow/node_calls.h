// What calls the function that a node is in, as the node's name in the graph that runs says.
#pragma once

#include <string>

namespace aiacc::tensorflow {

struct NodeCalls {
  std::string automatic;  ///< follows automatic names: "" for a call by Python, or "@call@call"
  std::string given;      ///< follows given names
  int loops = 0;          ///< around the calls; kUnknownLoops if one has no name by Python
};

inline constexpr int kUnknownLoops = -1;

/// Functions that others call are part of their graphs when these run, and the names of their nodes
/// begin with that of the call. aiacc/tensorflow/node_names.py names it by a scope
/// "aiacc_call.LOOPS.NUMBER.NAME/"; without that, as in a saved model, TensorFlow's name is taken,
/// which has numbers of the whole graph. Pure.
NodeCalls calls_of(const std::string& node);

}  // namespace aiacc::tensorflow
