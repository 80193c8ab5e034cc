#include "csrc/planning/spreading_tree.h"

namespace aiacc {
namespace {

/// The lowest power of two above `rank`.
int above(int rank) {
  int bit = 1;
  while (bit <= rank) {
    bit *= 2;
  }
  return bit;
}

}  // namespace

int spreading_parent(int rank) { return rank - above(rank) / 2; }

std::vector<int> spreading_children(int rank, int size) {
  std::vector<int> children;
  for (int bit = above(rank); rank + bit < size; bit *= 2) {
    children.push_back(rank + bit);
  }
  return children;
}

}  // namespace aiacc
