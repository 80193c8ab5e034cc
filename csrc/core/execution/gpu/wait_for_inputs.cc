#include "csrc/core/execution/gpu/wait_for_inputs.h"

#include <vector>

namespace aiacc {

/// Of the marks of one stream only the last has to be waited for.
void wait_for_inputs(const Unit& unit, CudaStream stream, const Device& device) {
  std::vector<const Mark*> last;
  for (const Piece& piece : unit.pieces) {
    const Mark& written = piece.operation->written;
    if (written == nullptr) {
      continue;  // zeros of a rank that has joined
    }
    bool known = false;
    for (const Mark*& mark : last) {
      if ((*mark)->stream == written->stream) {
        mark = (*mark)->number < written->number ? &written : mark;
        known = true;
      }
    }
    if (!known) {
      last.push_back(&written);
    }
  }
  for (const Mark* mark : last) {
    device.wait(stream, *mark);
  }
}

}  // namespace aiacc
