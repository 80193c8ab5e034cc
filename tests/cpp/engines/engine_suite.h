#pragma once

#include <gtest/gtest.h>

#include "tests/cpp/engines/engine_worlds.h"

// What every engine promises: one list of cases, engine_suite.cc, for whatever worlds a program
// instantiates it with.

namespace aiacc {

class EngineTest : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return world().size(); }

  template <class Body>
  void on_every_rank(Body body) const {
    with_engines(world(), body);
  }
};

/// Every set of ranks, some of which leave out whole hosts or parts of them, twice at a time.
class EngineSplitTest : public EngineTest {};

/// Several parts of a job, in worlds of few ranks.
class EnginePartsTest : public EngineTest {};

}  // namespace aiacc
